"""What may be done with a tool call, decided by plain functions: nothing that is done is done again."""

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

STATUSES: tuple[CallStatus, ...] = get_args(CallStatus)
SAFETY: tuple[Safety, ...] = get_args(Safety)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_US = to_us(NOW)
EPOCH = 5

THERE = ToolCall(
    id="c", run_id="r", tool_name="mail", tool_input={"to": 1}, safety="idempotent", status="begun", iteration=1,
    epoch=EPOCH - 1, attempts=1, pause_until=None, result=None, error=None, step=None, started_at=NOW, finished_at=None,
)  # fmt: skip


def new(**how: Any) -> StoredCall:
    plain: dict[str, Any] = {"id": "c", "tool_name": "mail", "tool_input": {"to": 1}, "safety": "idempotent"}
    return stored_calls([NewToolCall(**{**plain, **how})], Limits())[0]


def may_begin(there: ToolCall, call: StoredCall | None = None) -> bool | str:
    """Whether it is begun, or what is said against it."""
    try:
        return must_begin(there, call or new(safety=there.safety), epoch=EPOCH, now_us=NOW_US)
    except Conflict as error:
        return str(error)


def action(there: ToolCall, *, run_status: str = "running") -> Action:
    return action_of(there, run_status=run_status, run_epoch=EPOCH, now_us=NOW_US)


def test_the_table_of_moves_is_closed_and_ends_are_ends() -> None:
    assert set(CALL_MOVES) == set(get_args(CallVerb))
    for moves in CALL_MOVES.values():
        assert set(moves) <= OPEN_STATUSES
        assert set(moves.values()) <= set(STATUSES)
    assert OPEN_STATUSES | set(get_args(Outcome)) == set(STATUSES)
    assert not OPEN_STATUSES & set(get_args(Outcome))


def test_both_schemas_know_exactly_these_statuses_and_kinds_of_safety() -> None:
    for dialect in Dialect:
        script = "".join(each.up for each in migrations(dialect)).partition("CREATE TABLE tool_calls")[2]
        for column, expected in (("safety", SAFETY), ("status", STATUSES)):
            listed = re.search(rf"CHECK \({column} IN \(([^)]*)\)\)", script)
            assert listed is not None
            assert tuple(re.findall(r"'(\w+)'", listed[1])) == expected


@pytest.mark.parametrize("status", get_args(Outcome))
@pytest.mark.parametrize("safety", SAFETY)
def test_what_is_finished_is_never_begun(status: CallStatus, safety: Safety) -> None:
    there = replace(THERE, status=status, safety=safety, finished_at=NOW)
    assert "not done again" in str(may_begin(there))


@pytest.mark.parametrize(("safety", "expected"), [("idempotent", "run"), ("at_most_once", "report"), ("ask", "ask")])
def test_an_attempt_that_never_came_back_goes_the_way_of_its_tool(safety: Safety, expected: Action) -> None:
    there = replace(THERE, safety=safety)
    assert action(there) == expected
    for status in ("pending", "paused", "waiting", "failed"):
        assert action(replace(there, epoch=EPOCH), run_status=status) == expected, "nobody is at it any more"
    assert action(replace(there, epoch=EPOCH)) == "wait"
    if safety == "idempotent":
        assert may_begin(there) is True
    else:
        assert "must not be begun again" in str(may_begin(there))


@pytest.mark.parametrize("safety", SAFETY)
def test_the_same_attempt_again_begins_nothing(safety: Safety) -> None:
    assert may_begin(replace(THERE, safety=safety, epoch=EPOCH)) is False
    assert may_begin(replace(THERE, safety=safety, epoch=EPOCH + 1)) is False


@pytest.mark.parametrize("safety", SAFETY)
def test_what_is_held_waits_for_a_person(safety: Safety) -> None:
    held = replace(THERE, status="held", safety=safety, attempts=0)
    assert action(held) == "ask"
    assert "waits for a person" in str(may_begin(held))
    assert may_begin(held, new(safety=safety, hold=True)) is False, "the same intent again"


@pytest.mark.parametrize("safety", SAFETY)
@pytest.mark.parametrize(
    ("after_s", "expected"), [(None, "run"), (-1, "run"), (0, "run"), (0.000001, "wait"), (60, "wait")]
)
def test_what_is_ready_is_begun_when_its_time_has_come(safety: Safety, after_s: float | None, expected: Action) -> None:
    until = None if after_s is None else NOW + timedelta(seconds=after_s)
    ready = replace(THERE, status="ready", safety=safety, pause_until=until)
    assert action(ready) == expected
    assert (may_begin(ready) is True) == (expected == "run")


@given(
    status=st.sampled_from(STATUSES),
    safety=st.sampled_from(SAFETY),
    epoch=st.integers(1, EPOCH),
    attempts=st.integers(0, 3),
    waits=st.none() | st.integers(-5, 5),
)
def test_what_may_be_begun_is_what_is_offered(
    status: CallStatus, safety: Safety, epoch: int, attempts: int, waits: int | None
) -> None:
    """The advice after a crash and the rule at the next intent never disagree."""
    until = None if waits is None else NOW + timedelta(seconds=waits)
    call = replace(THERE, status=status, safety=safety, epoch=epoch, attempts=attempts, pause_until=until)
    begun = may_begin(call)
    if status not in OPEN_STATUSES:
        assert isinstance(begun, str)
    else:
        assert (begun is True) == (action(call) == "run")
    if begun is True and status == "begun":
        assert safety == "idempotent", "at most once, and never without being asked"


@pytest.mark.parametrize(
    "other", [{"tool_name": "other"}, {"tool_input": {"to": 1.0}}, {"tool_input": {"to": True}}, {"safety": "ask"}]
)
def test_another_content_under_the_same_id_is_a_conflict(other: dict[str, Any]) -> None:
    assert "another tool" in str(may_begin(THERE, new(**other)))
    assert may_begin(THERE, new()) is True


def test_the_order_of_keys_makes_no_difference() -> None:
    there = replace(THERE, tool_input={"a": 1, "b": [2]})
    assert may_begin(there, new(tool_input={"b": [2], "a": 1})) is True


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
def test_what_is_no_call_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        stored_calls(wrong, Limits())


def test_limits_are_named() -> None:
    limits = Limits(open_tool_calls=2, tool_input_bytes=5, name_bytes=5)
    cases = [
        ([NewToolCall(id=str(n), tool_name="t") for n in range(3)], "open_tool_calls"),
        ([NewToolCall(id="a", tool_name="t", tool_input="12345")], "tool_input_bytes"),
        ([NewToolCall(id="123456", tool_name="t")], "name_bytes"),
        ([NewToolCall(id="a", tool_name="123456")], "name_bytes"),
    ]
    for calls, name in cases:
        with pytest.raises(LimitExceeded, match=name):
            stored_calls(calls, limits)
    assert stored_calls([NewToolCall(id="12345", tool_name="t", tool_input="123")], limits)[0].status == "begun"
