"""Which memories of a crew are found, listed, counted and forgotten, beside a model that looks at each of them."""

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
from holdfast.stores.memory.crew_memories import CrewMemory, CrewMemoryMatch, NewCrewMemory
from tests.errors import raises

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
CLOCK = FixedClock()


@pytest.fixture(scope="module")
def opened() -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=CLOCK, limits=Limits(page_rows=200, batch_rows=20, key_bytes=20)) as hf:
        yield hf


@pytest.fixture
def acme(opened: Holdfast, request: pytest.FixtureRequest) -> TenantHandle:
    """A tenant of the test's own."""
    return opened.tenant(request.node.name[:200])


def new(id: str, **values: Any) -> NewCrewMemory:
    return NewCrewMemory(id=id, content=values.pop("content", id), **values)


def ids(found: Any) -> list[str]:
    return [(each.memory if isinstance(each, CrewMemoryMatch) else each).id for each in found]


# Embeddings


@pytest.mark.parametrize("given_none", [[], (), None], ids=["list", "tuple", "none"])
def test_what_has_no_embedding_is_found_by_none_and_by_nothing(acme: TenantHandle, given_none: Any) -> None:
    acme.crew_memories.save([new("without"), new("with", embedding=[1.0])])
    assert acme.crew_memories.search(given_none) == []
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


def test_an_embedding_has_as_many_numbers_as_the_limit_and_no_more() -> None:
    limits = Limits(embedding_floats=3)
    assert similarity.pack([1, 2, 3], limits) == similarity.pack((1.0, 2.0, 3.0), limits)
    with raises(LimitExceeded, field="embedding", limit="embedding_floats", maximum=3):
        similarity.pack([1, 2, 3, 4], limits)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=6))
@settings(max_examples=40)
def test_numbers_of_32_bits_come_back(numbers: list[float]) -> None:
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
    ids=["along", "across", "against", "from-nowhere", "to-nowhere", "half", "large", "small"],
)
def test_likeness_is_the_cosine_with_and_without_numpy(one: list[float], other: list[float], score: float) -> None:
    query, rows = similarity.pack(one, Limits()), [similarity.pack(other, Limits())]
    assert similarity.cosines(query, rows) == pytest.approx([score])
    assert similarity._cosines_in_python(query, rows) == pytest.approx([score])
    assert similarity.cosines(query, []) == similarity._cosines_in_python(query, []) == []


def test_equally_alike_memories_come_in_the_order_of_their_ids(acme: TenantHandle) -> None:
    acme.crew_memories.save([new(id, embedding=[1.0, 0.0]) for id in ("c", "a", "é", "b", "\x00")])
    assert ids(acme.crew_memories.search([2.0, 0.0])) == ["a", "b", "c", "é", "\x00"]
    assert ids(acme.crew_memories.search([2.0, 0.0], limit=2)) == ["a", "b"]


def test_what_points_the_other_way_has_nothing_in_common_and_never_less(acme: TenantHandle) -> None:
    acme.crew_memories.save([new("against", embedding=[-1.0]), new("along", embedding=[1.0])])
    found = acme.crew_memories.search([1.0])
    assert [(each.memory.id, each.score) for each in found] == [("along", 1.0), ("against", 0.0)]
    assert ids(acme.crew_memories.search([1.0], min_score=1e-9)) == ["along"]
    assert ids(acme.crew_memories.search([1.0], min_score=1)) == ["along"]
    assert acme.crew_memories.search([1.0], min_score=1.1) == []
    assert len(acme.crew_memories.search([1.0], min_score=-1)) == 2


