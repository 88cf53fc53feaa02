"""What a tree must be like before anything of it is written to a disk.

Nothing that is stored or sent is trusted. A tree is looked at as a whole, and refused as a whole, with the entry named that is
wrong with it. What is written later goes by directory handles and through no link (``restoring``); this is the other half: there
is nothing in the list that would lead out of the root, become something else than it says, or be there twice.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import get_args

from ..core.text import printable
from ..errors import InvalidInput, LimitExceeded
from ..limits import Limits
from .entries import MODE_BITS, Kind, TreeEntry, raw

NAME_BYTES = 255
"""Bytes of one name in a directory: no file system has longer ones."""
SET_IDS = 0o6000
"""Bits by which a program runs as somebody else."""
MAX_LINKS = 40
"""Links one after the other that are followed to see where they lead; systems follow no more."""
LINK_STEPS = 100
"""Names and parent steps that following one link may take, on average over the links of a tree."""
LINK_STEPS_FREE = 10_000
"""What a tree with few links may take beyond that."""
_KINDS = frozenset(get_args(Kind))
_MAX_TIME = 2**63


def check(
    entries: Mapping[str, TreeEntry],
    limits: Limits,
    *,
    known: Mapping[str, TreeEntry],
    among: Iterable[str] | None = None,
) -> list[TreeEntry]:
    """Refuse a tree that must not be restored. What is in the directory just so already is not looked at; the rest is returned.

    Where it is known that only these paths can differ, no others are compared: ``among``.

    Raises:
        InvalidInput: an entry would leave the root, or is of no kind that is restored.
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
            raise refused(path, "it is there under another name")
        check_path(path, limits)
        check_entry(entry, limits)
        parent = path.rpartition("/")[0]
        if parent not in folders:
            _check_parent(path, entries.get(parent))
            folders.add(parent)
    return changed


def check_entry(entry: TreeEntry, limits: Limits) -> None:
    """Refuse an entry for what it is, wherever it lies.

    Raises:
        InvalidInput: it is of no kind that is restored, or not what it says.
        LimitExceeded: where it points to is over ``tree_path_bytes``, or it is a directory beyond ``tree_depth``.
    """
    if entry.kind not in _KINDS:
        raise refused(entry.path, f"{entry.kind!r} is not restored: only files, directories and symbolic links are")
    if not 0 <= entry.mode <= MODE_BITS or not -_MAX_TIME <= entry.mtime_ns < _MAX_TIME:
        raise refused(entry.path, "its mode or time is none")
    if entry.kind == "file":
        _check_file(entry)
    elif entry.size or entry.pieces:
        raise refused(entry.path, "only files have content")
    elif entry.kind == "dir":
        limits.check("tree_depth", entry.path.count("/") + 1, f"the directories down to {entry.path[:80]!r}")
    elif entry.kind == "symlink":
        _check_link(entry, limits)


def check_path(path: str, limits: Limits) -> None:
    """Refuse a path that does not lead to one place below the root.

    Raises:
        InvalidInput: it is absolute, empty, has steps that are no names, or cannot be a path.
        LimitExceeded: it is over ``tree_path_bytes`` or ``tree_depth``.
    """
    if not path or path[0] == "/":
        raise refused(path, "it is absolute" if path else "it has no name")
    try:
        size = len(path) if path.isascii() else len(raw(path))
    except UnicodeEncodeError:
        raise refused(path, "its name stands for no bytes") from None
    limits.check("tree_path_bytes", size, f"the path {path[:80]!r}")
    limits.check("tree_depth", path.count("/"), f"the directories that {path[:80]!r} lies in")
    if "\0" in path:
        raise refused(path, "its name has a NUL in it")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise refused(path, f"{part!r} is a step and no name")
        if len(part) > NAME_BYTES or (not part.isascii() and len(raw(part)) > NAME_BYTES):
            raise refused(path, f"a name in it is longer than {NAME_BYTES} bytes")


def find_twins(entries: Mapping[str, TreeEntry]) -> tuple[str, str] | None:
    """Two paths that are the same where case or the way of writing letters is not told apart, if there are any."""
    if len(set(map(str.lower, entries))) == len(entries) and "".join(entries).isascii():
        return None  # as in most trees, and much quicker to see
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
        InvalidInput: one leads out, or leads on through too many others to tell.
        LimitExceeded: following all of them takes more than ``LINK_STEPS`` for each, on average.
    """
    links = [entry for entry in entries.values() if entry.kind == "symlink"]
    left = LINK_STEPS_FREE + LINK_STEPS * len(links)
    for link in links:
        left -= _steps_within(entries, link, left)


def _steps_within(entries: Mapping[str, TreeEntry], link: TreeEntry, most: int) -> int:
    """Follow a link and count the steps; refuse it if it leads out."""
    at: list[str] = link.path.split("/")[:-1]
    waiting = link.target.split("/")[::-1]
    followed = steps = 0
    leads_out = link.target.startswith("/")
    while waiting and not leads_out:
        steps += 1
        if steps > most:
            raise LimitExceeded(
                f"the symbolic links of the tree take more than {LINK_STEPS} steps each to follow; outside_links skips that"
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
        raise refused(link.path, f"it leads out of the tree, to {link.target[:200]!r}; outside_links allows that")
    return steps


def refused(path: str, reason: str) -> InvalidInput:
    """The error for a tree with an entry that must not be written."""
    shown = printable(path[:200])
    return InvalidInput(f"this tree is not restored, and nothing was changed: {shown!r}: {reason}")


def _check_file(entry: TreeEntry) -> None:
    if entry.mode & SET_IDS:
        raise refused(entry.path, "it would run as somebody else: its mode has set-uid or set-gid")
    if entry.size < 0 or any(piece.start < 0 or piece.length < 0 for piece in entry.pieces):
        raise refused(entry.path, "a size is below zero")
    if sum(piece.length for piece in entry.pieces) != entry.size:
        raise refused(entry.path, "its content is not as long as it says")


def _check_link(entry: TreeEntry, limits: Limits) -> None:
    try:
        size = len(raw(entry.target))
    except UnicodeEncodeError:
        raise refused(entry.path, "its target stands for no bytes") from None
    limits.check("tree_path_bytes", size, f"where {entry.path[:80]!r} points to")
    if not entry.target or "\0" in entry.target:
        raise refused(entry.path, "it points to what cannot be a path")


def _check_parent(path: str, above: TreeEntry | None) -> None:
    """What lies in something lies in a directory."""
    if above is None:
        raise refused(path, "the directory it lies in is not in the tree")
    if above.kind != "dir":
        raise refused(path, f"it lies in something that is no directory but a {above.kind}")
