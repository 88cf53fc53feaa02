"""Flows: the newest state is the one to resume from, and feedback stays pending until it is cleared."""

from __future__ import annotations

from typing import Any

from holdfast.clock import from_us
from holdfast.errors import InvalidFilter, InvalidInput, InvalidText, LimitExceeded
from holdfast.limits import Limits
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, raises


@contract()
async def the_newest_state_of_a_flow_is_found(world: World) -> None:
    flows = world.tenant().flows
    assert await flows.find("f") is None
    saved = await flows.save("f", method="begin", state={"id": "f", "n": 1})
    assert (saved.flow_uuid, saved.method, saved.seq, saved.state) == ("f", "begin", 1, {"id": "f", "n": 1})
    world.clock.advance(1)
    later = await flows.save("f", method="end", state={"n": 2})
    assert later.updated_at == from_us(world.clock.now_us())
    assert await flows.find("f") == later
    repeated = await flows.save("f", method="begin", state={"n": 3})
    assert await flows.find("f") == repeated, "a method that runs again saves the newest state"
    assert repeated.seq == 3


@contract()
async def the_newest_state_after_each_method_is_kept(world: World) -> None:
    flows = world.tenant().flows
    assert await flows.history("f") == []
    for number in range(6):
        await flows.save("f", method=("begin", "middle", "end")[number % 3], state={"n": number})
    await flows.save("f", method="middle", state={"n": 6})
    states = [(state.method, state.seq, state.state["n"]) for state in await flows.history("f")]
    assert states == [("middle", 7, 6), ("end", 6, 5), ("begin", 4, 3)]


@contract()
async def a_state_is_stored_unchanged(world: World) -> None:
    flows = world.tenant().flows
    state: dict[str, Any] = {"texts": list(TEXTS), "nested": {"": [1, 2.5, True, None, {"a.b": "$"}]}, "large": 1e300}
    for number, name in enumerate(text for text in TEXTS if text):
        await flows.save(name, method=name, state={**state, "n": number}, thread_id=name, user=name)
        saved = await flows.find(name, thread_id=name, user=name)
        assert saved is not None
        assert (saved.flow_uuid, saved.method, saved.thread_id, saved.state) == (
            name,
            name,
            name,
            {**state, "n": number},
        )


@contract()
async def keys_of_a_state_keep_their_order(world: World) -> None:
    flows = world.tenant().flows
    state = {"zebra": {"b": 1, "aa": 2, "a": 3}, "a": 1, "bb": 2}
    await flows.save("f", method="m", state=state, feedback=state)
    saved, pending = await flows.find("f"), await flows.pending("f")
    assert saved is not None
    assert pending is not None
    for stored_state in (saved.state, pending.state, pending.context):
        assert [*stored_state] == ["zebra", "a", "bb"]
        assert [*stored_state["zebra"]] == ["b", "aa", "a"]


@contract()
async def users_and_threads_have_separate_flows(world: World) -> None:
    flows = world.tenant().flows
    owners: list[dict[str, Any]] = [{}, {"user": "ada"}, {"thread_id": "t"}, {"user": "ada", "thread_id": "t"}]
    for number, owner in enumerate(owners):
        await flows.save("f", method="m", state={"n": number}, feedback={"n": number}, **owner)
    for number, owner in enumerate(owners):
        saved, pending = await flows.find("f", **owner), await flows.pending("f", **owner)
        assert saved is not None
        assert pending is not None
        assert (saved.state["n"], pending.context["n"]) == (number, number)
    assert await flows.find("f", user="bob") is None
    assert await world.tenant("zenith").flows.find("f") is None
    assert await flows.delete("f", user="ada") is True
    assert [await flows.find("f", **owner) is None for owner in owners] == [False, True, False, False]