@pytest.mark.parametrize(
    ("how", "error"),
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
def test_a_search_that_makes_no_sense_is_refused(acme: TenantHandle, how: Any, error: type[Exception]) -> None:
    acme.crew_memories.save([new("a", embedding=[1.0])])
    with pytest.raises(error):
        acme.crew_memories.search([1.0], **how)


@pytest.mark.parametrize(
    "how", [{"limit": None}, {"limit": 0}, {"limit": "5"}, {"offset": None}, {"containing": 5}], ids=repr
)
def test_a_list_that_makes_no_sense_is_refused(acme: TenantHandle, how: Any) -> None:
    with pytest.raises(InvalidInput):
        acme.crew_memories.list(**how)


# Scopes

PATHS = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/a b", "/a-b", "/a.b", "/a0", "/é", "/a/é", "/\x00"]


@pytest.mark.parametrize("asked", [None, "", "/", "//", "a", "/a/", "/a/b", "/ab", "/é", "/\x00", "/nothing"], ids=repr)
def test_a_scope_is_itself_and_what_is_below_it(acme: TenantHandle, asked: str | None) -> None:
    acme.crew_memories.save([new(path, scope=path, embedding=[1.0]) for path in PATHS])
    root = "/" + (asked or "").strip("/")
    wanted = sorted(path for path in PATHS if root == "/" or path == root or path.startswith(f"{root}/"))
    assert sorted(ids(acme.crew_memories.list(scope=asked))) == wanted
    assert sorted(ids(acme.crew_memories.search([1.0], scope=asked, limit=50))) == wanted
    assert sorted(each.scope for each in acme.crew_memories.scopes(scope=asked)) == wanted
    assert acme.crew_memories.dimensions(scope=asked) == ({1: len(wanted)} if wanted else {})
    assert acme.crew_memories.delete(scope=asked) == len(wanted)
    assert sorted(ids(acme.crew_memories.list())) == sorted(set(PATHS) - set(wanted))


def test_a_scope_says_how_many_there_are_and_when_the_first_and_the_last_was_made(acme: TenantHandle) -> None:
    moments = [FIRST + timedelta(days=each) for each in (3, 1, 2)]
    acme.crew_memories.save([new(str(n), scope="x", created_at=at) for n, at in enumerate(moments)])
    (found,) = acme.crew_memories.scopes()
    assert (found.scope, found.count, found.oldest_at, found.newest_at) == ("/x", 3, moments[1], moments[0])


# Categories and metadata

CHOSEN: list[tuple[dict[str, Any], Callable[[CrewMemory], bool]]] = [
    ({"categories": ["fact"]}, lambda each: "fact" in each.categories),
    ({"categories": ["fact", "plan"]}, lambda each: bool({"fact", "plan"} & set(each.categories))),
    ({"categories": ["\x00"]}, lambda each: "\x00" in each.categories),
    ({"categories": ["nothing"]}, lambda each: False),
    ({"metadata": {"n": 1}}, lambda each: each.id in ("one", "both")),
    ({"metadata": {"n": 1.0}}, lambda each: each.id == "float"),
    ({"metadata": {"n": True}}, lambda each: each.id == "true"),
    ({"metadata": {"n": None}}, lambda each: each.id == "null"),
    ({"metadata": {"n": 1, "m": [2]}}, lambda each: each.id == "both"),
    ({"metadata": {"absent": None}}, lambda each: False),
    ({"metadata": {"n": 1}, "categories": ["fact"]}, lambda each: each.id == "one"),
]
MEMORIES = [
    new("one", categories=["fact", "fact"], metadata={"n": 1}, embedding=[1.0]),
    new("float", categories=["plan"], metadata={"n": 1.0}, embedding=[1.0]),
    new("true", categories=["\x00"], metadata={"n": True}, embedding=[1.0]),
    new("null", categories=["fact", "plan"], metadata={"n": None}, embedding=[1.0]),
    new("both", metadata={"n": 1, "m": [2]}, embedding=[1.0]),
    new("bare", embedding=[1.0]),
]


@pytest.mark.parametrize(("how", "fits"), CHOSEN, ids=[repr(how) for how, _ in CHOSEN])
def test_memories_are_chosen_by_sameness_in_type_too(
    acme: TenantHandle, how: dict[str, Any], fits: Callable[[CrewMemory], bool]
) -> None:
    acme.crew_memories.save(MEMORIES)
    wanted = sorted(each.id for each in acme.crew_memories.list() if fits(each))
    assert sorted(ids(acme.crew_memories.search([1.0], limit=50, **how))) == wanted
    assert acme.crew_memories.delete(**how) == len(wanted)
    assert acme.crew_memories.delete(**how) == 0
    assert not set(ids(acme.crew_memories.list())) & set(wanted)


def test_a_category_counts_a_memory_once(acme: TenantHandle) -> None:
    acme.crew_memories.save(MEMORIES)
    assert acme.crew_memories.categories() == {"\x00": 1, "fact": 2, "plan": 2}
    assert list(acme.crew_memories.categories()) == ["\x00", "fact", "plan"]
    assert acme.crew_memories.categories(scope="/nowhere") == {}


# Forgetting


def test_ids_narrow_what_else_is_said_and_nobody_is_forgotten_for_an_empty_list(acme: TenantHandle) -> None:
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
def test_older_means_made_before_that_moment(acme: TenantHandle, older_than: datetime, left: list[str]) -> None:
    acme.crew_memories.save([new(str(n), created_at=FIRST + timedelta(days=n)) for n in range(3)])
    assert acme.crew_memories.delete(older_than=older_than) == 3 - len(left)
    assert sorted(ids(acme.crew_memories.list())) == left


@pytest.mark.parametrize(
    "how",
    [{"ids": "one"}, {"ids": 5}, {"ids": [""]}, {"ids": [7]}, {"ids": ["x"] * 21}, {"older_than": "2026"},
     {"older_than": 5}, {"older_than": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))},
     {"categories": "fact"}, {"categories": [7]}, {"metadata": "x"}, {"user": 7}],
    ids=lambda how: repr(how)[:30],
)  # fmt: skip
def test_what_is_to_be_forgotten_must_be_said_clearly(acme: TenantHandle, how: Any) -> None:
    acme.crew_memories.save([new("one")])
    with pytest.raises(InvalidInput):
        acme.crew_memories.delete(**how)
    assert ids(acme.crew_memories.list()) == ["one"]


