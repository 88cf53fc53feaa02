"""The rules of tool calls, as pure functions: no finished call is ever begun again."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import Limits, NewToolCall
from holdfast.clock import to_us
from holdfast.engines.dialect import Dialect
from holdfast.errors import Conflict, InvalidInput, LimitExceeded
from holdfast.migrations.files import migrations
from holdfast.stores.execution.runs.ledger import (
    CALL_MOVES,
    OPEN_STATUSES,
    Action,
    CallStatus,
    CallVerb,
    Outcome,
    Safety,
    StoredCall,
    action_of,
    must_begin,
    stored_calls,
)
from holdfast.types import ToolCall
from tests.errors import raises

STATUSES: tuple[CallStatus, ...] = get_args(CallStatus)
SAFETY: tuple[Safety, ...] = get_args(Safety)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_US = to_us(NOW)
EPOCH = 5

RECORDED = ToolCall(
    id="c", run_id="r", tool_name="mail", tool_input={"to": 1}, safety="idempotent", status="begun", iteration=1,
    epoch=EPOCH - 1, attempts=1, pause_until=None, result=None, error=None, step=None, started_at=NOW, finished_at=None,
)  # fmt: skip


def new(**changes: Any) -> StoredCall:
    arguments: dict[str, Any] = {"id": "c", "tool_name": "mail", "tool_input": {"to": 1}, "safety": "idempotent"}
    return stored_calls([NewToolCall(**{**arguments, **changes})], Limits())[0]


def try_begin(recorded: ToolCall, call: StoredCall | None = None) -> bool | str:
    """Return whether the call is begun, or the message of the conflict."""
    try:
        return must_begin(recorded, call or new(safety=recorded.safety), epoch=EPOCH, now_us=NOW_US)
    except Conflict as error:
        return str(error)


def action(recorded: ToolCall, *, run_status: str = "running") -> Action:
    return action_of(recorded, run_status=run_status, run_epoch=EPOCH, now_us=NOW_US)


def test_the_moves_start_at_open_statuses_and_outcomes_are_final() -> None:
    assert set(CALL_MOVES) == set(get_args(CallVerb))
    for moves in CALL_MOVES.values():
        assert set(moves) <= OPEN_STATUSES
        assert set(moves.values()) <= set(STATUSES)
    assert OPEN_STATUSES | set(get_args(Outcome)) == set(STATUSES)
    assert not OPEN_STATUSES & set(get_args(Outcome))


def test_both_schemas_allow_exactly_these_statuses_and_safeties() -> None:
    for dialect in Dialect:
        script = "".join(migration.up for migration in migrations(dialect)).partition("CREATE TABLE tool_calls")[2]
        for column, expected in (("safety", SAFETY), ("status", STATUSES)):
            check = re.search(rf"CHECK \({column} IN \(([^)]*)\)\)", script)
            assert check is not None
            assert tuple(re.findall(r"'(\w+)'", check[1])) == expected


@pytest.mark.parametrize("status", get_args(Outcome))
@pytest.mark.parametrize("safety", SAFETY)
def test_a_finished_call_is_never_begun(status: CallStatus, safety: Safety) -> None:
    call = replace(RECORDED, status=status, safety=safety, finished_at=NOW)
    assert f"is {status}" in str(try_begin(call))


@pytest.mark.parametrize(("safety", "expected"), [("idempotent", "run"), ("at_most_once", "report"), ("ask", "ask")])
def test_an_interrupted_attempt_is_handled_by_its_safety(safety: Safety, expected: Action) -> None:
    call = replace(RECORDED, safety=safety)
    assert action(call) == expected
    for status in ("pending", "paused", "waiting", "failed"):
        assert action(replace(call, epoch=EPOCH), run_status=status) == expected, "the run has no holder"
    assert action(replace(call, epoch=EPOCH)) == "wait"
    if safety == "idempotent":
        assert try_begin(call) is True
    else:
        assert f"is {safety}" in str(try_begin(call))


@pytest.mark.parametrize("safety", SAFETY)
def test_a_repeated_intent_begins_nothing(safety: Safety) -> None:
    assert try_begin(replace(RECORDED, safety=safety, epoch=EPOCH)) is False
    assert try_begin(replace(RECORDED, safety=safety, epoch=EPOCH + 1)) is False


@pytest.mark.parametrize("safety", SAFETY)
def test_a_held_call_waits_for_a_person(safety: Safety) -> None:
    held = replace(RECORDED, status="held", safety=safety, attempts=0)
    assert action(held) == "ask"
    assert isinstance(try_begin(held), str)
    assert try_begin(held, new(safety=safety, hold=True)) is False, "the same intent again"


@pytest.mark.parametrize("safety", SAFETY)
@pytest.mark.parametrize(
    ("after_s", "expected"), [(None, "run"), (-1, "run"), (0, "run"), (0.000001, "wait"), (60, "wait")]
)
def test_a_ready_call_is_begun_from_its_time_on(safety: Safety, after_s: float | None, expected: Action) -> None:
    until = None if after_s is None else NOW + timedelta(seconds=after_s)
    ready = replace(RECORDED, status="ready", safety=safety, pause_until=until)
    assert action(ready) == expected
    assert (try_begin(ready) is True) == (expected == "run")


@given(
    status=st.sampled_from(STATUSES),
    safety=st.sampled_from(SAFETY),
    epoch=st.integers(1, EPOCH),
    attempts=st.integers(0, 3),
    waits=st.none() | st.integers(-5, 5),
)
def test_the_offered_action_matches_what_may_be_begun(
    status: CallStatus, safety: Safety, epoch: int, attempts: int, waits: int | None
) -> None:
    """The action after a crash and the rule of the next intent agree."""
    until = None if waits is None else NOW + timedelta(seconds=waits)
    call = replace(RECORDED, status=status, safety=safety, epoch=epoch, attempts=attempts, pause_until=until)
    result = try_begin(call)
    if status not in OPEN_STATUSES:
        assert isinstance(result, str)
    else:
        assert (result is True) == (action(call) == "run")
    if result is True and status == "begun":
        assert safety == "idempotent", "only idempotent calls are begun again without a decision"


@pytest.mark.parametrize(
    "other", [{"tool_name": "other"}, {"tool_input": {"to": 1.0}}, {"tool_input": {"to": True}}, {"safety": "ask"}]
)
def test_other_content_under_the_same_id_is_a_conflict(other: dict[str, Any]) -> None:
    assert "is recorded with" in str(try_begin(RECORDED, new(**other)))
    assert try_begin(RECORDED, new()) is True


def test_the_order_of_keys_does_not_matter() -> None:
    call = replace(RECORDED, tool_input={"a": 1, "b": [2]})
    assert try_begin(call, new(tool_input={"b": [2], "a": 1})) is True


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        "abc",
        [None],
        [NewToolCall(id="", tool_name="t")],
        [NewToolCall(id="a", tool_name="")],
        [NewToolCall(id=7, tool_name="t")],  # type: ignore[arg-type]
        [NewToolCall(id="a", tool_name="t", safety="maybe")],  # type: ignore[arg-type]
        [NewToolCall(id="a", tool_name="t", hold=1)],  # type: ignore[arg-type]
        [NewToolCall(id="a", tool_name="t", tool_input={1, 2})],
        [NewToolCall(id="a", tool_name="t"), NewToolCall(id="a", tool_name="u")],
    ],
)
def test_invalid_calls_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        stored_calls(wrong, Limits())


def test_exceeded_limits_are_named() -> None:
    limits = Limits(open_tool_calls=2, tool_input_bytes=5, name_bytes=5)
    cases = [
        ([NewToolCall(id=str(n), tool_name="t") for n in range(3)], "open_tool_calls"),
        ([NewToolCall(id="a", tool_name="t", tool_input="12345")], "tool_input_bytes"),
        ([NewToolCall(id="123456", tool_name="t")], "name_bytes"),
        ([NewToolCall(id="a", tool_name="123456")], "name_bytes"),
    ]
    for calls, name in cases:
        with raises(LimitExceeded, limit=name):
            stored_calls(calls, limits)
    assert stored_calls([NewToolCall(id="12345", tool_name="t", tool_input="123")], limits)[0].status == "begun"
