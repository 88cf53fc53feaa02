"""Agent memories: similarity, expiry, and refused arguments."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import FixedClock, Limits, NewAgentMemory, TenantHandle
from holdfast.clock import from_us
from holdfast.errors import InvalidInput, InvalidText, LimitExceeded
from holdfast.stores.memory.agent_memories import MAX_TTL_DAYS, POPULAR, TTL_DAYS
from tests.errors import raises
from tests.stores.shared_database import Place, fixtures

LIMITS = Limits(list_rows=5, page_rows=5, batch_rows=6, content_bytes=50, metadata_bytes=60, embedding_floats=4)
DAY = 86_400
TEXTS = ["a", "漢字 \U0001f600", "\x00", "\ud800", "\U0010f801", ""]
clock, opened, hf, acme = fixtures(LIMITS)


def new(content: str, *embedding: float, **more: Any) -> NewAgentMemory:
    """Return a memory to add."""
    return NewAgentMemory(content=content, embedding=embedding or (1.0, 0.0), **more)


def found(acme: TenantHandle, *embedding: float, **more: Any) -> list[str]:
    """Return the contents that a search of agent ``a`` finds."""
    return [match.memory.content for match in acme.agent_memories.search(embedding, agent="a", **more)]


def kept(acme: TenantHandle, **more: Any) -> list[str]:
    """Return the contents of the memories of agent ``a``."""
    return [memory.content for memory in acme.agent_memories.list(agent="a", **more)]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_stored_for_any_agent_and_user(acme: TenantHandle, text: str) -> None:
    name = text or "name"
    (id,) = acme.agent_memories.add([new(text, 1, metadata={"k": text})], agent=name, user=name)
    (one,) = acme.agent_memories.search([1], agent=name, user=name)
    assert (one.memory.id, one.memory.content, one.memory.metadata) == (id, text, {"k": text})
    assert (one.memory.agent, one.memory.user, one.memory.access_count) == (name, name, 1)
    assert acme.agent_memories.delete(agent=name, user=name) == 1


def test_ids_are_returned_in_order_and_an_empty_list_adds_nothing(acme: TenantHandle) -> None:
    ids = acme.agent_memories.add([new(name) for name in "abc"], agent="a")
    by_id = {memory.id: memory.content for memory in acme.agent_memories.list(agent="a")}
    assert [by_id[id] for id in ids] == ["a", "b", "c"]
    assert acme.agent_memories.add([], agent="a") == []
    assert len(kept(acme)) == 3


REFUSED: list[Any] = [
    pytest.param(NewAgentMemory(content="x", embedding=[]), InvalidInput, {"field": "embedding"}, id="no numbers"),
    pytest.param(NewAgentMemory(content="x", embedding="10"), InvalidInput, {"field": "embedding"}, id="a string"),  # type: ignore[arg-type]
    pytest.param(new("x", math.nan), InvalidInput, {"field": "embedding"}, id="not a number"),
    pytest.param(new("x", math.inf), InvalidInput, {"field": "embedding"}, id="infinity"),
    pytest.param(new("x", 1e39), InvalidInput, {"field": "embedding"}, id="over 32 bits"),
    pytest.param(new("x", 1, 1, 1, 1, 1), LimitExceeded, {"limit": "embedding_floats"}, id="too many dimensions"),
    pytest.param(new("x" * 51), LimitExceeded, {"limit": "content_bytes"}, id="content over the limit"),
    pytest.param(new(7), InvalidInput, {"field": "content"}, id="a number"),  # type: ignore[arg-type]
    pytest.param(
        new("x", metadata={"k": "x" * 60}), LimitExceeded, {"limit": "metadata_bytes"}, id="metadata over the limit"
    ),
    pytest.param(new("x", metadata={"k": {1}}), InvalidText, {}, id="metadata that is not JSON"),
    pytest.param(new("x", metadata=[1]), InvalidInput, {"field": "metadata"}, id="metadata that is a list"),
    pytest.param(new("x", ttl_days=MAX_TTL_DAYS + 1), InvalidInput, {"field": "ttl_days"}, id="too many days"),
    pytest.param(new("x", ttl_days=True), InvalidInput, {"field": "ttl_days"}, id="a boolean for days"),
    pytest.param(new("x", ttl_days=1.5), InvalidInput, {"field": "ttl_days"}, id="half a day"),
    pytest.param("x", InvalidInput, {"field": "memories"}, id="not a memory"),
]


@pytest.mark.parametrize(("wrong", "error", "fields"), REFUSED)
def test_one_invalid_memory_fails_the_whole_call(
    acme: TenantHandle, wrong: Any, error: type[Exception], fields: dict[str, str]
) -> None:
    with raises(error, **fields):
        acme.agent_memories.add([new("good"), wrong], agent="a")
    assert kept(acme) == []


def test_limits_are_inclusive(acme: TenantHandle) -> None:
    with raises(LimitExceeded, limit="batch_rows", maximum=6):
        acme.agent_memories.add([new("x")] * 7, agent="a")
    acme.agent_memories.add([new("x" * 50, 1, 1, 1, 1)] * 5, agent="a")
    assert len(kept(acme)) == 5
    acme.agent_memories.add([new("x")], agent="a")
    with raises(LimitExceeded, limit="list_rows", maximum=5):
        kept(acme)
    assert len(kept(acme, limit=5)) == 5
    with raises(LimitExceeded, limit="page_rows", maximum=5):
        kept(acme, limit=6)


@pytest.mark.parametrize(
    ("wrong", "fields"),
    [
        ({"limit": 0}, {"field": "limit"}),
        ({"limit": None}, {"field": "limit"}),
        ({"limit": True}, {"field": "limit"}),
        ({"min_score": "high"}, {"field": "min_score"}),
        ({"min_score": None}, {"field": "min_score"}),
        ({"user": ""}, {"field": "user"}),
        ({"limit": 6}, {"limit": "page_rows"}),
        ({"agent": ""}, {"field": "agent"}),
        ({"embedding": [1] * 5}, {"limit": "embedding_floats"}),
    ],
)
def test_an_invalid_search_is_refused_and_counts_no_access(
    acme: TenantHandle, wrong: dict[str, Any], fields: dict[str, str]
) -> None:
    acme.agent_memories.add([new("tea")], agent="a")
    asked: dict[str, Any] = {"embedding": [1, 0], "agent": "a", "limit": 4, **wrong}
    with raises(InvalidInput, **fields):
        acme.agent_memories.search(asked.pop("embedding"), **asked)
    assert [memory.access_count for memory in acme.agent_memories.list(agent="a")] == [0]


def test_only_embeddings_of_the_same_size_are_compared(acme: TenantHandle) -> None:
    acme.agent_memories.add([new("one", 1), new("two", 1, 0), new("three", 1, 0, 0)], agent="a")
    assert (found(acme, 1), found(acme, 1, 0), found(acme, 1, 0, 0)) == (["one"], ["two"], ["three"])
    assert (found(acme, 1, 0, 0, 0), found(acme)) == ([], [])


def test_results_do_not_depend_on_the_slice_size(acme: TenantHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    angles = {"e": 0.9, "a": 0.1, "d": 0.7, "b": 0.3, "c": 0.5}
    acme.agent_memories.add([new(name, math.cos(at), math.sin(at)) for name, at in angles.items()], agent="a")
    for part in (1, 2, 5, 6, 1_000):
        monkeypatch.setattr("holdfast.stores.memory.similarity.SLICE_ROWS", part)
        assert found(acme, 1, 0, limit=4) == ["a", "b", "c", "d"]
        assert found(acme, 1, 0, limit=2) == ["a", "b"]
        assert found(acme, 1, 0, limit=4, min_score=math.cos(0.4)) == ["a", "b"]


def test_of_equally_similar_memories_the_older_comes_first(acme: TenantHandle) -> None:
    acme.agent_memories.add([new(name, 2, 0) for name in "abcd"], agent="a")
    assert found(acme, 1, 0, limit=3) == ["a", "b", "c"]


@given(st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=1, max_size=5), st.integers(1, 4))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_search_equals_sorting_by_cosine(acme: TenantHandle, vectors: list[list[int]], limit: int) -> None:
    def cosine(vector: list[int]) -> float:
        length = math.hypot(*vector) * math.hypot(3, 4)
        return (3 * vector[0] + 4 * vector[1]) / length if length else 0.0

    acme.agent_memories.delete(agent="a")
    acme.agent_memories.add([new("", *vector) for vector in vectors], agent="a")
    scores = [match.score for match in acme.agent_memories.search([3, 4], agent="a", limit=limit, min_score=-1)]
    assert scores == pytest.approx(sorted(map(cosine, vectors), reverse=True)[:limit])


@pytest.mark.parametrize(("ttl", "days"), [(None, TTL_DAYS), (0, TTL_DAYS), (-7, TTL_DAYS), (1, 1), (36_500, 36_500)])
def test_a_memory_expires_after_its_last_microsecond(
    acme: TenantHandle, clock: FixedClock, ttl: int | None, days: int
) -> None:
    acme.agent_memories.add([new("tea", ttl_days=ttl)], agent="a")
    clock.advance(days * DAY)
    clock.advance(-0.000_001)
    assert kept(acme) == found(acme, 1, 0) == ["tea"]
    clock.advance(0.000_001)
    assert kept(acme) == found(acme, 1, 0) == []


@pytest.mark.parametrize(("searches", "stays"), [(POPULAR - 1, False), (POPULAR, True), (POPULAR + 1, True)])
def test_a_memory_that_was_found_often_is_extended(
    acme: TenantHandle, clock: FixedClock, searches: int, stays: bool
) -> None:
    acme.agent_memories.add([new("tea", ttl_days=1)], agent="a")
    for _ in range(searches):
        found(acme, 1, 0)
    clock.advance(DAY)
    assert (kept(acme) == ["tea"]) is stays
    pruned = acme.agent_memories.prune()
    assert (pruned.extended, pruned.removed) == (int(stays), int(not stays))
    again = acme.agent_memories.prune()
    assert (again.extended, again.removed) == (0, 0), "a second prune changes nothing"
    assert [(memory.access_count, memory.expires_at) for memory in acme.agent_memories.list(agent="a")] == (
        [(0, from_us(clock.now_us()) + timedelta(days=TTL_DAYS))] if stays else []
    )


def test_adding_removes_only_expired_memories_of_the_same_agent_and_user(
    hf: Place, acme: TenantHandle, clock: FixedClock
) -> None:
    places: list[tuple[TenantHandle, str, str | None]] = [
        (acme, "a", None),
        (acme, "a", "ada"),
        (acme, "b", None),
        (hf.tenant("zenith"), "a", None),
    ]
    for tenant, agent, user in places:
        tenant.agent_memories.add([new("old", ttl_days=1)], agent=agent, user=user)
    clock.advance(DAY)
    acme.agent_memories.add([new("new")], agent="a")
    assert acme.agent_memories.prune().removed == 2, "the expired ones of the other user and the other agent"
    assert hf.tenant("zenith").agent_memories.prune().removed == 1
    assert kept(acme) == ["new"]


def test_prune_uses_the_given_time(acme: TenantHandle, clock: FixedClock) -> None:
    begin = from_us(clock.now_us())
    acme.agent_memories.add([new("short", ttl_days=1), new("long", ttl_days=3)], agent="a")
    assert acme.agent_memories.prune(by=begin).removed == 0
    assert acme.agent_memories.prune(by=begin + timedelta(days=1)).removed == 1
    assert kept(acme) == ["long"]
    wrong: Any
    for wrong in (begin.replace(tzinfo=None), 7, "now"):
        with raises(InvalidInput, field="by"):
            acme.agent_memories.prune(by=wrong)


def test_deleting_leaves_other_tenants_agents_and_users_unchanged(hf: Place, acme: TenantHandle) -> None:
    zenith = hf.tenant("zenith")
    for tenant, agent, user in ((acme, "a", "ada"), (acme, "a", None), (acme, "b", "ada"), (zenith, "a", "ada")):
        tenant.agent_memories.add([new("tea")] * 2, agent=agent, user=user)
    assert acme.agent_memories.delete(agent="a", user="ada") == 2
    assert acme.agent_memories.delete(agent="a", user="ada") == 0
    assert (len(kept(acme)), len(kept(acme, user="ada")), len(kept(zenith, user="ada"))) == (2, 0, 2)
    assert len(acme.agent_memories.list(agent="b", user="ada")) == 2
