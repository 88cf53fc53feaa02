"""A2A tasks and whom to tell about them: every limit, refusal and edge of the two stores."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import AsyncHoldfast, FixedClock, Holdfast, Limits, NewA2APushConfig, TenantHandle, column
from holdfast.clock import from_us
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, InvalidText, LimitExceeded, NotFound
from holdfast.stores.execution.a2a_tasks import join_task, split_task
from tests.stores.shared_database import Place, fixtures

LIMITS = Limits(list_rows=5, page_rows=4, batch_rows=6, content_bytes=200, metadata_bytes=100, json_depth=5)
NAIVE = from_us(0).replace(tzinfo=None)
TEXTS = ["a", "漢字 \U0001f600", "\x00", "\ud800", "\U0010f800", "%2F/..", "x" * 255]
clock, opened, hf, acme = fixtures(LIMITS)


def task_of(acme: TenantHandle, id: str = "t", **more: Any) -> dict[str, Any]:
    """A task that must be there."""
    found = acme.a2a_tasks.find(id, **more)
    assert found is not None
    return found.task


def names(acme: TenantHandle, **more: Any) -> list[str]:
    """The ids of tasks in a list."""
    return [each.id for each in acme.a2a_tasks.list(**more)]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_a_good_id_context_and_user(acme: TenantHandle, text: str) -> None:
    acme.a2a_tasks.save(text, {"id": text[:50], "n": [text[:50]]}, context_id=text, state=text, user=text)
    found = acme.a2a_tasks.find(text, user=text)
    assert found is not None
    assert (found.id, found.context_id, found.state, found.user) == (text, text, text, text)
    assert found.task == {"id": text[:50], "n": [text[:50]]}
    assert names(acme, context_id=text, state=text, user=text) == [text]
    assert acme.a2a_tasks.count(context_id=text, state=text, user=text) == 1
    assert acme.a2a_tasks.delete(text, user=text) is True


def test_a_task_says_when_it_was_made_changed_and_came_to_its_state(acme: TenantHandle, clock: FixedClock) -> None:
    begin = from_us(clock.now_us())
    acme.a2a_tasks.save("t", {}, state="submitted")
    clock.advance(1)
    acme.a2a_tasks.save("t", {"n": 1}, state="working", state_at=begin - timedelta(days=1))
    found = acme.a2a_tasks.find("t")
    assert found is not None
    assert (found.created_at, found.updated_at) == (begin, begin + timedelta(seconds=1))
    assert (found.state, found.state_at) == ("working", begin - timedelta(days=1))


REFUSED: list[Any] = [
    pytest.param({"task_id": ""}, InvalidInput, "must not be empty", id="no id"),
    pytest.param({"task_id": 7}, InvalidInput, "must be a string", id="a number for an id"),
    pytest.param({"task_id": "x" * 256}, LimitExceeded, "name_bytes", id="an id over the limit"),
    pytest.param({"user": ""}, InvalidInput, "must not be empty", id="an empty user"),
    pytest.param({"user": "ü" * 128}, LimitExceeded, "name_bytes", id="a user over the limit in bytes"),
    pytest.param({"context_id": "x" * 501}, LimitExceeded, "key_bytes", id="a context over the limit"),
    pytest.param({"context_id": None}, InvalidInput, "must be a string", id="no context at all"),
    pytest.param({"state": "x" * 256}, LimitExceeded, "name_bytes", id="a state over the limit"),
    pytest.param({"state_at": NAIVE}, InvalidInput, "time zone", id="a moment without a zone"),
    pytest.param({"state_at": 7}, InvalidInput, "time zone", id="a moment that is none"),
    pytest.param({"task": []}, InvalidInput, "dictionary", id="a list"),
    pytest.param({"task": {1: 2}}, InvalidInput, "string keys", id="keys that are numbers"),
    pytest.param({"task": {"history": {}}}, InvalidInput, "a list, not dict", id="a history that is none"),
    pytest.param({"task": {"artifacts": 7}}, InvalidInput, "a list, not int", id="artifacts that are none"),
    pytest.param({"task": {"artifacts": [{"parts": ""}]}}, InvalidInput, "a list, not str", id="parts that are none"),
    pytest.param({"task": {"n": float("nan")}}, InvalidText, "not a JSON number", id="not a number"),
    pytest.param({"task": {"history": [{1}]}}, InvalidText, "set", id="a set in the history"),
    pytest.param({"task": {"n": "x" * 200}}, LimitExceeded, "content_bytes", id="a frame over the limit"),
    pytest.param({"task": {"history": ["x" * 200]}}, LimitExceeded, "content_bytes", id="an element over the limit"),
    pytest.param({"task": {"history": [0] * 7}}, LimitExceeded, "batch_rows", id="too many elements"),
    pytest.param({"task": {"n": [[[[[[]]]]]]}}, LimitExceeded, "json_depth", id="a frame too deep"),
]


@pytest.mark.parametrize(("wrong", "error", "words"), REFUSED)
def test_what_is_refused_changes_nothing(
    acme: TenantHandle, wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    acme.a2a_tasks.save("t", {"history": ["kept"]})
    sent: dict[str, Any] = {"task_id": "t", "task": {}, **wrong}
    with pytest.raises(error, match=words):
        acme.a2a_tasks.save(sent.pop("task_id"), sent.pop("task"), **sent)
    assert task_of(acme) == {"history": ["kept"]}
    assert acme.a2a_tasks.count() == 1


def test_limits_allow_exactly_their_number(acme: TenantHandle) -> None:
    largest = {"history": ["x" * 198, 0, 0, 0], "artifacts": [{"parts": ["y" * 198]}]}
    acme.a2a_tasks.save("t", largest, context_id="x" * 500)
    assert task_of(acme) == largest


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with Holdfast(path) as opened, sqlite3.connect(path) as beside:
        tasks = opened.tenant("acme").a2a_tasks

        def rows() -> list[tuple[int, str]]:
            return beside.execute("SELECT rowid, body FROM a2a_task_items ORDER BY rowid").fetchall()

        tasks.save("t", {"history": ["a", "b"], "artifacts": [{"parts": ["p"]}]})
        before = rows()
        tasks.save("t", {"history": ["a", "b"], "artifacts": [{"parts": ["p"]}], "n": 1})
        assert rows() == before
        tasks.save("t", {"history": ["a", "c"], "artifacts": [{"parts": ["p", "q"]}]})
        assert {body for _, body in rows()} == {'"a"', '"c"', '{"parts":2}', '"p"', '"q"'}
        tasks.save("t", {})
        assert rows() == []
    beside.close()


def test_users_and_tenants_have_tasks_of_their_own(hf: Place) -> None:
    acme, zenith = hf.tenant("acme"), hf.tenant("zenith")
    places: list[tuple[TenantHandle, str | None]] = [(acme, None), (acme, "ada"), (acme, "bob"), (zenith, "ada")]
    for number, (tenant, user) in enumerate(places):
        tenant.a2a_tasks.save("t", {"n": number}, user=user)
    for number, (tenant, user) in enumerate(places):
        assert task_of(tenant, user=user) == {"n": number}
        assert names(tenant, user=user) == ["t"]
    assert acme.a2a_tasks.delete("t", user="ada") is True
    assert [tenant.a2a_tasks.count(user=user) for tenant, user in places] == [1, 0, 1, 1]
    with pytest.raises(NotFound):
        zenith.a2a_tasks.restore("t", user="ada")
    assert zenith.a2a_tasks.purge("t", user="bob") == 0


def test_a_list_is_narrowed_by_context_state_and_moment(acme: TenantHandle, clock: FixedClock) -> None:
    moments = []
    for number in range(4):
        moments.append(from_us(clock.now_us()))
        acme.a2a_tasks.save(str(number), {}, context_id="ab"[number % 2], state="xy"[number // 2])
        clock.advance(1)
    narrowed: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["3", "2", "1", "0"]),
        ({"context_id": "a"}, ["2", "0"]),
        ({"state": "y"}, ["3", "2"]),
        ({"context_id": "b", "state": "x"}, ["1"]),
        ({"since": moments[2]}, ["3", "2"]),
        ({"since": moments[2], "context_id": "a"}, ["2"]),
        ({"context_id": ""}, []),
        ({"since": moments[3] + timedelta(microseconds=1)}, []),
    ]
    for wanted, expected in narrowed:
        assert names(acme, **wanted) == expected
        assert acme.a2a_tasks.count(**wanted) == len(expected)
    with pytest.raises(InvalidInput, match="time zone"):
        acme.a2a_tasks.list(since=NAIVE)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_pages_put_together_are_the_list_even_within_one_moment(acme: TenantHandle, limit: int) -> None:
    for id in ("a", "\x00", "ü", "B", "\ud800"):
        acme.a2a_tasks.save(id, {"id": id, "history": [id]})
    expected = acme.a2a_tasks.list()
    found, cursor = [], None
    while True:
        page = acme.a2a_tasks.list(limit=limit, cursor=cursor)
        assert 1 <= len(page) <= limit
        found += page
        if page.next is None:
            break
        cursor = page.next
    assert found == list(expected)
    assert len(expected) == 5


def test_a_list_over_its_limit_must_be_paged(acme: TenantHandle) -> None:
    for number in range(6):
        assert len(names(acme)) == number
        acme.a2a_tasks.save(str(number), {})
    with pytest.raises(LimitExceeded, match="page them"):
        acme.a2a_tasks.list()
    assert len(acme.a2a_tasks.list(limit=4)) == 4
    for limit in (0, -1, True, 1.0):
        with pytest.raises(InvalidInput, match="whole number"):
            acme.a2a_tasks.list(limit=limit)  # type: ignore[arg-type]
    with pytest.raises(LimitExceeded, match="page_rows"):
        acme.a2a_tasks.list(limit=5)


@pytest.mark.parametrize("cursor", ["", "x", "ü", "AAAA", 7])
def test_a_cursor_of_another_list_is_refused(acme: TenantHandle, cursor: Any) -> None:
    with pytest.raises(InvalidFilter):
        acme.a2a_tasks.list(cursor=cursor)


def test_of_tasks_deleted_under_one_id_the_last_comes_back(acme: TenantHandle, clock: FixedClock) -> None:
    for number in range(3):
        acme.a2a_tasks.save("t", {"n": number, "history": [number]})
        assert acme.a2a_tasks.delete("t") is True
        assert acme.a2a_tasks.delete("t") is False
        clock.advance(1)
    assert acme.a2a_tasks.restore("t").task == {"n": 2, "history": [2]}
    with pytest.raises(Conflict, match="delete it first"):
        acme.a2a_tasks.restore("t")
    assert task_of(acme) == {"n": 2, "history": [2]}
    assert acme.a2a_tasks.purge("t") == 3
    assert acme.a2a_tasks.purge("t") == 0
    with pytest.raises(NotFound, match="no deleted task 't'"):
        acme.a2a_tasks.restore("t")


def test_a_session_that_has_a_task_saved_in_it_is_in_use(acme: TenantHandle, clock: FixedClock) -> None:
    mine, bobs = [acme.sessions.create(key="s", user=user) for user in ("ada", "bob")]
    clock.advance(60)
    acme.a2a_tasks.save("t", {}, context_id="s", user="ada")
    assert acme.sessions.get(mine.id).updated_at == mine.updated_at + timedelta(seconds=60)
    assert acme.sessions.get(bobs.id).updated_at == bobs.updated_at


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ARTIFACT = JSON | st.fixed_dictionaries({"a": JSON, "parts": st.none() | st.lists(JSON, max_size=3), "z": JSON})
TASK = st.fixed_dictionaries(
    {"id": st.text(max_size=3)},
    optional={
        "history": st.none() | st.lists(JSON, max_size=3),
        "artifacts": st.none()
        | st.lists(ARTIFACT, max_size=3).filter(
            lambda found: (
                not any(
                    isinstance(each, dict) and not isinstance(each.get("parts"), (list, type(None))) for each in found
                )
            )
        ),
        "status": JSON,
    },
)


@given(TASK)
@settings(max_examples=60)
def test_a_task_taken_apart_and_put_together_is_the_same_in_the_same_order(task: dict[str, Any]) -> None:
    before = json.dumps(task)
    frame, elements = split_task(task)
    stored = [(*place, msgspec.json.decode(msgspec.json.encode(body))) for place, body in elements.items()]
    # Lists lie in the order of their names, as the database gives them back.
    again = join_task(frame, sorted(stored, key=lambda each: each[:3]))
    assert json.dumps(again) == before
    assert json.dumps(task) == before, "what was given is left as it was"


def test_saves_of_one_task_at_once_leave_one_of_them_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as opened:
            tasks = opened.tenant("acme").a2a_tasks
            several = [{"n": number, "history": [number] * number} for number in range(8)]
            await asyncio.gather(*(tasks.save("t", each) for each in several))
            found = await tasks.find("t")
            assert found is not None
            assert found.task in several

    asyncio.run(story())


def test_configurations_are_hidden_restored_and_purged_with_their_task(acme: TenantHandle) -> None:
    acme.a2a_tasks.save("t", {})
    acme.a2a_push_configs.upsert(NewA2APushConfig(task_id="t", config={"n": 1}))
    acme.a2a_push_configs.upsert(NewA2APushConfig(task_id="u", config={"n": 2}))
    acme.a2a_tasks.delete("t")
    assert acme.a2a_push_configs.list(where=[column("task_id").eq("t"), column("user").eq("")]) == []
    assert acme.a2a_push_configs.clear("t") == 0, "what is hidden is not removed"
    acme.a2a_tasks.restore("t")
    assert [
        each.config for each in acme.a2a_push_configs.list(where=[column("task_id").eq("t"), column("user").eq("")])
    ] == [{"n": 1}]
    acme.a2a_tasks.purge("t")
    assert acme.a2a_push_configs.list(where=[column("task_id").eq("t")]) == []
    assert [
        each.config for each in acme.a2a_push_configs.list(where=[column("task_id").eq("u"), column("user").eq("")])
    ] == [{"n": 2}]


def test_a_task_is_not_restored_while_a_new_configuration_has_the_name_of_its_own(acme: TenantHandle) -> None:
    acme.a2a_tasks.save("t", {"n": 1})
    acme.a2a_push_configs.upsert(NewA2APushConfig(task_id="t", config={"n": 1}))
    acme.a2a_tasks.delete("t")
    acme.a2a_push_configs.upsert(NewA2APushConfig(task_id="t", config={"n": 2}))
    with pytest.raises(Conflict):
        acme.a2a_tasks.restore("t")
    assert acme.a2a_tasks.find("t") is None, "nothing of it is half restored"
    assert [
        each.config for each in acme.a2a_push_configs.list(where=[column("task_id").eq("t"), column("user").eq("")])
    ] == [{"n": 2}]
    acme.a2a_push_configs.clear("t")
    assert acme.a2a_tasks.restore("t").task == {"n": 1}
    assert [
        each.config for each in acme.a2a_push_configs.list(where=[column("task_id").eq("t"), column("user").eq("")])
    ] == [{"n": 1}]
