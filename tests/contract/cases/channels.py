"""Channel instances: encrypted and merged credentials. ``records.py`` tests the promises of all record stores."""

from __future__ import annotations

from typing import Any

from holdfast.core.crypto import Secret
from holdfast.stores.agents.agents import NewAgent
from holdfast.stores.channels.channels import ChannelInstanceChange, NewChannelInstance
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World


@contract()
async def credentials_are_merged_and_never_shown(world: World) -> None:
    await world.tenant().agents.create(NewAgent("ada", display_name="Ada"))
    channels = world.tenant().channels
    created = await channels.create(
        NewChannelInstance("bot", "telegram", "ada", credentials=Secret({"token": "t0ken"}))
    )

    async def changed(credentials: Secret[dict[str, Any]] | None) -> Any:
        row = await channels.update(created.id, change=ChannelInstanceChange(credentials=credentials))
        assert "t0ken" not in repr([row, await channels.list()])
        return row.credentials and row.credentials.reveal()

    assert await changed(Secret({"proxy": "p"})) == {"token": "t0ken", "proxy": "p"}
    assert await changed(Secret({"proxy": None})) == {"token": "t0ken", "proxy": None}
    named = await channels.update(created.id, change=ChannelInstanceChange(display_name="Bot"))
    assert named.credentials == Secret({"token": "t0ken", "proxy": None}), (
        "a change of another field keeps the credentials"
    )
    assert await changed(Secret({})) is None
    assert await changed(Secret({"token": "new"})) == {"token": "new"}
    assert await changed(None) is None
