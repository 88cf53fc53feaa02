"""Differences between two trees, in readable form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hmac import compare_digest
from typing import Literal

from msgspec import Struct

from ..core.text import printable
from . import line_diff
from .entries import TreeEntry
from .line_diff import StepBudget

ChangeKind = Literal["added", "removed", "changed", "mode", "renamed"]
CONTEXT_LINES = 3
_QUOTED = re.compile('[\x00-\x1f\x7f"\\\\]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_LOOKED_AT = 8_000
"""Bytes at the beginning of a file in which a NUL marks it as binary, as in git."""


class Change(Struct, frozen=True):
    """One difference between two trees.

    ``changed``: its content, kind or link target. ``mode``: only its permissions. ``renamed``: a removed and an added
    file have the same content; ``old_path`` is the former path.
    """

    path: str
    kind: ChangeKind
    before: TreeEntry | None
    after: TreeEntry | None
    old_path: str | None = None


def changes(before: Mapping[str, TreeEntry], after: Mapping[str, TreeEntry]) -> list[Change]:
    """Return the differences, in order of paths. Times are not compared."""
    added = {path: entry for path, entry in after.items() if path not in before}
    removed = {path: entry for path, entry in before.items() if path not in after}
    changes = _renames(added, removed)
    changes += [Change(path, "added", None, entry) for path, entry in added.items()]
    changes += [Change(path, "removed", entry, None) for path, entry in removed.items()]
    for path, entry in after.items():
        entry_before = before.get(path)
        if entry_before is not None and entry_before is not entry and entry_before != entry:
            changes += _change(path, entry_before, entry)
    return sorted(changes, key=lambda change: change.path)


def unified_diff(change: Change, before: bytes, after: bytes, steps: StepBudget) -> str:
    """Return a change as a unified diff, or a note that binary files differ. It spends about as many steps as
    ``steps`` has left.
    """
    old = "/dev/null" if change.before is None else _name(f"a/{change.old_path or change.path}")
    new = "/dev/null" if change.after is None else _name(f"b/{change.path}")
    head = _head(change)
    if not _has_content(change):
        return head
    old_lines, new_lines = _lines(before), _lines(after)
    if old_lines is None or new_lines is None:
        return f"{head}Binary files {old} and {new} differ\n"
    return head + line_diff.unified_diff(old_lines, new_lines, (old, new), context=CONTEXT_LINES, steps=steps)


def too_large(change: Change, maximum: int) -> str:
    """Return the text shown for a file that is too large to be compared."""
    return f"{_head(change)}Files of more than {maximum:,} bytes differ\n"


def not_compared(change: Change, maximum: int) -> str:
    """Return the text shown for a file that comes after ``maximum`` bytes of compared files."""
    return f"{_head(change)}Files differ, after {maximum:,} bytes of others\n"


def content_of(entry: TreeEntry | None) -> bytes | None:
    """Return the content that an entry is compared by, unless it is the content of a file; then return ``None``."""
    if entry is None or entry.kind == "dir":
        return b""
    return entry.target.encode("utf-8", "surrogateescape") if entry.kind == "symlink" else None


def _renames(added: dict[str, TreeEntry], removed: dict[str, TreeEntry]) -> list[Change]:
    """Return the files removed on one side and added on the other with equal content, and drop them from both
    mappings.
    """
    by_content: dict[bytes, list[str]] = {}
    for path in sorted(removed, reverse=True):
        if removed[path].kind == "file" and removed[path].size:
            by_content.setdefault(removed[path].digest, []).append(path)
    found = []
    for path in sorted(added):
        entry = added[path]
        olds = by_content.get(entry.digest) if entry.kind == "file" else None
        if olds:
            old = olds.pop()
            found.append(Change(path, "renamed", removed.pop(old), added.pop(path), old))
    return found


def _change(path: str, was: TreeEntry, entry: TreeEntry) -> list[Change]:
    same = was.kind == entry.kind and was.target == entry.target and compare_digest(was.digest, entry.digest)
    if same and was.mode == entry.mode:
        return []
    return [Change(path, "mode" if same else "changed", was, entry)]


def _head(change: Change) -> str:
    """Return the header lines of a diff, as git writes them."""
    before, after = change.before, change.after
    lines = [f"diff --git {_name(f'a/{change.old_path or change.path}')} {_name(f'b/{change.path}')}"]
    if before is None and after is not None:
        lines.append(f"new file mode {_mode(after)}")
    elif after is None and before is not None:
        lines.append(f"deleted file mode {_mode(before)}")
    elif before is not None and after is not None and _mode(before) != _mode(after):
        lines += [f"old mode {_mode(before)}", f"new mode {_mode(after)}"]
    if change.old_path is not None:
        lines += [f"rename from {_name(change.old_path)}", f"rename to {_name(change.path)}"]
    return "".join(f"{line}\n" for line in lines)


def _name(path: str) -> str:
    """Return a path as git writes it: quoted if it contains special characters."""
    if not _QUOTED.search(path):
        return printable(path)
    return '"' + printable(_QUOTED.sub(_escape, path)) + '"'


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\{ord(match[0]):03o}"


def _mode(entry: TreeEntry) -> str:
    return {"file": "100", "dir": "040", "symlink": "120"}[entry.kind] + f"{entry.mode & 0o777:03o}"


def _has_content(change: Change) -> bool:
    kinds = {entry.kind for entry in (change.before, change.after) if entry is not None}
    return kinds != {"dir"} and change.kind not in ("mode", "renamed")


def _lines(content: bytes) -> list[str] | None:
    """Return the lines of a text; ``None`` if the content is binary."""
    if b"\0" in content[:_LOOKED_AT]:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])
