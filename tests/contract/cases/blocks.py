"""Core blocks: saved and loaded together or one by one, within their size limits."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from holdfast import NewAgent
from holdfast.clock import from_us
from holdfast.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.agents.blocks import Block, NewBlock
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, raises


@contract()
async def blocks_are_saved_and_loaded_together(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada", display_name="Ada"))
    assert await acme.blocks.list("ada") == []
    new = [
        NewBlock(label="persona", value="".join(TEXTS), description="who I am", limit_bytes=5_000),
        NewBlock(label="human"),
        NewBlock(label=next(text for text in reversed(TEXTS) if text), value="odd"),
    ]
    saved = await acme.blocks.save("ada", new)
    assert [(block.label, block.value, block.description) for block in saved] == [
        (block.label, block.value, block.description) for block in new
    ]
    assert [block.limit_bytes for block in saved] == [5_000, world.limits.block_bytes, world.limits.block_bytes]
    assert all(block.version == 1 and block.agent == "ada" for block in saved)
    assert await acme.blocks.list("ada") == saved
    world.clock.advance(1)
    again = await acme.blocks.save(
        "ada", [NewBlock(label="goals", value="g"), NewBlock(label="human", value="Bea"), new[0]]
    )
    assert [(block.label, block.version) for block in again] == [("goals", 1), ("human", 2), ("persona", 1)]
    assert again[2] == saved[0], "an unchanged block keeps its version and times"
    assert again[1].updated_at == from_us(world.clock.now_us()) != again[1].created_at
    assert await acme.blocks.save("ada", []) == []


@contract()
async def a_save_of_all_blocks_can_require_that_nothing_has_changed(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada", display_name="Ada"))
    assert await acme.blocks.save("ada", [NewBlock(label="a")], expected=[]) != []
    read = await acme.blocks.list("ada")
    await acme.blocks.append("ada", "a", "more")
    with raises(Conflict, saying="'ada'", reason="changed"):
        await acme.blocks.save("ada", [NewBlock(label="b")], expected=read)
    with raises(Conflict):
        await acme.blocks.save("ada", [NewBlock(label="b")], expected=[])
    saved = await acme.blocks.save("ada", [NewBlock(label="b")], expected=await acme.blocks.list("ada"))
    assert [block.label for block in saved] == ["b"]


@contract()
async def single_blocks_are_changed_by_version(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada", display_name="Ada"))
    created = await acme.blocks.set("ada", "persona", "kind", description="who", limit_bytes=100, version=0)
    assert (created.value, created.description, created.limit_bytes, created.version) == ("kind", "who", 100, 1)
    assert await acme.blocks.get("ada", "persona") == created == await acme.blocks.find("ada", "persona")
    with raises(Conflict, saying=" 1", reason="version"):
        await acme.blocks.set("ada", "persona", "other", version=0)
    changed = await acme.blocks.set("ada", "persona", "kinder", version=1)
    assert (changed.value, changed.description, changed.limit_bytes, changed.version) == ("kinder", "who", 100, 2)
    assert await acme.blocks.set("ada", "persona", "kinder") == changed, "nothing differs"
    longer = await acme.blocks.append("ada", "persona", "and brief")
    assert (longer.value, longer.description, longer.version) == ("kinder\nand brief", "who", 3)
    assert (await acme.blocks.append("ada", "persona", "!", separator="")).value == "kinder\nand brief!"
    assert (await acme.blocks.append("ada", "new", "first")).value == "first"
    assert [block.label for block in await acme.blocks.list("ada")] == ["persona", "new"]
    with raises(Conflict):
        await acme.blocks.delete("ada", "persona", version=3)
    await acme.blocks.delete("ada", "persona", version=4)
    assert await acme.blocks.find("ada", "persona") is None
    for wrong in (partial(acme.blocks.get, "ada", "persona"), partial(acme.blocks.delete, "ada", "persona")):
        with raises(NotFound, noun="block", key="persona"):
            await wrong()


@contract(limits=Limits(blocks=2, block_bytes=10))
async def block_sizes_and_the_number_of_blocks_are_limited(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada", display_name="Ada"))
    created = await acme.blocks.set("ada", "small", "ééé", limit_bytes=6)
    for call in (
        partial(acme.blocks.append, "ada", "small", "x"),
        partial(acme.blocks.set, "ada", "small", "1234567"),
        partial(acme.blocks.set, "ada", "other", "12345678901"),
        partial(acme.blocks.set, "ada", "small", "x", limit_bytes=11),
        partial(acme.blocks.save, "ada", [NewBlock(label="a", value="abc", limit_bytes=2)]),
        partial(acme.blocks.save, "ada", [NewBlock(label=label) for label in "abc"]),
    ):
        with raises(LimitExceeded):
            await call()
    assert await acme.blocks.list("ada") == [created]
    await acme.blocks.set("ada", "second", "")
    with raises(LimitExceeded, limit="blocks"):
        await acme.blocks.append("ada", "third", "")
    wrong: list[Any] = [[NewBlock(label="a"), NewBlock(label="a")], [{"label": "a"}], "ab", [NewBlock(label="")]]
    for blocks in wrong:
        with raises(InvalidInput):
            await acme.blocks.save("ada", blocks)
    for number in (0, -1, True, 1.5):
        with raises(InvalidInput):
            await acme.blocks.set("ada", "small", "x", limit_bytes=number)  # type: ignore[arg-type]
    with raises(InvalidInput):
        await acme.blocks.append("ada", "small", 7)  # type: ignore[arg-type]
    for missing in (
        partial(acme.blocks.set, "unknown", "a", "x"),
        partial(acme.blocks.append, "unknown", "a", "x"),
        partial(acme.blocks.list, "unknown"),
    ):
        with raises(NotFound):
            await missing()
    with raises(NotFound):
        await acme.blocks.save("unknown", [])


@contract("concurrency")
async def no_concurrent_append_to_a_block_is_lost(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent("ada", display_name="Ada"))
    results = await world.together(*[partial(acme.blocks.append, "ada", "notes", str(number)) for number in range(16)])
    assert all(isinstance(result, Block) for result in results), results
    block = await acme.blocks.get("ada", "notes")
    assert sorted(block.value.split("\n"), key=int) == [str(number) for number in range(16)]
    assert block.version == 16
    results = await world.together(
        *[partial(acme.blocks.set, "ada", "once", str(number), version=0) for number in range(8)]
    )
    assert Counter(type(result) for result in results) == {Block: 1, Conflict: 7}, results
