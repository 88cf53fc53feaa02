"""Connection states and error conversion shared by psycopg's blocking and asynchronous connections."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from ..engines.postgres.errors import translate
from ..errors import HoldfastError, InvalidInput, InvalidText


def holdfast_error(error: psycopg.Error) -> HoldfastError:
    """Convert a psycopg error to one of ours."""
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:
        return InvalidText(f"{InvalidText.__doc__} (psycopg reported: {error})")
    diag = error.diag
    return translate(error.sqlstate, str(error), severity=diag.severity_nonlocalized, context=diag.context)


def needs_transaction(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether we must begin and end a transaction: none is open, and the connection does not begin one implicitly.

    psycopg's own ``transaction()`` cannot be used: without autocommit it would commit before the caller does.
    """
    return raw.autocommit and is_idle(raw)


def refuse_pipeline(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a connection in pipeline mode, where statements are only queued and their results look empty."""
    if raw._pipeline is not None:
        raise InvalidInput(
            "leave the pipeline block before you use the joined handle: its calls need answers at once",
            field="pipeline",
        )


def is_idle(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether no transaction is open, as far as the connection knows. A lost connection has none."""
    return raw.closed or raw.info.transaction_status in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
