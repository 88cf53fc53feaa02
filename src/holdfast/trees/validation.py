"""Validation of trees before anything is written to a disk.

Nothing stored or received is trusted. A tree is checked as a whole, and refused as a whole, with the offending entry
named. Files are written through directory handles and never through a link (``restore``); this module is the other
half: it ensures that no entry leaves the root, contradicts its own description, or appears twice.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import get_args

from ..core.text import printable
from ..errors import InvalidInput, LimitExceeded
from ..limits import Limits
from .entries import MODE_BITS, Kind, TreeEntry, path_bytes

NAME_BYTES = 255
"""Maximum bytes of one name in a directory on any file system."""
SET_IDS = 0o6000
"""The set-uid and set-gid bits."""
MAX_LINKS = 40
"""Maximum number of links followed in sequence, as in operating systems."""
LINK_STEPS = 100
"""Path components that following one link may take, on average over the links of a tree."""
LINK_STEPS_FREE = 10_000
"""Additional path components that a tree may take, whatever its number of links."""
_KINDS = frozenset(get_args(Kind))
_MAX_TIME = 2**63


def check(
    entries: Mapping[str, TreeEntry],
    limits: Limits,
    *,
    known: Mapping[str, TreeEntry],
    among: Iterable[str] | None = None,
) -> list[TreeEntry]:
    """Refuse a tree that must not be restored; return the entries that differ from ``known``, which are the ones
    checked.

    If only certain paths can differ, no others are compared: ``among``.

    Raises:
        InvalidInput: an entry would leave the root, or is of a kind that cannot be restored.
        LimitExceeded: the tree is over ``tree_entries``, ``tree_bytes``, ``tree_path_bytes`` or ``tree_depth``.
    """
    limits.check("tree_entries", len(entries), "the entries of the tree")
    limits.check("tree_bytes", sum([entry.size for entry in entries.values()]), "the files of the tree")
    folders: set[str] = {""}
    changed = []
    for path in entries if among is None else among:
        entry = entries.get(path)
        if entry is None or entry == known.get(path):
            continue
        changed.append(entry)
        if path != entry.path:
            raise refusal(path, "it is listed under another name")
        check_path(path, limits)
        check_entry(entry, limits)
        parent = path.rpartition("/")[0]
        if parent not in folders:
            _check_parent(path, entries.get(parent))
            folders.add(parent)
    return changed


def check_entry(entry: TreeEntry, limits: Limits) -> None:
    """Refuse an entry for its own properties, apart from its path.

    Raises:
        InvalidInput: it is of a kind that cannot be restored, or inconsistent.
        LimitExceeded: its link target is over ``tree_path_bytes``, or it is a directory beyond ``tree_depth``.
    """
    if entry.kind not in _KINDS:
        raise refusal(entry.path, f"{entry.kind!r} cannot be restored: only files, directories and symbolic links can")
    if not 0 <= entry.mode <= MODE_BITS or not -_MAX_TIME <= entry.mtime_ns < _MAX_TIME:
        raise refusal(entry.path, "its mode or time is out of range")
    if entry.kind == "file":
        _check_file(entry)
    elif entry.size or entry.pieces:
        raise refusal(entry.path, "only files have content")
    elif entry.kind == "dir":
        limits.check("tree_depth", entry.path.count("/") + 1, f"the directories down to {entry.path[:80]!r}")
    elif entry.kind == "symlink":
        _check_link(entry, limits)


def check_path(path: str, limits: Limits) -> None:
    """Refuse a path that does not lead to exactly one place below the root.

    Raises:
        InvalidInput: it is absolute, empty, has components such as ``..``, or is not a valid path.
        LimitExceeded: it is over ``tree_path_bytes`` or ``tree_depth``.
    """
    if not path or path[0] == "/":
        raise refusal(path, "it is an absolute path" if path else "its path is empty")
    try:
        size = len(path) if path.isascii() else len(path_bytes(path))
    except UnicodeEncodeError:
        raise refusal(path, "its name cannot be encoded") from None
    limits.check("tree_path_bytes", size, f"the path {path[:80]!r}")
    limits.check("tree_depth", path.count("/"), f"the path {path[:80]!r}")
    if "\0" in path:
        raise refusal(path, "its name contains a NUL")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise refusal(path, f"{part!r} is not a name")
        if len(part) > NAME_BYTES or (not part.isascii() and len(path_bytes(part)) > NAME_BYTES):
            raise refusal(path, f"one of its names is longer than {NAME_BYTES} bytes")


def find_twins(entries: Mapping[str, TreeEntry]) -> tuple[str, str] | None:
    """Return two paths that are equal if case or Unicode normalization is ignored, or ``None``."""
    if len(set(map(str.lower, entries))) == len(entries) and "".join(entries).isascii():
        return None  # a fast check that suffices for most trees
    seen: dict[str, str] = {}
    for path in entries:
        folded = unicodedata.normalize("NFC", path.casefold()) if not path.isascii() else path.lower()
        other = seen.setdefault(folded, path)
        if other != path:
            return other, path
    return None


def check_links(entries: Mapping[str, TreeEntry]) -> None:
    """Refuse symbolic links that lead out of the tree, followed through all other links in it.

    Raises:
        InvalidInput: a link leads out of the tree, or through too many other links to tell.
        LimitExceeded: following all links takes more than ``LINK_STEPS`` for each, on average.
    """
    links = [entry for entry in entries.values() if entry.kind == "symlink"]
    left = LINK_STEPS_FREE + LINK_STEPS * len(links)
    for link in links:
        left -= _steps_within(entries, link, left)


def _steps_within(entries: Mapping[str, TreeEntry], link: TreeEntry, maximum: int) -> int:
    """Follow a link and return the number of steps; refuse it if it leads out of the tree."""
    at: list[str] = link.path.split("/")[:-1]
    waiting = link.target.split("/")[::-1]
    followed = steps = 0
    leads_out = link.target.startswith("/")
    while waiting and not leads_out:
        steps += 1
        if steps > maximum:
            raise LimitExceeded(
                f"the symbolic links of the tree take more than {LINK_STEPS} steps each to follow; outside_links skips that",
                limit="link_steps",
                maximum=LINK_STEPS,
            )
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            leads_out = not at
            del at[-1:]
            continue
        at.append(part)
        entry = entries.get("/".join(at))
        if entry is not None and entry.kind == "symlink":
            followed += 1
            leads_out = entry.target.startswith("/") or followed > MAX_LINKS
            at.pop()
            waiting += entry.target.split("/")[::-1]
    if leads_out:
        raise refusal(link.path, f"it leads out of the tree, to {link.target[:200]!r}; outside_links allows that")
    return steps


def refusal(path: str, reason: str) -> InvalidInput:
    """Return the error for a tree with an entry that must not be written."""
    printable_path = printable(path[:200])
    return InvalidInput(f"the tree is refused, and nothing was changed: {printable_path!r}: {reason}", field=path)


def _check_file(entry: TreeEntry) -> None:
    if entry.mode & SET_IDS:
        raise refusal(entry.path, "its mode has set-uid or set-gid")
    if entry.size < 0 or any(piece.start < 0 or piece.length < 0 for piece in entry.pieces):
        raise refusal(entry.path, "it has a negative size")
    if sum(piece.length for piece in entry.pieces) != entry.size:
        raise refusal(entry.path, "its size differs from the size of its content")


def _check_link(entry: TreeEntry, limits: Limits) -> None:
    try:
        size = len(path_bytes(entry.target))
    except UnicodeEncodeError:
        raise refusal(entry.path, "its target cannot be encoded") from None
    limits.check("tree_path_bytes", size, f"where {entry.path[:80]!r} points to")
    if not entry.target or "\0" in entry.target:
        raise refusal(entry.path, "its target is not a valid path")


def _check_parent(path: str, above: TreeEntry | None) -> None:
    """Refuse a path whose parent is not a directory of the tree."""
    if above is None:
        raise refusal(path, "its parent directory is not in the tree")
    if above.kind != "dir":
        raise refusal(path, f"its parent is not a directory but a {above.kind}")
