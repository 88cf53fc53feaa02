"""What of an address only libpq understands does not reach asyncpg."""

from __future__ import annotations

import pytest

from holdfast.engines.postgres.urls import for_asyncpg
from holdfast.errors import InvalidInput

PLACE = "postgresql://ada:p%40ss@db.example:5432/agents"


@pytest.mark.parametrize(
    ("query", "kept", "timeout_s"),
    [
        ("", "", 10.0),
        ("?sslmode=require&channel_binding=require", "?sslmode=require", 10.0),
        ("?connect_timeout=3", "", 3.0),
        ("?connect_timeout=0&application_name=a%26b", "?application_name=a%26b", 10.0),
        ("?keepalives=1&keepalives_idle=30&keepalives_interval=5&keepalives_count=2&gssencmode=disable", "", 10.0),
        ("?host=/tmp/x&statement_timeout=5s", "?host=/tmp/x&statement_timeout=5s", 10.0),
    ],
)
def test_only_what_asyncpg_or_the_server_understands_is_kept(query: str, kept: str, timeout_s: float) -> None:
    assert for_asyncpg(PLACE + query, 10.0) == (PLACE + kept, timeout_s)


def test_a_timeout_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match="connect_timeout=soon"):
        for_asyncpg(f"{PLACE}?connect_timeout=soon", 10.0)
