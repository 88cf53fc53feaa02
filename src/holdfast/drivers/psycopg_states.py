"""psycopg 3: what is the same of its blocking and its asynchronous connections, which state they are in and how they fail."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from ..engines.postgres.errors import translate
from ..errors import HoldfastError, InvalidInput, InvalidText


def translated(error: psycopg.Error) -> HoldfastError:
    """An error of psycopg as one of ours."""
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:
        return InvalidText(f"{InvalidText.__doc__} (psycopg says: {error})")
    said = error.diag
    return translate(error.sqlstate, str(error), severity=said.severity_nonlocalized, context=said.context)


def opens_itself(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether we must open and close a transaction: the caller has none and its connection starts none by itself.

    psycopg's own ``transaction()`` cannot be used: where there is no autocommit, it would commit before the caller has.
    """
    return raw.autocommit and is_idle(raw)


def refuse_pipeline(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse what would only be queued: there the answer to a statement comes later, and now looks as if it were empty."""
    if raw._pipeline is not None:
        raise InvalidInput("leave the pipeline block before you use the joined handle: its calls need answers at once")


def is_idle(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether no transaction is open, as far as the connection knows; a lost one has none."""
    return raw.closed or raw.info.transaction_status in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
