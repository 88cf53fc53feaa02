"""References between records: a field that names a record of another table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...engines.protocol import Connection
from ...errors import NotFound
from .. import text
from ..queries import Query
from .fields import Field, Limited, References
from .values import with_article


async def check_references(
    connection: Connection, queries: Mapping[str, Query], fields: Sequence[Field], params: Mapping[str, Any], noun: str
) -> None:
    """Check that the records that these fields name exist, and lock them until the transaction ends.

    Args:
        queries: the queries of ``reference_queries``, by name.

    Raises:
        NotFound: one does not exist.
    """
    for field in fields:
        value = params[field.column]
        if value in (None, ""):
            continue
        if await queries[f"find_{field.column}"].one(connection, params) is None:
            target, key = field.marker(References).noun, text.unescape(str(value))
            raise NotFound(
                f"{field.name} of {with_article(noun)}: {target} {key!r} does not exist", noun=target, key=key
            )


def reference_queries(fields: Sequence[Field]) -> dict[str, str]:
    """Return a query for each field that finds and locks the record that the field names."""
    return {f"find_{field.column}": _find(field.column, field.marker(References)) for field in fields}


def live_condition(table: str, field: Field) -> str:
    """Return the SQL condition that the record that a field of a row of this table names is live; ``""`` if it always is."""
    target, column = field.marker(References), f"{table}.{field.column}"
    if not target.live:
        return ""
    same = f"{target.table}.tenant_id = :tenant_id AND {target.table}.{target.column} = {column}"
    # OFFSET keeps PostgreSQL from turning the condition into a join: a row that was changed while its lock was waited for would
    # be joined to the record that it named before.
    live = f"EXISTS (SELECT 1 FROM {target.table} WHERE {same} AND ({target.live}) LIMIT 1 OFFSET 0)"
    limited = field.marker(Limited)
    if field.optional:
        return f"({column} IS NULL OR {live})"
    return f"({column} = '' OR {live})" if limited is not None and limited.empty else live


def _find(column: str, target: References) -> str:
    live = f" AND {target.live}" if target.live else ""
    condition = f"tenant_id = :tenant_id AND {target.column} = :{column}{live}"
    # Locked, so that the record is not deleted before this transaction ends.
    return f"SELECT 1 FROM {target.table} WHERE {condition} /*pg FOR KEY SHARE*/"
