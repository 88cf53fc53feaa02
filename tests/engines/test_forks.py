"""Handles that are open at a fork: they raise in the child and keep working in the parent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.scripts import run_script

FORKED = """
    import os, sys
    from holdfast import Holdfast, PoolOptions
    from holdfast.errors import Closed

    hf = Holdfast(sys.argv[1], pool=PoolOptions(min_connections=1, max_connections=4))
    acme = hf.tenant("acme")
    session = acme.sessions.create()

    def append():
        return acme.messages.append(session.id, role="user", content="x")

    append()
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (append, acme.sessions.create, lambda: acme.sessions.get(session.id)):
            try:
                call()
            except Closed as error:
                refused += error.reason == "forked"
        hf.close()
        os._exit(refused)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(append().seq, acme.sessions.count())
    hf.close()
"""

FORKED_ASYNC = """
    import asyncio, os, sys
    from holdfast import AsyncHoldfast, PoolOptions
    from holdfast.errors import Closed

    async def child(hf, session):
        acme, refused = hf.tenant("acme"), 0
        for call in (
            lambda: acme.messages.append(session, role="user", content="x"),
            acme.sessions.create,
            lambda: acme.sessions.get(session),
            hf.open,
        ):
            try:
                await call()
            except Closed as error:
                refused += error.reason == "forked"
        await hf.close()
        os._exit(refused - 1)

    async def main():
        async with AsyncHoldfast(sys.argv[1], pool=PoolOptions(min_connections=1, max_connections=4)) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            await acme.messages.append(session.id, role="user", content="x")
            pid = os.fork()
            if pid == 0:
                await child(hf, session.id)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            print((await acme.messages.append(session.id, role="user", content="x")).seq, await acme.sessions.count())

    asyncio.run(main())
"""


@pytest.mark.parametrize("script", [FORKED, FORKED_ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_forked_child_is_refused_and_the_parent_continues(
    script: str, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path / "a.db") if engine == "sqlite" else request.getfixturevalue("postgres_url")
    assert run_script(script, url, warnings="ignore") == "3\n2 1\n"
