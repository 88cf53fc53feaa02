"""Map SQLite's result codes to our errors. apsw, sqlite3 and aiosqlite report the same codes and share one table."""

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
    """Another process held the write lock for too long; nothing was changed, and a retry is safe."""


class Interrupted(Unavailable):
    """The statement was interrupted because its caller was cancelled or because it took too long; nothing was changed."""


class OldSnapshot(Unavailable):
    """Another process wrote after your transaction's first read, so it cannot write: roll back and retry with BEGIN IMMEDIATE."""


def translate(code: int, message: str) -> HoldfastError:
    """Return the error for an extended result code and SQLite's message."""
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
        return SchemaMismatch(f"{message}: this database has no Holdfast schema, or that of another release")
    if "no such module: fts5" in message:
        return InvalidInput(
            "this SQLite was built without FTS5, so it cannot search: use sqlite='apsw', or another build",
            field="sqlite",
        )
    kind = exact.get(code) or primary.get(code & 0xFF) or HoldfastError
    return kind(f"{(kind.__doc__ or '').splitlines()[0]} (SQLite reported: {message})")
