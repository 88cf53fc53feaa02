"""A2A tasks compared with a plain model over random histories of saves, deletions and restores."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, TenantHandle
from holdfast.errors import Conflict, NotFound
from holdfast.stores.execution.a2a_tasks import WHOLE, join_task, split_task

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=4,
)
parts = st.lists(json_values, max_size=4)
artifacts = st.one_of(
    json_values.filter(lambda value: not isinstance(value, dict)),
    st.fixed_dictionaries({"artifactId": st.text(max_size=2), "parts": parts}),
    st.fixed_dictionaries({"name": json_values}),
    st.just({"parts": None}),
)
tasks = st.fixed_dictionaries(
    {"id": st.just("t")},
    optional={
        "history": st.none() | st.lists(json_values, max_size=4),
        "artifacts": st.none() | st.lists(artifacts, max_size=3),
        "other": json_values,
        "parts": parts,
    },
)


@given(tasks)
def test_a_task_is_reassembled_unchanged_from_its_parts(task: dict[str, Any]) -> None:
    frame, elements = split_task(task)
    ordered = [(*place, json.loads(json.dumps(body))) for place, body in sorted(elements.items())]
    assert json.dumps(join_task(frame, ordered)) == json.dumps(task)
    for name in ("history", "artifacts"):
        whole = [place for place in elements if place[0] == name and place[2] == WHOLE]
        assert len(whole) == len(task.get(name) or [])


class Model:
    """The model of the store."""

    def __init__(self) -> None:
        self.live: dict[str, dict[str, Any]] = {}
        self.deleted: dict[str, list[dict[str, Any]]] = {}

    def save(self, id: str, task: dict[str, Any]) -> Any:
        self.live[id] = task

    def delete(self, id: str) -> Any:
        if id not in self.live:
            return False
        self.deleted.setdefault(id, []).append(self.live.pop(id))
        return True

    def restore(self, id: str) -> Any:
        if not self.deleted.get(id):
            return NotFound
        if id in self.live:
            return Conflict
        self.live[id] = self.deleted[id].pop()
        return self.live[id]

    def purge(self, id: str) -> Any:
        return (self.live.pop(id, None) is not None) + len(self.deleted.pop(id, []))


def done(store: Any, name: str, id: str, task: dict[str, Any]) -> Any:
    """Return the result of a call, or its error."""
    try:
        answer = getattr(store, name)(id, *([task] if name == "save" else []))
    except (NotFound, Conflict) as error:
        return type(error)
    return answer.task if name == "restore" else answer


calls = st.tuples(st.sampled_from(["save", "save", "save", "delete", "restore", "purge"]), st.sampled_from("ab"), tasks)


@settings(max_examples=40, deadline=None)
@given(st.lists(calls, max_size=14))
def test_random_histories_leave_the_same_tasks_as_the_model(history: list[tuple[str, str, dict[str, Any]]]) -> None:
    with Holdfast(":memory:") as hf:
        tenant: TenantHandle = hf.tenant("acme")
        model = Model()
        for name, id, task in history:
            expected = getattr(model, name)(id, *([task] if name == "save" else []))
            assert done(tenant.a2a_tasks, name, id, task) == expected, (name, id)
            found = {task.id: task.task for task in tenant.a2a_tasks.list()}
            assert found == model.live
            assert tenant.a2a_tasks.count() == len(model.live)
