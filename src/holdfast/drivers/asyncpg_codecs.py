"""Keep the caller's asyncpg codecs from encoding our values.

asyncpg queries the server for the type of each argument and encodes it with the codec of that type, which may be the
caller's: a codec that encodes objects as JSON would turn our JSON text into a JSON string. On a caller's connection, ids and
JSON are therefore sent as text, which normally has no custom codec, and the server converts them.
"""

from __future__ import annotations

import re

import asyncpg

_ARGUMENT = re.compile(r"\$(\d+)")
_AS_TEXT = {kind + many: f"::text{many}::{kind}{many}" for kind in ("uuid", "json", "jsonb") for many in ("", "[]")}
_MAX_CACHED = 1_024
_cache: dict[str, str] = {}


async def cast_arguments(raw: asyncpg.Connection, sql: str) -> str:
    """Return the statement with these casts. The server is queried once for each statement."""
    if "$" not in sql:
        return sql
    if sql not in _cache:
        kinds = (await raw.prepare(sql)).get_parameters()
        casts = {str(n): _AS_TEXT[kind.name] for n, kind in enumerate(kinds, 1) if kind.name in _AS_TEXT}
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        _cache[sql] = _ARGUMENT.sub(lambda match: match[0] + casts.get(match[1], ""), sql)
    return _cache[sql]
