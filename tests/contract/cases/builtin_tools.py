"""Builtin tools: seeding. ``records.py`` tests the promises of all record stores."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from msgspec import structs

from holdfast.errors import InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.tools.builtin_tools import BuiltinToolChange, NewBuiltinTool, SeedResult
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises


@contract()
async def a_seed_creates_and_describes_and_keeps_what_people_set(world: World) -> None:
    acme = world.tenant()
    tools = acme.builtin_tools
    first = [
        NewBuiltinTool("web", category="net", settings={"engine": "a"}),
        NewBuiltinTool("read", settings={}, is_enabled=False),
        NewBuiltinTool("exec"),
    ]
    assert await tools.seed(first) == SeedResult(["web", "read", "exec"], [], [])
    logged = await acme.activity.count()
    assert await tools.seed(first) == SeedResult([], [], [])
    assert await acme.activity.count() == logged, "nothing differs"
    await tools.update("web", change=BuiltinToolChange(is_enabled=False, settings={"engine": "b"}))
    described = [
        NewBuiltinTool("web", "Web search", "Searches", "net", {"engine": "c"}, ["key"], {"icon": "w"}),
        NewBuiltinTool("read", settings={"root": "/"}, is_enabled=True),
    ]
    before = await tools.get("web")
    world.clock.advance(1)
    with acme.acting(agent="program"):
        assert await tools.seed(described) == SeedResult([], ["web", "read"], [])
    web = await tools.get("web")
    assert structs.asdict(web) == structs.asdict(before) | {
        "display_name": "Web search", "description": "Searches", "requires": ["key"], "metadata": {"icon": "w"},
        "version": before.version + 1, "updated_at": web.updated_at,
    }  # fmt: skip
    assert web.updated_at > before.updated_at
    read = await tools.get("read")
    assert (read.settings, read.is_enabled) == ({"root": "/"}, False), "settings that were empty are set"
    entries = (await acme.activity.list(limit=2))[::-1]
    assert [(entry.action, entry.subject_id, entry.actor) for entry in entries] == [
        ("builtin_tool.changed", "web", "program"),
        ("builtin_tool.changed", "read", "program"),
    ]
    assert [entry.details["fields"] for entry in entries] == [
        ["display_name", "description", "requires", "metadata"],
        ["settings"],
    ]
    assert [tool.name for tool in await tools.list()] == ["exec", "read", "web"], "by category and name"
    assert [tool.name for tool in await tools.list_enabled()] == ["exec"]
    assert await tools.settings("web") == {"engine": "b"}
    with raises(NotFound, noun="builtin tool", key="missing"):
        await tools.settings("missing")


@contract()
async def only_a_seed_with_prune_removes_tools(world: World) -> None:
    acme = world.tenant()
    tools = acme.builtin_tools
    await tools.seed([NewBuiltinTool("a"), NewBuiltinTool("b"), NewBuiltinTool("c")])
    await world.tenant("zenith").builtin_tools.seed([NewBuiltinTool("a")])
    assert await tools.seed([NewBuiltinTool("b")]) == SeedResult([], [], [])
    assert await tools.count() == 3
    with raises(InvalidInput, field="tools"):
        await tools.seed([])
    assert await tools.seed([NewBuiltinTool("b"), NewBuiltinTool("d")], prune=True) == SeedResult(["d"], [], ["a", "c"])
    assert [tool.name for tool in await tools.list()] == ["b", "d"]
    actions = [entry.action.rpartition(".")[2] for entry in await acme.activity.list(limit=3)]
    assert Counter(actions) == {"deleted": 2, "created": 1}
    assert await tools.seed([], prune=True) == SeedResult([], [], ["b", "d"])
    assert await tools.list() == []
    assert await world.tenant("zenith").builtin_tools.count() == 1


@contract(limits=Limits(builtin_tools=2, name_bytes=30))
async def a_refused_seed_changes_nothing(world: World) -> None:
    tools = world.tenant().builtin_tools
    await tools.seed([NewBuiltinTool("a")])
    wrong: list[tuple[Any, type[InvalidInput], str]] = [
        ("a", InvalidInput, "tools"),
        (None, InvalidInput, "tools"),
        ([{"name": "b"}], InvalidInput, "new"),
        ([NewBuiltinTool("b"), NewBuiltinTool("b")], InvalidInput, "tools"),
        ([NewBuiltinTool(["b"])], InvalidInput, "name of a builtin tool"),  # type: ignore[arg-type]
        ([NewBuiltinTool("b"), NewBuiltinTool("x" * 31)], LimitExceeded, "name of a builtin tool"),
        ([NewBuiltinTool(name) for name in "bcd"], LimitExceeded, "tools"),
    ]
    for tools_given, error, field in wrong:
        with raises(error, field=field):
            await tools.seed(tools_given, prune=True)
    assert [tool.name for tool in await tools.list()] == ["a"]


@contract("concurrency")
async def seeds_at_the_same_time_agree(world: World) -> None:
    tools = world.tenant().builtin_tools
    seeds = [NewBuiltinTool(name, description=name) for name in ("a", "b", "c")]
    results = await world.together(*[partial(tools.seed, seeds)] * 8)
    seeded = [result for result in results if isinstance(result, SeedResult)]
    assert len(seeded) == 8, results
    assert Counter(name for result in seeded for name in result.created) == {"a": 1, "b": 1, "c": 1}
    assert [tool.version for tool in await tools.list()] == [1, 1, 1]
