"""Crew memories: search, lists, counts and deletion, compared with a model that checks each memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, Limits, TenantHandle
from holdfast.clock import FixedClock, from_us
from holdfast.errors import InvalidInput, InvalidText, LimitExceeded
from holdfast.stores.memory import similarity
from holdfast.stores.memory.crew_memories import CrewMemory, CrewMemoryMatch
from holdfast.stores.memory.new_crew_memories import NewCrewMemory
from tests.errors import raises

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
CLOCK = FixedClock()


@pytest.fixture(scope="module")
def opened() -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=CLOCK, limits=Limits(page_rows=200, batch_rows=20, key_bytes=20)) as hf:
        yield hf


@pytest.fixture
def acme(opened: Holdfast, request: pytest.FixtureRequest) -> TenantHandle:
    """Return a new tenant for each test."""
    return opened.tenant(request.node.name[:200])


def new(id: str, **values: Any) -> NewCrewMemory:
    return NewCrewMemory(id=id, content=values.pop("content", id), **values)


def ids(results: Any) -> list[str]:
    return [(result.memory if isinstance(result, CrewMemoryMatch) else result).id for result in results]


# Embeddings


@pytest.mark.parametrize("no_embedding", [[], (), None], ids=["list", "tuple", "none"])
def test_no_search_finds_a_memory_without_an_embedding(acme: TenantHandle, no_embedding: Any) -> None:
    acme.crew_memories.save([new("without"), new("with", embedding=[1.0])])
    assert acme.crew_memories.search(no_embedding) == []
    assert ids(acme.crew_memories.search([1.0])) == ["with"]
    assert ids(acme.crew_memories.list()) == ["without", "with"]


@pytest.mark.parametrize(
    "embedding",
    ["text", b"bytes", {1.0}, 5, ["1"], [None], [1e39], [10**400], [math.nan], [-math.inf]],
    ids=["text", "bytes", "set", "number", "digits", "null", "large", "whole", "nan", "infinite"],
)
def test_an_invalid_embedding_is_neither_saved_nor_searched(acme: TenantHandle, embedding: Any) -> None:
    with raises(InvalidInput, field="embedding"):
        acme.crew_memories.save([new("a", embedding=embedding)])
    with raises(InvalidInput, field="embedding"):
        acme.crew_memories.search(embedding)
    assert acme.crew_memories.list() == []


def test_the_dimensions_of_an_embedding_are_limited() -> None:
    limits = Limits(embedding_floats=3)
    assert similarity.pack([1, 2, 3], limits) == similarity.pack((1.0, 2.0, 3.0), limits)
    with raises(LimitExceeded, field="embedding", limit="embedding_floats", maximum=3):
        similarity.pack([1, 2, 3, 4], limits)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=6))
@settings(max_examples=40)
def test_floats_of_32_bits_are_stored_unchanged(numbers: list[float]) -> None:
    packed = similarity.pack(numbers, Limits())
    assert len(packed) == 4 * len(numbers)
    assert similarity.unpack(packed) == numbers


@pytest.mark.parametrize(
    ("one", "other", "score"),
    [
        ([1, 0], [2, 0], 1.0),
        ([1, 0], [0, 3], 0.0),
        ([1, 0], [-1, 0], -1.0),
        ([0, 0], [1, 0], 0.0),
        ([1, 0], [0, 0], 0.0),
        ([1, 1], [1, 0], math.sqrt(0.5)),
        ([3e38, 3e38], [3e38, 3e38], 1.0),
        ([1e-40, 0], [1e-40, 0], 1.0),
    ],
    ids=["same", "orthogonal", "opposite", "from-zero", "to-zero", "half", "large", "small"],
)
def test_similarity_is_the_cosine_with_and_without_numpy(one: list[float], other: list[float], score: float) -> None:
    query, rows = similarity.pack(one, Limits()), [similarity.pack(other, Limits())]
    assert similarity.cosines(query, rows) == pytest.approx([score])
    assert similarity._cosines_in_python(query, rows) == pytest.approx([score])
    assert similarity.cosines(query, []) == similarity._cosines_in_python(query, []) == []


def test_equally_similar_memories_are_ordered_by_id(acme: TenantHandle) -> None:
    acme.crew_memories.save([new(id, embedding=[1.0, 0.0]) for id in ("c", "a", "é", "b", "\x00")])
    assert ids(acme.crew_memories.search([2.0, 0.0])) == ["a", "b", "c", "é", "\x00"]
    assert ids(acme.crew_memories.search([2.0, 0.0], limit=2)) == ["a", "b"]


def test_the_score_of_an_opposite_embedding_is_zero(acme: TenantHandle) -> None:
    acme.crew_memories.save([new("against", embedding=[-1.0]), new("along", embedding=[1.0])])
    matches = acme.crew_memories.search([1.0])
    assert [(match.memory.id, match.score) for match in matches] == [("along", 1.0), ("against", 0.0)]
    assert ids(acme.crew_memories.search([1.0], min_score=1e-9)) == ["along"]
    assert ids(acme.crew_memories.search([1.0], min_score=1)) == ["along"]
    assert acme.crew_memories.search([1.0], min_score=1.1) == []
    assert len(acme.crew_memories.search([1.0], min_score=-1)) == 2


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        ({"limit": None}, InvalidInput),
        ({"limit": 0}, InvalidInput),
        ({"limit": True}, InvalidInput),
        ({"limit": 201}, LimitExceeded),
        ({"min_score": "1"}, InvalidInput),
        ({"min_score": None}, InvalidInput),
        ({"min_score": True}, InvalidInput),
        ({"categories": "fact"}, InvalidInput),
        ({"categories": [["fact"]]}, InvalidInput),
        ({"categories": [1]}, InvalidInput),
        ({"categories": {"fact"}}, InvalidInput),
        ({"metadata": [("a", 1)]}, InvalidInput),
        ({"scope": 5}, InvalidInput),
        ({"scope": "/" + "x" * 20}, LimitExceeded),
        ({"user": ""}, InvalidInput),
        ({"thread_id": None}, InvalidInput),
        ({"thread_id": "x" * 21}, LimitExceeded),
    ],
    ids=repr,
)
def test_invalid_search_arguments_are_refused(acme: TenantHandle, condition: Any, error: type[Exception]) -> None:
    acme.crew_memories.save([new("a", embedding=[1.0])])
    with pytest.raises(error):
        acme.crew_memories.search([1.0], **condition)


@pytest.mark.parametrize(
    "condition", [{"limit": None}, {"limit": 0}, {"limit": "5"}, {"offset": None}, {"containing": 5}], ids=repr
)
def test_invalid_list_arguments_are_refused(acme: TenantHandle, condition: Any) -> None:
    with pytest.raises(InvalidInput):
        acme.crew_memories.list(**condition)


# Scopes

PATHS = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/a b", "/a-b", "/a.b", "/a0", "/é", "/a/é", "/\x00"]


@pytest.mark.parametrize("asked", [None, "", "/", "//", "a", "/a/", "/a/b", "/ab", "/é", "/\x00", "/nothing"], ids=repr)
def test_a_scope_includes_itself_and_everything_below_it(acme: TenantHandle, asked: str | None) -> None:
    acme.crew_memories.save([new(path, scope=path, embedding=[1.0]) for path in PATHS])
    root = "/" + (asked or "").strip("/")
    expected = sorted(path for path in PATHS if root == "/" or path == root or path.startswith(f"{root}/"))
    assert sorted(ids(acme.crew_memories.list(scope=asked))) == expected
    assert sorted(ids(acme.crew_memories.search([1.0], scope=asked, limit=50))) == expected
    assert sorted(memory_scope.scope for memory_scope in acme.crew_memories.scopes(scope=asked)) == expected
    assert acme.crew_memories.dimensions(scope=asked) == ({1: len(expected)} if expected else {})
    assert acme.crew_memories.delete(scope=asked) == len(expected)
    assert sorted(ids(acme.crew_memories.list())) == sorted(set(PATHS) - set(expected))


def test_scopes_have_counts_and_the_oldest_and_newest_times(acme: TenantHandle) -> None:
    moments = [FIRST + timedelta(days=day) for day in (3, 1, 2)]
    acme.crew_memories.save([new(str(n), scope="x", created_at=at) for n, at in enumerate(moments)])
    (memory_scope,) = acme.crew_memories.scopes()
    assert (memory_scope.scope, memory_scope.count, memory_scope.oldest_at, memory_scope.newest_at) == (
        "/x",
        3,
        moments[1],
        moments[0],
    )


# Categories and metadata

CHOSEN: list[tuple[dict[str, Any], Callable[[CrewMemory], bool]]] = [
    ({"categories": ["fact"]}, lambda memory: "fact" in memory.categories),
    ({"categories": ["fact", "plan"]}, lambda memory: bool({"fact", "plan"} & set(memory.categories))),
    ({"categories": ["\x00"]}, lambda memory: "\x00" in memory.categories),
    ({"categories": ["nothing"]}, lambda memory: False),
    ({"metadata": {"n": 1}}, lambda memory: memory.id in ("one", "both")),
    ({"metadata": {"n": 1.0}}, lambda memory: memory.id == "float"),
    ({"metadata": {"n": True}}, lambda memory: memory.id == "true"),
    ({"metadata": {"n": None}}, lambda memory: memory.id == "null"),
    ({"metadata": {"n": 1, "m": [2]}}, lambda memory: memory.id == "both"),
    ({"metadata": {"absent": None}}, lambda memory: False),
    ({"metadata": {"n": 1}, "categories": ["fact"]}, lambda memory: memory.id == "one"),
]
MEMORIES = [
    new("one", categories=["fact", "fact"], metadata={"n": 1}, embedding=[1.0]),
    new("float", categories=["plan"], metadata={"n": 1.0}, embedding=[1.0]),
    new("true", categories=["\x00"], metadata={"n": True}, embedding=[1.0]),
    new("null", categories=["fact", "plan"], metadata={"n": None}, embedding=[1.0]),
    new("both", metadata={"n": 1, "m": [2]}, embedding=[1.0]),
    new("bare", embedding=[1.0]),
]


@pytest.mark.parametrize(("condition", "fits"), CHOSEN, ids=[repr(condition) for condition, _ in CHOSEN])
def test_filters_compare_values_and_their_types(
    acme: TenantHandle, condition: dict[str, Any], fits: Callable[[CrewMemory], bool]
) -> None:
    acme.crew_memories.save(MEMORIES)
    expected = sorted(memory.id for memory in acme.crew_memories.list() if fits(memory))
    assert sorted(ids(acme.crew_memories.search([1.0], limit=50, **condition))) == expected
    assert acme.crew_memories.delete(**condition) == len(expected)
    assert acme.crew_memories.delete(**condition) == 0
    assert not set(ids(acme.crew_memories.list())) & set(expected)


def test_a_repeated_category_counts_a_memory_once(acme: TenantHandle) -> None:
    acme.crew_memories.save(MEMORIES)
    assert acme.crew_memories.categories() == {"\x00": 1, "fact": 2, "plan": 2}
    assert list(acme.crew_memories.categories()) == ["\x00", "fact", "plan"]
    assert acme.crew_memories.categories(scope="/nowhere") == {}


# Deleting


def test_ids_restrict_a_deletion_and_an_empty_list_deletes_nothing(acme: TenantHandle) -> None:
    acme.crew_memories.save(MEMORIES)
    assert acme.crew_memories.delete(ids=[]) == 0
    assert acme.crew_memories.delete(ids=["absent"]) == 0
    assert acme.crew_memories.delete(ids=["one", "bare"], categories=["fact"]) == 1
    assert acme.crew_memories.delete(ids=["both", "both"]) == 1
    assert acme.crew_memories.delete(ids=["float"], scope="/elsewhere") == 0
    assert sorted(ids(acme.crew_memories.list())) == ["bare", "float", "null", "true"]


@pytest.mark.parametrize(
    ("older_than", "left"),
    [
        (FIRST, ["0", "1", "2"]),
        (FIRST + timedelta(microseconds=1), ["1", "2"]),
        (FIRST.replace(tzinfo=None) + timedelta(days=1), ["1", "2"]),
        (FIRST.astimezone(timezone(timedelta(hours=9))) + timedelta(days=1, microseconds=1), ["2"]),
        (datetime.max.replace(tzinfo=UTC), []),
        (datetime.min.replace(tzinfo=UTC), ["0", "1", "2"]),
    ],
    ids=["the-first-itself", "a-microsecond-later", "without-a-zone", "elsewhere", "the-end", "the-beginning"],
)
def test_older_than_compares_the_creation_time(acme: TenantHandle, older_than: datetime, left: list[str]) -> None:
    acme.crew_memories.save([new(str(n), created_at=FIRST + timedelta(days=n)) for n in range(3)])
    assert acme.crew_memories.delete(older_than=older_than) == 3 - len(left)
    assert sorted(ids(acme.crew_memories.list())) == left


@pytest.mark.parametrize(
    "condition",
    [{"ids": "one"}, {"ids": 5}, {"ids": [""]}, {"ids": [7]}, {"ids": ["x"] * 21}, {"older_than": "2026"},
     {"older_than": 5}, {"older_than": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))},
     {"categories": "fact"}, {"categories": [7]}, {"metadata": "x"}, {"user": 7}],
    ids=lambda condition: repr(condition)[:30],
)  # fmt: skip
def test_invalid_deletion_arguments_are_refused(acme: TenantHandle, condition: Any) -> None:
    acme.crew_memories.save([new("one")])
    with pytest.raises(InvalidInput):
        acme.crew_memories.delete(**condition)
    assert ids(acme.crew_memories.list()) == ["one"]


# Saving


def test_pages_by_offset_cover_the_whole_list(acme: TenantHandle) -> None:
    acme.crew_memories.save([new(f"{n:02}", created_at=FIRST + timedelta(hours=n // 3)) for n in range(10)])
    whole = ids(acme.crew_memories.list())
    assert whole == sorted(whole, reverse=True)
    parts = [ids(acme.crew_memories.list(limit=4, offset=offset)) for offset in (0, 4, 8, 12)]
    assert [len(part) for part in parts] == [4, 4, 2, 0]
    assert [id for part in parts for id in part] == whole


@pytest.mark.parametrize(
    "values",
    [{"importance": -0.0001}, {"importance": None}, {"importance": 10**400}, {"source": 7}, {"categories": None},
     {"categories": {"a": 1}}, {"metadata": {1: 2}}, {"scope": None}, {"content": None}, {"content": b"x"}, {"id": 7},
     {"accessed_at": "now"}, {"created_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))}],
    ids=lambda values: repr(values)[:30],
)  # fmt: skip
def test_one_invalid_memory_fails_the_whole_save(acme: TenantHandle, values: dict[str, Any]) -> None:
    bad = NewCrewMemory(**{"content": "x", "id": "bad", **values})
    with pytest.raises((InvalidInput, InvalidText)):
        acme.crew_memories.save([new("good"), bad])
    assert acme.crew_memories.list() == []


@pytest.mark.parametrize("importance", [0, 1, 0.0, 1.0, 0.1 + 0.2, 5e-324])
def test_importance_is_a_number_from_zero_to_one(acme: TenantHandle, importance: float) -> None:
    acme.crew_memories.save([new("a", importance=importance)])
    memory = acme.crew_memories.find("a")
    assert memory is not None
    assert (memory.importance, type(memory.importance)) == (importance, float)


@pytest.mark.parametrize("id", ["\x00", "\ud800", "é", "\U0010f801", "'"], ids=repr)
def test_any_id_can_be_touched_and_deleted(acme: TenantHandle, id: str) -> None:
    acme.crew_memories.save([new(id, categories=["x"]), new("other")])
    assert acme.crew_memories.touch([id]) == 1
    assert acme.crew_memories.delete(ids=[id], categories=["x"]) == 1
    acme.crew_memories.save([new(id)])
    assert acme.crew_memories.delete(ids=[id]) == 1
    assert ids(acme.crew_memories.list()) == ["other"]


def test_touch_changes_only_the_access_time_of_existing_memories(acme: TenantHandle) -> None:
    acme.crew_memories.save([new("a"), new("b")])
    before = acme.crew_memories.find("b")
    CLOCK.advance(5)
    assert acme.crew_memories.touch(["a", "a", "absent"]) == 1
    assert acme.crew_memories.touch([]) == 0
    assert acme.crew_memories.touch(["a"], user="another") == 0
    memory = acme.crew_memories.find("a")
    assert memory is not None
    assert memory.accessed_at == from_us(CLOCK.now_us())
    assert memory.created_at < memory.accessed_at
    assert acme.crew_memories.find("b") == before
    with raises(InvalidInput, field="ids"):
        acme.crew_memories.touch("a")


def test_the_last_of_two_memories_with_one_id_is_saved(acme: TenantHandle) -> None:
    assert acme.crew_memories.save([new("a", content="first"), new("a", content="last")]) == ["a", "a"]
    (memory,) = acme.crew_memories.list()
    assert memory.content == "last"
    assert acme.crew_memories.save([]) == []
