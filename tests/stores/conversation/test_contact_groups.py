"""Groups of contacts that change between the lookup of their members and the lock on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import AsyncHoldfast


@pytest.mark.parametrize("method", ["merge", "unmerge"])
def test_a_contact_that_has_changed_its_group_keeps_the_new_one(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncHoldfast(":memory:") as hf:
            contacts = hf.tenant("acme").contacts
            first, second, third, moved, friend = [
                (await contacts.upsert("telegram", sender)).id for sender in ("a", "b", "c", "d", "e")
            ]
            await contacts.merge([first, second])
            group = await contacts.merge([moved, friend])
            lookups: list[Any] = []

            async def group_ids(self: Any, connection: Any, ids: Sequence[str]) -> Sequence[str]:
                lookups.append(await look_up(self, connection, ids))
                return [*lookups[0], moved] if len(lookups) == 1 else lookups[-1]

            look_up = type(contacts)._group_ids
            monkeypatch.setattr(type(contacts), "_group_ids", group_ids)
            await (contacts.merge([first, third]) if method == "merge" else contacts.unmerge([first]))
            assert len(lookups) == 2
            for contact in (moved, friend):
                assert (await contacts.get(contact)).merged_id == group

    asyncio.run(main())
