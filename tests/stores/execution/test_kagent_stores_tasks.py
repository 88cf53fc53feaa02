"""Edge cases of A2A tasks and their push configurations: limits, invalid arguments, deletion and restoring."""

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
from holdfast.encryption import Secret
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, InvalidText, LimitExceeded, NotFound
from holdfast.stores.execution.a2a_tasks import join_task, split_task
from tests.errors import raises
from tests.stores.shared_database import Place, fixtures

LIMITS = Limits(list_rows=5, page_rows=4, batch_rows=6, content_bytes=200, metadata_bytes=100, json_depth=5)
NAIVE = from_us(0).replace(tzinfo=None)
TEXTS = ["a", "漢字 \U0001f600", "\x00", "\ud800", "\U0010f800", "%2F/..", "x" * 255]
clock, opened, hf, acme = fixtures(LIMITS)


def task_of(acme: TenantHandle, id: str = "t", **more: Any) -> dict[str, Any]:
    """Return a task that must exist."""
    task = acme.a2a_tasks.find(id, **more)
    assert task is not None
    return task.task


def names(acme: TenantHandle, **more: Any) -> list[str]:
    """Return the ids of the tasks in a list."""
    return [task.id for task in acme.a2a_tasks.list(**more)]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_contexts_and_users_can_be_any_text(acme: TenantHandle, text: str) -> None:
    acme.a2a_tasks.save(text, {"id": text[:50], "n": [text[:50]]}, context_id=text, state=text, user=text)
    task = acme.a2a_tasks.find(text, user=text)
    assert task is not None
    assert (task.id, task.context_id, task.state, task.user) == (text, text, text, text)
    assert task.task == {"id": text[:50], "n": [text[:50]]}
    assert names(acme, context_id=text, state=text, user=text) == [text]
    assert acme.a2a_tasks.count(context_id=text, state=text, user=text) == 1
    assert acme.a2a_tasks.delete(text, user=text) is True


def test_a_task_has_its_creation_update_and_state_times(acme: TenantHandle, clock: FixedClock) -> None:
    begin = from_us(clock.now_us())
    acme.a2a_tasks.save("t", {}, state="submitted")
    clock.advance(1)
    acme.a2a_tasks.save("t", {"n": 1}, state="working", state_at=begin - timedelta(days=1))
    task = acme.a2a_tasks.find("t")
    assert task is not None
    assert (task.created_at, task.updated_at) == (begin, begin + timedelta(seconds=1))
    assert (task.state, task.state_at) == ("working", begin - timedelta(days=1))


REFUSED: list[Any] = [
    pytest.param({"task_id": ""}, InvalidInput, {"field": "task id"}, id="no id"),
    pytest.param({"task_id": 7}, InvalidInput, {"field": "task id"}, id="a number for an id"),
    pytest.param({"task_id": "x" * 256}, LimitExceeded, {"limit": "name_bytes"}, id="an id over the limit"),
    pytest.param({"user": ""}, InvalidInput, {"field": "user"}, id="an empty user"),
    pytest.param({"user": "ü" * 128}, LimitExceeded, {"limit": "name_bytes"}, id="a user over the limit in bytes"),
    pytest.param({"context_id": "x" * 501}, LimitExceeded, {"limit": "key_bytes"}, id="a context over the limit"),
    pytest.param({"context_id": None}, InvalidInput, {"field": "context id"}, id="no context at all"),
    pytest.param({"state": "x" * 256}, LimitExceeded, {"limit": "name_bytes"}, id="a state over the limit"),
    pytest.param({"state_at": NAIVE}, InvalidInput, {"field": "state_at"}, id="a time without a zone"),
    pytest.param({"state_at": 7}, InvalidInput, {"field": "state_at"}, id="a number for a time"),
    pytest.param({"task": []}, InvalidInput, {"field": "task"}, id="a list"),
    pytest.param({"task": {1: 2}}, InvalidInput, {"field": "task"}, id="keys that are numbers"),
    pytest.param({"task": {"history": {}}}, InvalidInput, {"field": "history"}, id="a history that is a dictionary"),
    pytest.param({"task": {"artifacts": 7}}, InvalidInput, {"field": "artifacts"}, id="artifacts that are a number"),
    pytest.param(
        {"task": {"artifacts": [{"parts": ""}]}}, InvalidInput, {"field": "parts"}, id="parts that are a text"
    ),
    pytest.param({"task": {"n": float("nan")}}, InvalidText, {}, id="not a number"),
    pytest.param({"task": {"history": [{1}]}}, InvalidText, {}, id="a set in the history"),
    pytest.param({"task": {"n": "x" * 200}}, LimitExceeded, {"limit": "content_bytes"}, id="a frame over the limit"),
    pytest.param(
        {"task": {"history": ["x" * 200]}}, LimitExceeded, {"limit": "content_bytes"}, id="an element over the limit"
    ),
    pytest.param({"task": {"history": [0] * 7}}, LimitExceeded, {"limit": "batch_rows"}, id="too many elements"),
    pytest.param({"task": {"n": [[[[[[]]]]]]}}, LimitExceeded, {"limit": "json_depth"}, id="a frame too deep"),
]


