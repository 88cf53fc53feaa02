"""SQLite's result codes as our errors. One table for apsw, sqlite3 and aiosqlite: they all report the same codes."""

from __future__ import annotations

from ...errors import (
    AlreadyExists,
    Corrupt,
    HoldfastError,
    InvalidInput,
    NotFound,
    ReadOnly,
    SchemaMismatch,
    StorageFull,
    Unavailable,
)

_BUSY, _LOCKED, _NOMEM, _READONLY, _INTERRUPT, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _TOOBIG, _NOTADB = (
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    13,
    14,
    18,
    26,
)
_BUSY_SNAPSHOT = 517
_CONSTRAINT_CHECK, _CONSTRAINT_FOREIGNKEY, _CONSTRAINT_NOTNULL = 275, 787, 1299
_CONSTRAINT_PRIMARYKEY, _CONSTRAINT_UNIQUE = 1555, 2067


class DiskFailed(Unavailable):
    """The disk reported an error; nothing was changed as far as SQLite can tell."""


class Busy(Unavailable):
    """Another process was writing for longer than we wait; nothing was changed, and a retry is safe."""


class Interrupted(Unavailable):
    """The statement was interrupted because its result is no longer wanted, or because it takes long; nothing was changed."""


class OldSnapshot(Unavailable):
    """Your transaction read before somebody else wrote, so it cannot write: roll it back and begin again (BEGIN IMMEDIATE)."""


def translate(code: int, message: str) -> HoldfastError:
    """The error for an extended result code and SQLite's own words."""
    exact: dict[int, type[HoldfastError]] = {
        _BUSY_SNAPSHOT: OldSnapshot,
        _CONSTRAINT_PRIMARYKEY: AlreadyExists,
        _CONSTRAINT_UNIQUE: AlreadyExists,
        _CONSTRAINT_FOREIGNKEY: NotFound,
        _CONSTRAINT_CHECK: InvalidInput,
        _CONSTRAINT_NOTNULL: InvalidInput,
    }
    primary: dict[int, type[HoldfastError]] = {
        _BUSY: Busy,
        _LOCKED: Unavailable,
        _NOMEM: Unavailable,
        _READONLY: ReadOnly,
        _INTERRUPT: Interrupted,
        _IOERR: DiskFailed,
        _CORRUPT: Corrupt,
        _NOTADB: Corrupt,
        _FULL: StorageFull,
        _CANTOPEN: Unavailable,
        _TOOBIG: InvalidInput,
    }
    if "no such table" in message or "no such column" in message:
        return SchemaMismatch(f"{message}: this database has no Holdfast schema, or another release's")
    if "no such module: fts5" in message:
        return InvalidInput(
            "this SQLite was built without FTS5, so it cannot search: use sqlite='apsw', or another build"
        )
    kind = exact.get(code) or primary.get(code & 0xFF) or HoldfastError
    return kind(f"{(kind.__doc__ or '').splitlines()[0]} (SQLite says: {message})")
