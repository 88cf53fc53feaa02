"""The activity log: entries are recorded once, found by actor and object, and never changed."""

from __future__ import annotations

from typing import Any

from holdfast.clock import from_us
from holdfast.core.filters import column, meta
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, InvalidText, LimitExceeded, NotFound
from holdfast.limits import Limits
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS, documents, same
from tests.contract.cases.world import World, flat, raises, uuid_of


@contract()
async def an_entry_is_recorded_once_and_unchanged(world: World) -> None:
    acme = world.tenant()
    details = {"size_bytes": 7, "path": ["a", None]}
    created = await acme.activity.record(
        "checkpoint.deleted", actor="ada", subject_kind="run", subject_id="r1", reason="erasure", details=details
    )
    assert (created.action, created.actor, created.subject_kind, created.subject_id) == (
        "checkpoint.deleted",
        "ada",
        "run",
        "r1",
    )
    assert (created.reason, created.details, created.created_at) == ("erasure", details, from_us(world.clock.now_us()))
    assert await acme.activity.get(created.id.upper()) == created
    bare = await acme.activity.record("looked")
    assert (bare.actor, bare.subject_kind, bare.subject_id, bare.reason, bare.details) == ("", "", "", "", {})
    with acme.acting(user="grace"):
        assert (await acme.activity.record("looked")).actor == "grace"
    with raises(NotFound, key=created.id):
        await world.tenant("zenith").activity.get(created.id)
    with raises(NotFound):
        await acme.activity.get(uuid_of("missing"))
    assert await acme.activity.count() == 3
    assert await world.tenant("zenith").activity.list() == []
    await _again_under_the_same_id(world)
    await _every_text(world)


async def _again_under_the_same_id(world: World) -> None:
    activity, id = world.tenant("again").activity, uuid_of("deed")
    first = await activity.record("looked", actor="ada", details={"n": 1}, id=id)
    world.clock.advance(5)
    assert await activity.record("looked", actor="ada", details={"n": 1}, id=id) == first
    for other in ({"actor": "bob"}, {"details": {"n": 2}}, {"details": {"n": True}}, {"reason": "why"}):
        with raises(Conflict, saying=id, reason="other_content"):
            await activity.record("looked", **{"actor": "ada", "details": {"n": 1}, "id": id, **other})  # type: ignore[arg-type]
    assert await activity.count() == 1


async def _every_text(world: World) -> None:
    activity = world.tenant("texts").activity
    for text in TEXTS:
        if not text or len(text) > 200:
            continue
        created = await activity.record(text, actor=text, subject_kind=text, subject_id=text, reason=text)
        assert (created.action, created.actor, created.subject_kind, created.subject_id, created.reason) == (text,) * 5
        assert created in await activity.list(actor=text, action=text, subject_kind=text, subject_id=text)
    created = await activity.record("looked", details=documents())
    assert same((await activity.get(created.id)).details, documents())


@contract()
async def the_log_is_listed_newest_first_and_filtered_in_a_closed_language(world: World) -> None:
    activity = world.tenant().activity
    entries = []
    for number in range(7):
        entries.append(await activity.record("a" if number % 2 else "b", actor="ada", subject_id=str(number)))
        world.clock.advance(number % 3)  # some at the same time
    newest = sorted(entries, key=lambda entry: (entry.created_at, entry.id), reverse=True)
    assert await activity.list() == newest
    pages, cursor = [], None
    while True:
        page = await activity.list(limit=3, cursor=cursor)
        pages.append(page)
        cursor = page.next
        if cursor is None:
            break
    assert [len(page) for page in pages] == [3, 3, 1]
    assert flat(pages) == newest
    for entry in GARBAGE_CURSORS:
        with raises(InvalidFilter):
            await activity.list(limit=3, cursor=entry)
    await _filtered(world)


async def _filtered(world: World) -> None:
    activity = world.tenant("filtered").activity
    one = await activity.record("x.done", actor="ada", subject_kind="run", subject_id="1", details={"n": 1})
    world.clock.advance(1)
    two = await activity.record("x.done", actor="bob", subject_kind="run", subject_id="2", reason="why")
    other = await activity.record("y.done", actor="ada", subject_kind="session", subject_id="1")
    cases: list[tuple[dict[str, Any], list[Any]]] = [
        ({"actor": "ada"}, [one, other]),
        ({"action": "x.done"}, [one, two]),
        ({"subject_kind": "run"}, [one, two]),
        ({"subject_kind": "run", "subject_id": "2"}, [two]),
        ({"subject_id": "1"}, [one, other]),
        ({"actor": "ada", "action": "x.done"}, [one]),
        ({"where": [column("reason").eq("why")]}, [two]),
        ({"where": [meta("n").eq(1)]}, [one]),
        ({"where": [column("created_at").ge(two.created_at)]}, [two, other]),
        ({"where": [column("id").is_in([one.id, two.id])]}, [one, two]),
        ({"actor": ""}, []),
    ]
    for arguments, expected in cases:
        assert {entry.id for entry in await activity.list(**arguments)} == {item.id for item in expected}, arguments
        assert await activity.count(**arguments) == len(expected), arguments
    for wrong in (column("details").eq(1), column("tenant_id").eq("zenith"), column("action").eq(7)):
        with raises(InvalidFilter):
            await activity.list(where=[wrong])
        with raises(InvalidFilter):
            await activity.count(where=[wrong])


@contract(limits=Limits(name_bytes=8, key_bytes=9, text_bytes=10, metadata_bytes=20, list_rows=3))
async def activity_has_limits(world: World) -> None:
    activity = world.tenant().activity
    over: list[tuple[tuple[str, int], dict[str, Any]]] = [
        (("name_bytes", 8), {"actor": "a" * 9}),
        (("name_bytes", 8), {"subject_kind": "a" * 9}),
        (("key_bytes", 9), {"subject_id": "a" * 10}),
        (("text_bytes", 10), {"reason": "a" * 11}),
        (("metadata_bytes", 20), {"details": {"a": "b" * 20}}),
    ]
    for (limit, maximum), arguments in over:
        with raises(LimitExceeded, limit=limit, maximum=maximum):
            await activity.record("x", **arguments)
    with raises(LimitExceeded, limit="name_bytes", maximum=8):
        await activity.record("x" * 9)
    wrong: list[tuple[Any, dict[str, Any]]] = [("", {}), (7, {}), ("x", {"actor": 7}), ("x", {"details": []})]
    wrong += [("x", {"details": {1: 2}}), ("x", {"id": "no id"}), ("x", {"reason": None})]
    for action, arguments in wrong:
        if arguments == {"details": []}:
            continue  # empty values are not stored
        with raises(InvalidInput):
            await activity.record(action, **arguments)
    with raises(InvalidText):
        await activity.record("x", details={"a": object()})
    assert await activity.count() == 0
    for _ in range(4):
        await activity.record("x")
    with raises(LimitExceeded, limit="list_rows", maximum=3):
        await activity.list()
    assert len(await activity.list(limit=3)) == 3
