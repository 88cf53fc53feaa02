"""Options of an address that only libpq supports are removed for asyncpg, and their effect is implemented."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from holdfast.engines.postgres.urls import for_asyncpg, for_libpq
from holdfast.errors import InvalidInput
from tests.errors import raises

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
def test_only_options_of_asyncpg_or_the_server_are_kept(query: str, kept: str, timeout_s: float) -> None:
    dialing = for_asyncpg(PLACE + query, 10.0)
    assert (dialing.url, dialing.attempts, dialing.timeout_s) == (PLACE + kept, [{}], timeout_s)


def test_a_timeout_that_is_no_number_is_refused() -> None:
    with raises(InvalidInput, field="connect_timeout"):
        for_asyncpg(f"{PLACE}?connect_timeout=soon", 10.0)


TWO = [{"host": "a", "port": 1}, {"host": "::1", "port": 2}]


@pytest.mark.parametrize(
    ("address", "attempts", "timeout_s"),
    [
        ("postgresql://ada@a:1,[::1]:2/agents", TWO, 5.0),
        ("postgresql://ada@a:1,[::1]:2/agents?connect_timeout=3", TWO, 3.0),
        ("postgresql://ada@a,[::1]/agents?port=1,2&target_session_attrs=read-write", TWO, 5.0),
        (
            "postgresql:///agents?host=%2Ftmp%2Fa,%2Ftmp%2Fb&port=6",
            [{"host": "/tmp/a", "port": 6}, {"host": "/tmp/b", "port": 6}],
            5.0,
        ),
        (
            "postgresql://a:1,[::1]:2/agents?target_session_attrs=prefer-standby",
            [{**item, "target_session_attrs": kind} for kind in ("standby", "any") for item in TWO],
            5.0,
        ),
    ],
)
def test_each_of_several_hosts_has_its_own_timeout(
    address: str, attempts: list[dict[str, Any]], timeout_s: float
) -> None:
    dialing = for_asyncpg(address, 10.0)
    assert (dialing.attempts, dialing.timeout_s) == (attempts, timeout_s)
    assert for_libpq(address, 10.0)["connect_timeout"] == timeout_s


def test_keepalives_are_on_unless_the_url_disables_them() -> None:
    assert for_libpq(PLACE, 10.0) == {
        "keepalives": 1,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        "connect_timeout": 10,
    }
    output = f"{PLACE}?keepalives_idle=7&tcp_user_timeout=900&keepalives=1&keepalives_count=2&keepalives_interval=4"
    assert for_libpq(output, 10.0) == {"connect_timeout": 10}
    with socket.socket() as existing:
        for_asyncpg(output, 10.0).set_socket_options(existing)
        assert existing.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        asked = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert [existing.getsockopt(socket.IPPROTO_TCP, item) for item in asked] == [7, 4, 2, 900]
        for_asyncpg(f"{PLACE}?keepalives=0", 10.0).set_socket_options(existing)
        assert existing.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
