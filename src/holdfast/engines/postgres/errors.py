"""Map PostgreSQL's SQLSTATE codes to our errors. psycopg and asyncpg report the same codes and share one table."""

from __future__ import annotations

from ...errors import (
    AlreadyExists,
    Corrupt,
    HoldfastError,
    InvalidInput,
    InvalidText,
    LimitExceeded,
    NotFound,
    ReadOnly,
    SchemaMismatch,
    StorageFull,
    Unavailable,
)


class ConnectionLost(Unavailable):
    """The connection to PostgreSQL was lost; nothing was changed, and a retry is safe."""


class NotSent(ConnectionLost):
    """The connection to PostgreSQL was closed before the statement was sent; nothing was changed, and a retry is safe."""


class NoAnswer(Unavailable):
    """PostgreSQL did not answer within the statement deadline; nothing was committed, and a retry is safe."""


class NodeLost(Unavailable):
    """A machine that holds part of the database failed; nothing was changed, and a retry is safe.

    The connection to the Citus coordinator still works. During a commit the outcome is unknown: see ``LOST_ON_COMMIT``.
    """


class Serialization(Unavailable):
    """Conflicting transactions could not be serialized after all retries; nothing was changed, and a retry is safe."""


LOST_ON_COMMIT = (ConnectionLost, NodeLost)
"""Errors after which a commit may nevertheless have succeeded."""


class FailedTransaction(Unavailable):
    """The joined transaction has failed and accepts no more statements: roll it back and begin again."""


_EXACT: dict[str, type[HoldfastError]] = {
    "23505": AlreadyExists,
    "23503": NotFound,
    "23502": InvalidInput,
    "23514": InvalidInput,
    "22021": InvalidText,
    "22P05": InvalidText,
    "25006": ReadOnly,
    "25P02": FailedTransaction,
    "25P03": ConnectionLost,
    "25P04": ConnectionLost,
    "40001": Serialization,
    "40P01": Serialization,
    "42501": ReadOnly,
    "53100": StorageFull,
    "54000": LimitExceeded,
    "55P03": Serialization,
    "3D000": Unavailable,
    "57P01": ConnectionLost,
    "57P02": ConnectionLost,
    "57P03": ConnectionLost,
    "57P05": ConnectionLost,
    "58030": NodeLost,
}
_BY_CLASS: dict[str, type[HoldfastError]] = {
    "08": ConnectionLost,
    "28": Unavailable,
    "42": SchemaMismatch,
    "53": Unavailable,
    "57": Unavailable,
    "XX": Corrupt,
}


_PROTOCOL_VIOLATION = "08P01"
"""Reported by a pooler when it closes our connection."""
_INTERNAL_ERROR = "XX000"
"""Reported by Citus when libpq, which it uses to connect to its workers, provides no code."""
_ABOUT_A_WORKER = ("while executing command on ", "failure on connection marked as essential")
"""Parts of messages that Citus never localizes."""


def translate(
    sqlstate: str | None, message: str, *, severity: str | None = None, context: str | None = None
) -> HoldfastError:
    """Return the error for a SQLSTATE and PostgreSQL's message. A missing SQLSTATE means that the connection was lost.

    Args:
        severity: as sent by the server, in English. After ``ERROR`` our connection is usable, so a connection reported as
            lost is one to another node.
        context: where the error occurred, according to the server.
    """
    if sqlstate is None:
        return ConnectionLost(f"{(ConnectionLost.__doc__ or '').splitlines()[0]} ({message})")
    kind = _EXACT.get(sqlstate) or _BY_CLASS.get(sqlstate[:2]) or HoldfastError
    if severity == "ERROR" and kind is ConnectionLost and sqlstate != _PROTOCOL_VIOLATION:
        kind = NodeLost
    if sqlstate == _INTERNAL_ERROR and any(words in f"{message}\n{context}" for words in _ABOUT_A_WORKER):
        kind = NodeLost
    hint = ": run `holdfast migrate up`" if kind is SchemaMismatch else ""
    return kind(f"{(kind.__doc__ or '').splitlines()[0]} (PostgreSQL reported {sqlstate}: {message}{hint})")
