"""Which SQLite library has which file open in this process.

apsw brings a SQLite of its own; sqlite3, and with it aiosqlite and SQLAlchemy, uses the one that Python was built with. File
locks belong to a process, so two libraries in one process do not see each other's: both would write at once, and what one
has committed would be lost. Nothing in SQLite notices. So a file is used through one library at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from ...address import Library
from ...errors import InvalidInput

_lock = threading.Lock()


class Claim:
    """That somebody uses these files through a library, until it is released or forgotten, or ``raw`` is closed.

    A file that does not exist is nobody's.

    Raises:
        InvalidInput: another library has one of them open in this process.
    """

    def __init__(self, paths: Iterable[str | None], library: Library, *, raw: Any = None) -> None:
        found = {os.path.abspath(path): _identity(path) for path in paths if path}
        self._files = {path: identity for path, identity in found.items() if identity is not None}
        self._library, self._raw = library, raw
        with _lock:
            for claim in [*_claims]:
                for path, identity in self._files.items():
                    if claim._library != library and claim._covers(identity):
                        raise InvalidInput(_refusal(path, claim._library))
            _claims.add(self)

    def release(self) -> None:
        """Say that the files are closed."""
        self._files = {}

    def _covers(self, identity: tuple[int, int]) -> bool:
        # As long as it is open its number stays its own, even if it was deleted.
        return identity in self._files.values() and _is_open(self._raw)


_claims: WeakSet[Claim] = WeakSet()


def _is_open(raw: Any) -> bool:
    try:
        return raw is None or isinstance(raw.in_transaction, bool)
    except Exception:  # closed, in the words of either library
        return False


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _refusal(path: str, other: Library) -> str:
    why = "and two SQLite libraries in one process do not see each other's locks"
    if other == "apsw":
        return (
            f"{path} is open through apsw in this process, {why}: open it with Holdfast({path!r}, sqlite='stdlib') "
            "to join sqlite3, aiosqlite and SQLAlchemy, or join an apsw connection"
        )
    return (
        f"{path} is open through Python's own SQLite in this process, {why}: "
        f"open it with Holdfast({path!r}, sqlite='stdlib'), or let go of the joined connection first"
    )