@pytest.mark.parametrize(("wrong", "error", "fields"), REFUSED)
def test_an_invalid_save_changes_nothing(
    acme: TenantHandle, wrong: dict[str, Any], error: type[Exception], fields: dict[str, str]
) -> None:
    acme.a2a_tasks.save("t", {"history": ["kept"]})
    arguments: dict[str, Any] = {"task_id": "t", "task": {}, **wrong}
    with raises(error, **fields):
        acme.a2a_tasks.save(arguments.pop("task_id"), arguments.pop("task"), **arguments)
    assert task_of(acme) == {"history": ["kept"]}
    assert acme.a2a_tasks.count() == 1


def test_limits_are_inclusive(acme: TenantHandle) -> None:
    largest = {"history": ["x" * 198, 0, 0, 0], "artifacts": [{"parts": ["y" * 198]}]}
    acme.a2a_tasks.save("t", largest, context_id="x" * 500)
    assert task_of(acme) == largest


def test_unchanged_elements_are_not_written_again(tmp_path: Path) -> None:
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


def test_users_and_tenants_have_separate_tasks(hf: Place) -> None:
    acme, zenith = hf.tenant("acme"), hf.tenant("zenith")
    owners: list[tuple[TenantHandle, str | None]] = [(acme, None), (acme, "ada"), (acme, "bob"), (zenith, "ada")]
    for number, (tenant, user) in enumerate(owners):
        tenant.a2a_tasks.save("t", {"n": number}, user=user)
    for number, (tenant, user) in enumerate(owners):
        assert task_of(tenant, user=user) == {"n": number}
        assert names(tenant, user=user) == ["t"]
    assert acme.a2a_tasks.delete("t", user="ada") is True
    assert [tenant.a2a_tasks.count(user=user) for tenant, user in owners] == [1, 0, 1, 1]
    with pytest.raises(NotFound):
        zenith.a2a_tasks.restore("t", user="ada")
    assert zenith.a2a_tasks.purge("t", user="bob") == 0


def test_a_list_is_filtered_by_context_state_and_time(acme: TenantHandle, clock: FixedClock) -> None:
    times = []
    for number in range(4):
        times.append(from_us(clock.now_us()))
        acme.a2a_tasks.save(str(number), {}, context_id="ab"[number % 2], state="xy"[number // 2])
        clock.advance(1)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["3", "2", "1", "0"]),
        ({"context_id": "a"}, ["2", "0"]),
        ({"state": "y"}, ["3", "2"]),
        ({"context_id": "b", "state": "x"}, ["1"]),
        ({"since": times[2]}, ["3", "2"]),
        ({"since": times[2], "context_id": "a"}, ["2"]),
        ({"context_id": ""}, []),
        ({"since": times[3] + timedelta(microseconds=1)}, []),
    ]
    for filters, expected in cases:
        assert names(acme, **filters) == expected
        assert acme.a2a_tasks.count(**filters) == len(expected)
    with raises(InvalidInput, field="since"):
        acme.a2a_tasks.list(since=NAIVE)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_pages_add_up_to_the_list_even_for_equal_times(acme: TenantHandle, limit: int) -> None:
    for id in ("a", "\x00", "ü", "B", "\ud800"):
        acme.a2a_tasks.save(id, {"id": id, "history": [id]})
    expected = acme.a2a_tasks.list()
    listed, cursor = [], None
    while True:
        page = acme.a2a_tasks.list(limit=limit, cursor=cursor)
        assert 1 <= len(page) <= limit
        listed += page
        if page.next is None:
            break
        cursor = page.next
    assert listed == list(expected)
    assert len(expected) == 5


def test_a_list_over_its_limit_must_be_paged(acme: TenantHandle) -> None:
    for number in range(6):
        assert len(names(acme)) == number
        acme.a2a_tasks.save(str(number), {})
    with raises(LimitExceeded, limit="list_rows"):
        acme.a2a_tasks.list()
    assert len(acme.a2a_tasks.list(limit=4)) == 4
    for limit in (0, -1, True, 1.0):
        with raises(InvalidInput, field="limit"):
            acme.a2a_tasks.list(limit=limit)  # type: ignore[arg-type]
    with raises(LimitExceeded, limit="page_rows"):
        acme.a2a_tasks.list(limit=5)


