"""Appends of many tenants at once: they share round trips and commits, and each message is its own tenant's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncHoldfast, NewMessage
from holdfast.engines.postgres.pool import PooledConnection
from holdfast.errors import NotFound
from holdfast.ids import RandomIds
from tests.engines.postgres_handles import crowd, soon

TENANTS = [f"tenant-{number}" for number in range(20)]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "agents.db")
    result: str = request.getfixturevalue("postgres_url")
    return result


@pytest.mark.parametrize("several", [False, True])
def test_concurrent_appends_of_many_tenants_are_stored_in_their_own_tenant(several: bool, url: str) -> None:
    """The same message ids in all tenants; one session is not there; one tenant appends twice to one session."""

    async def main() -> None:
        async with AsyncHoldfast(url) as hf:
            tenants = [hf.tenant(name) for name in TENANTS]
            sessions = [(await tenant.sessions.create()).id for tenant in tenants]
            await crowd(tenants[0])
            ids = [RandomIds().new() for _ in range(2)]

            async def append(number: int, session: str) -> Any:
                new = [
                    NewMessage(role="user", content=f"{TENANTS[number]} {n}", id=id_, token_count=number)
                    for n, id_ in enumerate(ids)
                ]
                return await tenants[number].messages.append_many(session, new if several else new[:1])

            appends = [append(number, session) for number, session in enumerate(sessions)]
            missing = append(3, RandomIds().new())
            more = tenants[5].messages.append(sessions[5], role="user", content="more", token_count=0)
            *completed, absent, last = await soon(asyncio.gather(*appends, missing, more, return_exceptions=True), 60)
            assert isinstance(absent, NotFound)
            completed[5] = sorted([*completed[5], last], key=lambda message: message.seq)
            for number, (tenant, session) in enumerate(zip(tenants, sessions, strict=True)):
                assert list(await tenant.messages.list(session)) == list(completed[number])
                own = [message for message in completed[number] if message.id in ids]
                assert [item.content[0]["text"] for item in own] == [
                    f"{TENANTS[number]} {n}" for n in range(2 if several else 1)
                ]
                counted = await tenant.sessions.get(session)
                assert (counted.message_count, counted.token_count) == (len(completed[number]), number * len(own))

    asyncio.run(main())


def test_on_postgres_appends_of_many_tenants_share_a_round_trip(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    fetch, fetch_many = PooledConnection.fetch, PooledConnection.fetch_many

    async def noting(self: PooledConnection, sql: str, args: Sequence[Any]) -> Any:
        sent.append(1)
        return await fetch(self, sql, args)

    async def noting_many(self: PooledConnection, sql: str, rows: Iterable[Sequence[Any]]) -> Any:
        rows = list(rows)
        sent.append(len(rows))
        return await fetch_many(self, sql, rows)

    async def main() -> None:
        async with AsyncHoldfast(postgres_url) as hf:
            sessions = [(tenant := hf.tenant(name), (await tenant.sessions.create()).id) for name in TENANTS]
            await crowd(hf.tenant("acme"))
            monkeypatch.setattr(PooledConnection, "fetch", noting)
            monkeypatch.setattr(PooledConnection, "fetch_many", noting_many)
            await soon(
                asyncio.gather(*(tenant.messages.append(id_, role="user", content="x") for tenant, id_ in sessions)), 60
            )

    asyncio.run(main())
    assert sorted(sent) == [len(TENANTS) // 2] * 2  # shared out between two lanes, one round trip each
