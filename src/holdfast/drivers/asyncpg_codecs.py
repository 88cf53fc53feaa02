"""Keeping a caller's asyncpg codecs away from our values.

asyncpg asks the server what type each argument has and encodes it with the codec set for that type, which may be the caller's
own: one that turns objects into JSON would turn our JSON text into a JSON string. So on a caller's connection ids and JSON
are sent as text, for which nobody sets a codec, and the server converts them.
"""

from __future__ import annotations

import re

import asyncpg

_ARGUMENT = re.compile(r"\$(\d+)")
_AS_TEXT = {kind + many: f"::text{many}::{kind}{many}" for kind in ("uuid", "json", "jsonb") for many in ("", "[]")}
_MAX_KNOWN = 1_024
_known: dict[str, str] = {}


async def past_codecs(raw: asyncpg.Connection, sql: str) -> str:
    """The statement with those casts. The server is asked once for each."""
    if "$" not in sql:
        return sql
    if sql not in _known:
        kinds = (await raw.prepare(sql)).get_parameters()
        casts = {str(n): _AS_TEXT[kind.name] for n, kind in enumerate(kinds, 1) if kind.name in _AS_TEXT}
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[sql] = _ARGUMENT.sub(lambda found: found[0] + casts.get(found[1], ""), sql)
    return _known[sql]
