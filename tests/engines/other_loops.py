"""Handles that are used from another event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import AsyncHoldfast
from holdfast.errors import InvalidInput
from tests.errors import raises


def refused_in_another_loop(hf: AsyncHoldfast) -> None:
    """Use a handle from a second loop, in its own thread, while the first loop runs."""

    async def elsewhere(session: str, acme: Any) -> list[str]:
        output: list[str] = []
        for call in (
            lambda: acme.messages.append(session, role="user", content="lost"),
            lambda: acme.sessions.update(session, metadata={"a": 1}),
            lambda: acme.sessions.get(session),
        ):
            with raises(InvalidInput, field="loop") as error:
                await call()
            output.append(str(error.value))
        return output

    async def main() -> None:
        async with hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            assert len(await asyncio.to_thread(asyncio.run, elsewhere(session.id, acme))) == 3
            actual = await acme.sessions.get(session.id)
            assert (actual.message_count, actual.metadata) == (0, {})

    asyncio.run(main())