@pytest.mark.parametrize("cursor", ["", "x", "ü", "AAAA", 7])
def test_a_cursor_of_another_list_is_refused(acme: TenantHandle, cursor: Any) -> None:
    with pytest.raises(InvalidFilter):
        acme.a2a_tasks.list(cursor=cursor)


def test_restore_brings_back_the_task_deleted_last(acme: TenantHandle, clock: FixedClock) -> None:
    for number in range(3):
        acme.a2a_tasks.save("t", {"n": number, "history": [number]})
        assert acme.a2a_tasks.delete("t") is True
        assert acme.a2a_tasks.delete("t") is False
        clock.advance(1)
    assert acme.a2a_tasks.restore("t").task == {"n": 2, "history": [2]}
    with raises(Conflict, reason="id_taken"):
        acme.a2a_tasks.restore("t")
    assert task_of(acme) == {"n": 2, "history": [2]}
    assert acme.a2a_tasks.purge("t") == 3
    assert acme.a2a_tasks.purge("t") == 0
    with raises(NotFound, noun="task", key="t"):
        acme.a2a_tasks.restore("t")


def test_saving_a_task_counts_as_use_of_its_session(acme: TenantHandle, clock: FixedClock) -> None:
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
            lambda artifacts: (
                not any(
                    isinstance(artifact, dict) and not isinstance(artifact.get("parts"), (list, type(None)))
                    for artifact in artifacts
                )
            )
        ),
        "status": JSON,
    },
)


@given(TASK)
@settings(max_examples=60)
def test_a_split_and_joined_task_is_identical(task: dict[str, Any]) -> None:
    before = json.dumps(task)
    frame, elements = split_task(task)
    rows = [(*key, msgspec.json.decode(msgspec.json.encode(body))) for key, body in elements.items()]
    # Lists are in the order of their names, as the database returns them.
    joined = join_task(frame, sorted(rows, key=lambda row: row[:3]))
    assert json.dumps(joined) == before
    assert json.dumps(task) == before, "the argument is unchanged"


def test_concurrent_saves_of_one_task_leave_one_of_them_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as opened:
            tasks = opened.tenant("acme").a2a_tasks
            several = [{"n": number, "history": [number] * number} for number in range(8)]
            await asyncio.gather(*(tasks.save("t", task) for task in several))
            saved = await tasks.find("t")
            assert saved is not None
            assert saved.task in several

    asyncio.run(story())


def configurations(acme: TenantHandle, task: str) -> list[Any]:
    rows = acme.a2a_push_configs.list(where=[column("task_id").eq(task), column("user").eq("")])
    return [row.config and row.config.reveal() for row in rows]


def test_configurations_are_hidden_restored_and_purged_with_their_task(acme: TenantHandle) -> None:
    acme.a2a_tasks.save("t", {})
    acme.a2a_push_configs.upsert(NewA2APushConfig(task_id="t", config=Secret({"n": 1})))
    acme.a2a_push_configs.upsert(NewA2APushConfig(task_id="u", config=Secret({"n": 2})))
    acme.a2a_tasks.delete("t")
    assert acme.a2a_push_configs.list(where=[column("task_id").eq("t"), column("user").eq("")]) == []
    assert acme.a2a_push_configs.clear("t") == 0, "a hidden configuration is not removed"
    acme.a2a_tasks.restore("t")
    assert configurations(acme, "t") == [{"n": 1}]
    acme.a2a_tasks.purge("t")
    assert acme.a2a_push_configs.list(where=[column("task_id").eq("t")]) == []
    assert configurations(acme, "u") == [{"n": 2}]


def test_a_task_is_not_restored_while_a_new_configuration_has_its_key(acme: TenantHandle) -> None:
    acme.a2a_tasks.save("t", {"n": 1})
    acme.a2a_push_configs.upsert(NewA2APushConfig(task_id="t", config=Secret({"n": 1})))
    acme.a2a_tasks.delete("t")
    acme.a2a_push_configs.upsert(NewA2APushConfig(task_id="t", config=Secret({"n": 2})))
    with pytest.raises(Conflict):
        acme.a2a_tasks.restore("t")
    assert acme.a2a_tasks.find("t") is None, "the task is not restored either"
    assert configurations(acme, "t") == [{"n": 2}]
    acme.a2a_push_configs.clear("t")
    assert acme.a2a_tasks.restore("t").task == {"n": 1}
    assert configurations(acme, "t") == [{"n": 1}]
