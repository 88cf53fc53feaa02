"""What is different between two trees, for people to read."""

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
"""Bytes from the beginning of a file in which a NUL tells that it is no text; as git does it."""


class Change(Struct, frozen=True):
    """One thing that two trees do not have in common.

    ``changed``: its content, its kind or where it points to. ``mode``: only its permissions. ``renamed``: a file that was
    removed and one that was added have the same content; ``old_path`` says where it was.
    """

    path: str
    kind: ChangeKind
    before: TreeEntry | None
    after: TreeEntry | None
    old_path: str | None = None


def changes(before: Mapping[str, TreeEntry], after: Mapping[str, TreeEntry]) -> list[Change]:
    """What is different, in the order of paths. Times are not looked at."""
    added = {path: entry for path, entry in after.items() if path not in before}
    removed = {path: entry for path, entry in before.items() if path not in after}
    found = _renames(added, removed)
    found += [Change(path, "added", None, entry) for path, entry in added.items()]
    found += [Change(path, "removed", entry, None) for path, entry in removed.items()]
    for path, entry in after.items():
        was = before.get(path)
        if was is not None and was is not entry and was != entry:
            found += _change(path, was, entry)
    return sorted(found, key=lambda change: change.path)


def unified(change: Change, before: bytes, after: bytes, steps: StepBudget) -> str:
    """A change as a unified diff; of what is no text, that it differs. It takes no more than these steps, by and large."""
    old = "/dev/null" if change.before is None else _name(f"a/{change.old_path or change.path}")
    new = "/dev/null" if change.after is None else _name(f"b/{change.path}")
    head = _head(change)
    if not _has_content(change):
        return head
    old_lines, new_lines = _lines(before), _lines(after)
    if old_lines is None or new_lines is None:
        return f"{head}Binary files {old} and {new} differ\n"
    return head + line_diff.unified(old_lines, new_lines, (old, new), context=CONTEXT_LINES, steps=steps)


def too_large(change: Change, most: int) -> str:
    """What is said instead of the changes of a file that is larger than changes are shown of."""
    return f"{_head(change)}Files of more than {most:,} bytes differ\n"


def not_compared(change: Change, most: int) -> str:
    """What is said instead of the changes of a file after so many bytes of other files were compared."""
    return f"{_head(change)}Files differ, after {most:,} bytes of others\n"


def content_of(entry: TreeEntry | None) -> bytes | None:
    """What of an entry is compared line by line, if that is not the content of a file."""
    if entry is None or entry.kind == "dir":
        return b""
    return entry.target.encode("utf-8", "surrogateescape") if entry.kind == "symlink" else None


def _renames(added: dict[str, TreeEntry], removed: dict[str, TreeEntry]) -> list[Change]:
    """Files that were removed here and added there; they are taken out of both."""
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
    """The lines above a diff that say what else happened, as git writes them."""
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
    """A path as git writes it: in quotes if it has something in it that could be taken for more than a name."""
    if not _QUOTED.search(path):
        return printable(path)
    return '"' + printable(_QUOTED.sub(_escaped, path)) + '"'


def _escaped(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\{ord(found[0]):03o}"


def _mode(entry: TreeEntry) -> str:
    return {"file": "100", "dir": "040", "symlink": "120"}[entry.kind] + f"{entry.mode & 0o777:03o}"


def _has_content(change: Change) -> bool:
    kinds = {entry.kind for entry in (change.before, change.after) if entry is not None}
    return kinds != {"dir"} and change.kind not in ("mode", "renamed")


def _lines(content: bytes) -> list[str] | None:
    """The lines of a text; ``None`` if it is none."""
    if b"\0" in content[:_LOOKED_AT]:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])
