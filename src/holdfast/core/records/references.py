"""References between records: a field that names a record of another table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...engines.protocol import Connection
from ...errors import NotFound
from .. import text
from .fields import Field, References
from .statements import GeneratedQueries
from .values import with_article


async def check_references(
    connection: Connection, queries: GeneratedQueries, fields: Sequence[Field], params: Mapping[str, Any], noun: str
) -> None:
    """Check that the records that these fields name exist, and lock them until the transaction ends.

    Raises:
        NotFound: one does not exist.
    """
    for field in fields:
        value = params[field.column]
        if value in (None, ""):
            continue
        if await queries.by_name[f"find_{field.column}"].one(connection, params) is None:
            target, key = field.marker(References).noun, text.unescape(str(value))
            raise NotFound(
                f"{field.name} of {with_article(noun)}: {target} {key!r} does not exist", noun=target, key=key
            )