@contract()
async def feedback_is_pending_until_it_is_cleared(world: World) -> None:
    flows = world.tenant().flows
    assert await flows.pending("f") is None
    await flows.save("f", method="ask", state={"n": 1}, feedback={"message": "ok?"})
    first = await flows.pending("f")
    assert first is not None
    assert (first.flow_uuid, first.context, first.state) == ("f", {"message": "ok?"}, {"n": 1})
    assert first.asked_at == from_us(world.clock.now_us())
    await flows.save("f", method="ask", state={"n": 2})
    unchanged = await flows.pending("f")
    assert unchanged == first, "a later state changes neither the question nor its state"
    newest = await flows.find("f")
    assert newest is not None
    assert newest.state == {"n": 2}
    await flows.save("f", method="ask", state={"n": 3}, feedback={"message": "really?"})
    second = await flows.pending("f")
    assert second is not None
    assert (second.context, second.state) == ({"message": "really?"}, {"n": 3})
    assert await flows.clear_pending("f") is True
    assert await flows.clear_pending("f") is False
    assert await flows.pending("f") is None
    assert len(await flows.history("f")) == 1


@contract()
async def flows_are_listed_the_one_saved_last_first(world: World) -> None:
    flows = world.tenant().flows
    for name in ("a", "b", "c", "d"):
        world.clock.advance(1)
        await flows.save(name, method="m", state={}, feedback={} if name in "bd" else None, thread_id=name[0] * 2)
    await flows.save("e", method="m", state={}, user="ada")
    world.clock.advance(1)
    await flows.save("a", method="m", state={}, thread_id="aa")
    assert [flow.flow_uuid for flow in await flows.list()] == ["a", "d", "c", "b"]
    assert [flow.flow_uuid for flow in await flows.list(is_pending=True)] == ["d", "b"]
    assert [flow.flow_uuid for flow in await flows.list(is_pending=False)] == ["a", "c"]
    assert [flow.flow_uuid for flow in await flows.list(thread_id="cc")] == ["c"]
    assert [flow.flow_uuid for flow in await flows.list(user="ada")] == ["e"]
    first = await flows.list(limit=3)
    assert [flow.flow_uuid for flow in first] == ["a", "d", "c"]
    assert first[0].seq == 2
    rest = await flows.list(limit=3, cursor=first.next)
    assert ([flow.flow_uuid for flow in rest], rest.next) == (["b"], None)
    with raises(InvalidFilter):
        await flows.list(cursor="nonsense")


@contract()
async def a_deleted_flow_leaves_nothing(world: World) -> None:
    flows = world.tenant().flows
    await flows.save("f", method="m", state={"n": 1}, feedback={})
    assert await flows.delete("f") is True
    assert await flows.delete("f") is False
    assert await flows.find("f") is None
    assert await flows.pending("f") is None
    assert await flows.history("f") == []
    again = await flows.save("f", method="other", state={})
    assert (again.seq, len(await flows.history("f"))) == (1, 1)


@contract("concurrency")
async def concurrent_saves_get_consecutive_numbers(world: World) -> None:
    flows = world.tenant().flows

    def save(number: int) -> Any:
        return lambda: flows.save("f", method=f"m{number}", state={"n": number})

    saved = await world.together(*(save(number) for number in range(12)))
    assert sorted(state.seq for state in saved if not isinstance(state, Exception)) == list(range(1, 13))
    newest = await flows.find("f")
    assert newest is not None
    assert newest in saved
    assert newest.seq == 12


@contract(limits=Limits(state_bytes=100, json_depth=5))
async def invalid_states_are_refused(world: World) -> None:
    flows = world.tenant().flows
    bad: Any
    for bad in (None, [1], "text", {1: 2}):
        with raises(InvalidInput, field="state"):
            await flows.save("f", method="m", state=bad)
    with raises(InvalidText):
        await flows.save("f", method="m", state={"x": object()})
    with raises(LimitExceeded, field="state", limit="state_bytes"):
        await flows.save("f", method="m", state={"x": "y" * 100})
    with raises(LimitExceeded, field="feedback", limit="state_bytes"):
        await flows.save("f", method="m", state={}, feedback={"x": "y" * 100})
    with raises(InvalidInput, field="flow uuid"):
        await flows.save("", method="m", state={})
    with raises(InvalidInput, field="method"):
        await flows.save("f", method="", state={})
    assert await flows.list() == []
