"""Memories of crews: saving, search by similarity, filters and deletion."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import DimensionMismatch, InvalidInput, InvalidText, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.memory.crew_memories import SLICE_ROWS, CrewMemory
from holdfast.stores.memory.new_crew_memories import NewCrewMemory
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, raises

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def memory(id: str, **values: Any) -> NewCrewMemory:
    """A memory to save."""
    return NewCrewMemory(id=id, content=values.pop("content", f"about {id}"), **values)


def ids(results: Any) -> list[str]:
    """Return the ids of memories or matches."""
    return [(result if isinstance(result, CrewMemory) else result.memory).id for result in results]


@contract()
async def every_memory_is_stored_unchanged(world: World) -> None:
    memories = world.tenant().crew_memories
    assert await memories.find("absent") is None
    for number, text in enumerate(TEXTS):
        new = NewCrewMemory(
            id=text or "empty",
            content=text,
            scope=f"/x/{text}" if text.strip("/") else "/",
            categories=[text, "more"],
            metadata={text: [text, number, None]},
            importance=number % 11 / 10,
            source=text,
            is_private=bool(number % 2),
            embedding=[0.5, -1.25, number],
            created_at=FIRST,
            accessed_at=FIRST + timedelta(microseconds=number),
        )
        assert await memories.save([new], user=text or None, thread_id=text) == [new.id]
        loaded = await memories.find(str(new.id), user=text or None, thread_id=text)
        assert loaded is not None
        assert (loaded.content, loaded.categories, loaded.metadata) == (new.content, new.categories, new.metadata)
        assert (loaded.importance, loaded.source, loaded.is_private) == (new.importance, new.source, new.is_private)
        assert (loaded.embedding, loaded.created_at, loaded.accessed_at) == (new.embedding, FIRST, new.accessed_at)
        assert loaded.scope == "/" + new.scope.strip("/")


@contract()
async def keys_of_metadata_keep_their_order(world: World) -> None:
    memories = world.tenant().crew_memories
    metadata = {"zebra": {"b": 1, "aa": 2, "a": 3}, "a": 1, "bb": 2, "0": 3}
    (id,) = await memories.save([NewCrewMemory(content="x", metadata=metadata)])
    loaded = await memories.find(id)
    assert loaded is not None
    assert [*loaded.metadata] == [*metadata]
    assert [*loaded.metadata["zebra"]] == ["b", "aa", "a"]


@contract()
async def missing_values_of_a_memory_get_defaults(world: World) -> None:
    memories = world.tenant().crew_memories
    first, second = await memories.save([NewCrewMemory(content="a"), NewCrewMemory(content="b")])
    assert first != second
    loaded = await memories.find(first)
    assert loaded is not None
    assert (loaded.scope, loaded.categories, loaded.metadata, loaded.embedding) == ("/", [], {}, None)
    assert loaded.created_at == loaded.accessed_at == loaded.updated_at == from_us(world.clock.now_us())
    assert (loaded.source, loaded.is_private, loaded.importance) == (None, False, 0.5)
    naive = memory("naive", created_at=FIRST.replace(tzinfo=None))
    await memories.save([naive])
    without_zone = await memories.find("naive")
    assert without_zone is not None
    assert without_zone.created_at == FIRST, "a time without a time zone is in UTC"
    assert await memories.save([]) == []


@contract()
async def saving_an_existing_id_replaces_only_that_memory(world: World) -> None:
    memories = world.tenant().crew_memories
    await memories.save([memory("a", content="same words", embedding=[1, 0]) for _ in range(2)])
    await memories.save([memory("b", content="same words", embedding=[1, 0])])
    await memories.save([memory("a", content="other words", embedding=[0, 1])])
    assert sorted((entry.id, entry.content) for entry in await memories.list()) == [
        ("a", "other words"),
        ("b", "same words"),
    ]
    assert ids(await memories.search([0, 1], min_score=0.5)) == ["a"]


@contract()
async def the_most_similar_memories_come_first(world: World) -> None:
    memories = world.tenant().crew_memories
    vectors = {"same": [2, 0, 0], "near": [1, 1, 0], "far": [0, 0, 3], "against": [-1, 0, 0], "nowhere": [0, 0, 0]}
    await memories.save([memory(id, embedding=vector) for id, vector in vectors.items()])
    await memories.save([memory("without")])
    matches = await memories.search([1, 0, 0])
    assert ids(matches) == ["same", "near", "against", "far", "nowhere"], "equal scores are ordered by id"
    assert [round(match.score, 6) for match in matches] == [1.0, 0.707107, 0.0, 0.0, 0.0]
    assert ids(await memories.search([1, 0, 0], limit=1)) == ["same"]
    assert ids(await memories.search([1, 0, 0], min_score=0.7)) == ["same", "near"]
    assert ids(await memories.search([1, 0, 0], min_score=0.71)) == ["same"]
    with raises(DimensionMismatch):
        await memories.search([1, 0])


@contract()
async def a_search_compares_all_memories(world: World) -> None:
    memories = world.tenant().crew_memories
    count = SLICE_ROWS + 50
    await memories.save([memory(f"{number:05}", embedding=[1.0, number]) for number in range(count)])
    matches = await memories.search([0.0, 1.0], limit=2)
    assert ids(matches) == [f"{count - 1:05}", f"{count - 2:05}"]
    assert ids(await memories.search([1.0, 0.0], limit=2)) == ["00000", "00001"]
    assert await memories.delete(metadata={"no": "such"}) == 0
    assert await memories.delete(ids=[f"{number:05}" for number in range(count)]) == count


@contract()
async def a_scope_includes_everything_below_it_and_nothing_else(world: World) -> None:
    memories = world.tenant().crew_memories
    paths = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/a%", "/A"]
    await memories.save([memory(path, scope=path, embedding=[1]) for path in paths])
    for scope in ("/a", "a", "/a/", "a/"):
        assert sorted(ids(await memories.list(scope=scope))) == ["/a", "/a/b", "/a/b/c"], scope
    assert sorted(ids(await memories.list(scope="/a/b"))) == ["/a/b", "/a/b/c"]
    assert ids(await memories.list(scope="/a%")) == ["/a%"]
    assert sorted(ids(await memories.search([1], scope="/a"))) == ["/a", "/a/b", "/a/b/c"]
    for everything in (None, "/", "", "//"):
        assert len(await memories.list(scope=everything)) == len(paths)
    assert [(memory_scope.scope, memory_scope.count) for memory_scope in await memories.scopes(scope="/a")] == [
        ("/a", 1),
        ("/a/b", 1),
        ("/a/b/c", 1),
    ]
    assert await memories.delete(scope="/a/b") == 2
    assert sorted(ids(await memories.list())) == ["/", "/A", "/a", "/a%", "/ab"]


@contract()
async def memories_are_filtered_by_categories_and_metadata(world: World) -> None:
    memories = world.tenant().crew_memories
    await memories.save(
        [
            memory("a", categories=["fact", "fact"], metadata={"n": 1, "who": "ada"}, embedding=[1]),
            memory("b", categories=["plan", "fact"], metadata={"n": True}, embedding=[1]),
            memory("c", categories=[], metadata={"n": 1}, embedding=[1]),
        ]
    )
    assert ids(await memories.search([1], categories=["fact"])) == ["a", "b"]
    assert ids(await memories.search([1], categories=["plan", "none"])) == ["b"]
    assert ids(await memories.search([1], metadata={"n": 1})) == ["a", "c"], "true is not 1"
    assert ids(await memories.search([1], categories=["fact"], metadata={"n": 1, "who": "ada"})) == ["a"]
    assert await memories.categories() == {"fact": 2, "plan": 1}
    assert await memories.categories(scope="/elsewhere") == {}
    assert await memories.delete(categories=["fact"], metadata={"n": 1}) == 1
    assert sorted(ids(await memories.list())) == ["b", "c"]


@contract()
async def memories_are_listed_the_newest_first(world: World) -> None:
    memories = world.tenant().crew_memories
    new = [memory(f"{n}", created_at=FIRST + timedelta(days=n), scope=f"/{n % 2}") for n in range(7)]
    await memories.save([*new[3:], *new[:3]])
    assert ids(await memories.list()) == list("6543210")
    assert ids(await memories.list(limit=2, offset=3)) == ["3", "2"]
    assert ids(await memories.list(offset=99)) == []
    assert ids(await memories.list(scope="/1", limit=2, offset=1)) == ["3", "1"]
    (even, odd) = await memories.scopes()
    assert (even.scope, even.count, odd.scope, odd.count) == ("/0", 4, "/1", 3)
    assert (odd.oldest_at, odd.newest_at) == (FIRST + timedelta(days=1), FIRST + timedelta(days=5))


@contract()
async def memories_are_deleted_by_all_given_conditions(world: World) -> None:
    memories = world.tenant().crew_memories
    await memories.save([memory(f"{n}", created_at=FIRST + timedelta(days=n), scope=f"/{n % 2}") for n in range(6)])
    assert await memories.delete(older_than=FIRST) == 0
    assert await memories.delete(older_than=FIRST + timedelta(days=2), scope="/1") == 1
    assert await memories.delete(ids=["0", "1", "3", "absent"], scope="/0") == 1
    assert await memories.delete(ids=[]) == 0
    assert ids(await memories.list()) == ["5", "4", "3", "2"]
    assert await memories.delete(ids=["5"], older_than=FIRST) == 0
    assert await memories.delete() == 4
    assert await memories.list() == []


@contract()
async def touch_sets_the_time_of_the_last_use(world: World) -> None:
    memories = world.tenant().crew_memories
    await memories.save([memory("a", embedding=[1]), memory("b")])
    world.clock.advance(5)
    assert await memories.touch(["a", "absent"]) == 1
    assert await memories.touch([]) == 0
    used, other = await memories.find("a"), await memories.find("b")
    assert used is not None
    assert other is not None
    assert used.accessed_at - other.accessed_at == timedelta(seconds=5)
    assert (used.created_at, used.updated_at, used.embedding) == (other.created_at, other.updated_at, [1.0])
    await memories.save([memory("a", embedding=[1], created_at=used.created_at)])
    saved = await memories.find("a")
    assert saved is not None
    assert saved.created_at == used.created_at, "accessed_at is the given time"
    assert saved.updated_at - used.updated_at == timedelta(seconds=5), "updated_at is the time of the save"


@contract()
async def embeddings_of_another_size_are_refused_until_all_are_replaced(world: World) -> None:
    memories = world.tenant().crew_memories
    await memories.save([memory("a", embedding=[1, 0], scope="/a"), memory("b", embedding=[0, 1]), memory("none")])
    for other in ([1.0], [1, 0, 0]):
        with raises(DimensionMismatch) as refused:
            await memories.save([memory("c", embedding=other)])
        assert isinstance(refused.error, DimensionMismatch)
        assert (refused.error.stored, refused.error.given) == (2, len(other))
    with raises(DimensionMismatch):
        await memories.save([memory("c", embedding=[1, 0]), memory("d", embedding=[1])])
    await memories.save([memory("e")])
    await memories.save([memory("c", embedding=[1])], user="ada")
    await memories.save([memory("a", embedding=[1, 0, 0])], reembedding=True)
    assert await memories.dimensions() == {2: 1, 3: 1}
    for query in ([1, 0], [1, 0, 0]):
        with raises(DimensionMismatch):
            await memories.search(query)
    await memories.save([memory("b", embedding=[0, 1, 0])], reembedding=True)
    assert ids(await memories.search([1, 0, 0])) == ["a", "b"]
    assert len(await memories.list()) == 4


@contract()
async def memories_of_users_threads_and_tenants_are_separate(world: World) -> None:
    memories = world.tenant().crew_memories
    places: list[dict[str, Any]] = [{}, {"user": "ada"}, {"thread_id": "t"}, {"user": "ada", "thread_id": "t"}]
    for number, place in enumerate(places):
        await memories.save([memory("m", content=str(number), embedding=[1])], **place)
    for number, place in enumerate(places):
        assert [entry.content for entry in await memories.list(**place)] == [str(number)]
        assert [match.memory.content for match in await memories.search([1], **place)] == [str(number)]
    assert await world.tenant("zenith").crew_memories.list() == []
    assert await memories.delete(user="ada") == 1
    assert [len(await memories.list(**place)) for place in places] == [1, 0, 1, 1]


@contract(limits=Limits(embedding_floats=4, batch_rows=3))
async def invalid_memories_are_refused_and_nothing_is_saved(world: World) -> None:
    memories = world.tenant().crew_memories
    bad: Any
    for bad in ([float("nan")], [float("inf")], [1e300], ["x"], "text", 5):
        with raises(InvalidInput, field="embedding"):
            await memories.save([memory("good"), memory("a", embedding=bad)])
    with raises(LimitExceeded, limit="embedding_floats"):
        await memories.save([memory("a", embedding=[0] * 5)])
    with raises(LimitExceeded, limit="batch_rows"):
        await memories.save([memory("a")] * 4)
    with raises(LimitExceeded, limit="page_rows"):
        await memories.search([1], limit=1_001)
    for bad in (-0.1, 1.1, True, "1", float("nan")):
        with raises(InvalidInput, field="importance"):
            await memories.save([memory("a", importance=bad)])
    for values in ({"scope": 5}, {"categories": "fact"}, {"categories": [1]}, {"metadata": [1]}, {"created_at": 5}):
        with raises(InvalidInput):
            await memories.save([memory("a", **values)])
    with raises(InvalidText):
        await memories.save([memory("a", metadata={"x": object()})])
    not_memories: Any = ["text"]
    with raises(InvalidInput, field="memories"):
        await memories.save(not_memories)
    for bad in (-1, True, "1", 2**40):
        with raises(InvalidInput, field="offset"):
            await memories.list(offset=bad)
    assert await memories.list() == []


@contract()
async def memories_are_listed_by_a_substring_of_their_content(world: World) -> None:
    memories = world.tenant().crew_memories
    contents = ["Write a poem", "write code", "100% sure", "100 cents", "a_b", "axb", "ÉTÉ Été été"]
    await memories.save([NewCrewMemory(id=content, content=content) for content in contents])
    expected_by_text = {"WRITE": contents[:2], "%": ["100% sure"], "a_b": ["a_b"], "": contents, "absent": []}
    expected_by_text |= dict.fromkeys(("É", "ÉtÉ", "Été", "ÉT", "é"), contents[-1:]) | {"éTÉ": []}
    for part, expected in expected_by_text.items():
        assert sorted(entry.content for entry in await memories.list(containing=part)) == sorted(expected)
