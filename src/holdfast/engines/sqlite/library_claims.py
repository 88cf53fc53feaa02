"""Ensure that a process opens a file through one SQLite library at a time.

apsw contains its own SQLite; sqlite3, and with it aiosqlite and SQLAlchemy, uses the one that Python was built with. File
locks belong to a process, so two libraries in one process do not see each other's locks: both would write at once, and
commits of one would be lost. SQLite cannot detect that.
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
    """Claim on files for one library, until it is released or garbage-collected, or ``raw`` is closed.

    Files that do not exist cannot be claimed.

    Raises:
        InvalidInput: another library has one of them open in this process.
    """

    def __init__(self, paths: Iterable[str | None], library: Library, *, raw: Any = None) -> None:
        identities = {os.path.abspath(path): _identity(path) for path in paths if path}
        self._files = {path: identity for path, identity in identities.items() if identity is not None}
        self._library, self._raw = library, raw
        with _lock:
            for claim in [*_claims]:
                for path, identity in self._files.items():
                    if claim._library != library and claim._covers(identity):
                        raise InvalidInput(_refusal(path, claim._library), field="library")
            _claims.add(self)

    def release(self) -> None:
        """Give up the claim: the files are closed."""
        self._files = {}

    def _covers(self, identity: tuple[int, int]) -> bool:
        # An inode number is not reused while the file is open, even if it was deleted.
        return identity in self._files.values() and _is_open(self._raw)


_claims: WeakSet[Claim] = WeakSet()


def _is_open(raw: Any) -> bool:
    try:
        return raw is None or isinstance(raw.in_transaction, bool)
    except Exception:  # each library raises its own error for a closed connection
        return False


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _refusal(path: str, other: Library) -> str:
    why = "and two SQLite libraries in one process do not see each other's locks"
    if other == "apsw":
        return (
            f"{path} is open through apsw in this process, {why}: open it with Holdfast({path!r}, sqlite='stdlib') "
            "to join sqlite3, aiosqlite and SQLAlchemy, or join an apsw connection"
        )
    return (
        f"{path} is open through Python's own SQLite in this process, {why}: "
        f"open it with Holdfast({path!r}, sqlite='stdlib'), or close the joined connection first"
    )