# Keeping


def test_pages_by_offset_are_the_whole_list(acme: TenantHandle) -> None:
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
def test_one_that_cannot_be_kept_keeps_all_others_out(acme: TenantHandle, values: dict[str, Any]) -> None:
    bad = NewCrewMemory(**{"content": "x", "id": "bad", **values})
    with pytest.raises((InvalidInput, InvalidText)):
        acme.crew_memories.save([new("good"), bad])
    assert acme.crew_memories.list() == []


@pytest.mark.parametrize("importance", [0, 1, 0.0, 1.0, 0.1 + 0.2, 5e-324])
def test_importance_is_any_number_from_nothing_to_everything(acme: TenantHandle, importance: float) -> None:
    acme.crew_memories.save([new("a", importance=importance)])
    found = acme.crew_memories.find("a")
    assert found is not None
    assert (found.importance, type(found.importance)) == (importance, float)


@pytest.mark.parametrize("id", ["\x00", "\ud800", "é", "\U0010f801", "'"], ids=repr)
def test_whatever_its_id_is_a_memory_is_touched_and_forgotten_by_it(acme: TenantHandle, id: str) -> None:
    acme.crew_memories.save([new(id, categories=["x"]), new("other")])
    assert acme.crew_memories.touch([id]) == 1
    assert acme.crew_memories.delete(ids=[id], categories=["x"]) == 1
    acme.crew_memories.save([new(id)])
    assert acme.crew_memories.delete(ids=[id]) == 1
    assert ids(acme.crew_memories.list()) == ["other"]


def test_touching_moves_only_the_moment_of_use_of_those_that_are_there(acme: TenantHandle) -> None:
    acme.crew_memories.save([new("a"), new("b")])
    before = acme.crew_memories.find("b")
    CLOCK.advance(5)
    assert acme.crew_memories.touch(["a", "a", "absent"]) == 1
    assert acme.crew_memories.touch([]) == 0
    assert acme.crew_memories.touch(["a"], user="somebody") == 0
    found = acme.crew_memories.find("a")
    assert found is not None
    assert found.accessed_at == from_us(CLOCK.now_us())
    assert found.created_at < found.accessed_at
    assert acme.crew_memories.find("b") == before
    with raises(InvalidInput, field="ids"):
        acme.crew_memories.touch("a")


def test_the_last_of_two_with_one_id_in_one_call_is_kept(acme: TenantHandle) -> None:
    assert acme.crew_memories.save([new("a", content="first"), new("a", content="last")]) == ["a", "a"]
    (found,) = acme.crew_memories.list()
    assert found.content == "last"
    assert acme.crew_memories.save([]) == []
