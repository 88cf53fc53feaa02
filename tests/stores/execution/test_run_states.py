"""The table of legal moves of a run, and what a claim makes of one: as data, and by plain functions of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.clock import to_us
from holdfast.engines.dialect import Dialect
from holdfast.errors import Conflict, Fenced, InvalidInput
from holdfast.migrations.files import migrations
from holdfast.stores.execution.runs import states as run_states
from holdfast.stores.execution.runs.leases import HIDDEN_S, judge
from holdfast.stores.execution.runs.states import (
    FINAL,
    MOVES,
    Status,
    Verb,
    check_epoch,
    check_holder,
    next_status,
    time_us,
)
from holdfast.types import Run

STATUSES: tuple[Status, ...] = get_args(Status)
VERBS: tuple[Verb, ...] = get_args(Verb)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_US = to_us(NOW)
LEASE_S = 30

PLAIN = Run(
    id="r", session_id="s", agent="a", status="pending", iteration=0, epoch=3, attempts=0, max_attempts=5, holder="",
    lease_ms=0, lease_until=None, doubted_at=None, pause_until=None, stop_reason=None, error=None, parent_run_id=None,
    parent_call_id=None, depth=0, input_tokens=0, output_tokens=0, metadata={}, started_at=NOW, checkpointed_at=None,
    finished_at=None,
)  # fmt: skip


def leased(until_s: float, *, doubted_s: float | None = None) -> Run:
    """A run whose lease ends so many seconds from now, and was doubted so many seconds from now."""
    doubted = None if doubted_s is None else NOW + timedelta(seconds=doubted_s)
    until = NOW + timedelta(seconds=until_s)
    return replace(PLAIN, status="running", holder="w", lease_ms=LEASE_S * 1_000, lease_until=until, doubted_at=doubted)


def seconds(at_us: int) -> float:
    return (at_us - NOW_US) / 1_000_000


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("status", STATUSES)
def test_every_move_is_in_the_table_or_refused(status: Status, verb: Verb) -> None:
    run = replace(PLAIN, status=status)
    if status in MOVES[verb]:
        assert next_status(run, verb) == MOVES[verb][status]
    else:
        with pytest.raises(Conflict, match=f"is {status}"):
            next_status(run, verb)


def test_the_table_is_complete_and_closed() -> None:
    assert set(MOVES) == set(VERBS)
    for moves in MOVES.values():
        assert set(moves) | set(moves.values()) <= set(STATUSES)
    reached = {to for moves in MOVES.values() for to in moves.values()} | {"pending"}
    assert reached == set(STATUSES), "every status can be reached"


def test_what_is_completed_or_cancelled_never_moves_again_and_what_failed_only_by_resume() -> None:
    for verb, moves in MOVES.items():
        assert not {"completed", "cancelled"} & set(moves)
        assert "failed" not in moves or verb == "resume"
    assert {"completed", "failed", "cancelled"} == FINAL


def test_from_every_status_that_is_not_final_there_is_a_way_to_an_end() -> None:
    for status in set(STATUSES) - FINAL:
        assert MOVES["cancel"][status] == "cancelled"


@given(st.lists(st.sampled_from(VERBS), max_size=30))
def test_any_walk_through_the_table_stays_in_it(walk: list[Verb]) -> None:
    run = PLAIN
    for verb in walk:
        before = run.status
        try:
            run = replace(run, status=next_status(run, verb))
        except Conflict:
            assert before not in MOVES[verb]
    assert run.status in STATUSES


def test_both_schemas_know_exactly_these_statuses() -> None:
    for dialect in Dialect:
        script = "".join(each.up for each in migrations(dialect))
        listed = re.search(r"CHECK \(status IN \(([^)]*)\)\),\n    CHECK \(\(finished_at IS NOT NULL", script)
        assert listed is not None
        assert re.findall(r"'(\w+)'", listed[1]) == [*STATUSES]
        ended = re.search(r"= \(status IN \(([^)]*)\)\)\),\n    CHECK \(\(lease_until", script)
        assert ended is not None
        assert set(re.findall(r"'(\w+)'", ended[1])) == FINAL


@pytest.mark.parametrize(("epoch", "error"), [(2, Fenced), (4, Conflict), (0, Fenced)])
def test_only_the_epoch_of_the_last_claim_may_write(epoch: int, error: type[Exception]) -> None:
    run = leased(LEASE_S)
    check_holder(run, 3)
    with pytest.raises(error):
        check_holder(run, epoch)


@pytest.mark.parametrize("status", sorted(set(STATUSES) - {"running"}))
def test_the_right_epoch_is_not_enough_when_nobody_holds_the_run(status: Status) -> None:
    with pytest.raises(Conflict, match="claim it"):
        check_holder(replace(PLAIN, status=status), 3)


@pytest.mark.parametrize("wrong", [-1, True, "1", 1.0, None, 2**62])
def test_what_is_no_epoch_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        check_epoch(wrong)


@pytest.mark.parametrize("wrong", [None, "now", 5, NOW.replace(tzinfo=None)])
def test_a_moment_has_a_time_zone(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        time_us(wrong, "until")
    assert time_us(NOW, "until") == NOW_US


# What a claim makes of a run.


@pytest.mark.parametrize("status", sorted(FINAL | {"waiting"}))
def test_what_nobody_can_claim_leaves_the_queue(status: Status) -> None:
    assert judge(replace(PLAIN, status=status), is_visible=True, now_us=NOW_US) == ("drop", 0)
    assert judge(replace(PLAIN, status=status), is_visible=False, now_us=NOW_US) == ("drop", 0)


def test_what_is_pending_is_taken_whatever_the_clock_says() -> None:
    for now_us in (0, NOW_US, NOW_US + 10**15):
        assert judge(PLAIN, is_visible=True, now_us=now_us) == ("take", 0)


def test_what_a_deleted_session_hides_is_looked_at_again() -> None:
    verdict, at = judge(PLAIN, is_visible=False, now_us=NOW_US)
    assert (verdict, seconds(at)) == ("later", HIDDEN_S)


@pytest.mark.parametrize(("until_s", "expected"), [(-1, "take"), (0, "take"), (0.000001, "later"), (10**6, "later")])
def test_a_pause_ends_exactly_at_its_time(until_s: float, expected: str) -> None:
    run = replace(PLAIN, status="paused", pause_until=NOW + timedelta(seconds=until_s))
    verdict, at = judge(run, is_visible=True, now_us=NOW_US)
    assert verdict == expected
    if verdict == "later":
        assert seconds(at) == until_s


@pytest.mark.parametrize("until_s", [0.000001, 1, LEASE_S, 2 * LEASE_S])
@pytest.mark.parametrize("doubted_s", [None, -(10**6), -1, 5])
def test_a_lease_that_has_not_run_out_is_left_alone(until_s: float, doubted_s: float | None) -> None:
    verdict, at = judge(leased(until_s, doubted_s=doubted_s), is_visible=True, now_us=NOW_US)
    assert (verdict, seconds(at)) == ("later", until_s)


@pytest.mark.parametrize("until_s", [0, -1, -(10**9), 2 * LEASE_S + 1, 10**9])
def test_a_lease_that_has_run_out_or_cannot_be_is_first_doubted(until_s: float) -> None:
    verdict, at = judge(leased(until_s), is_visible=True, now_us=NOW_US)
    assert (verdict, seconds(at)) == ("doubt", LEASE_S / 2)


@pytest.mark.parametrize("until_s", [0, -1, 10**9])
def test_half_a_lease_after_the_doubt_the_run_is_taken(until_s: float) -> None:
    early = judge(leased(until_s, doubted_s=-LEASE_S / 2 + 0.000001), is_visible=True, now_us=NOW_US)
    assert (early[0], seconds(early[1])) == ("later", 0.000001)
    assert judge(leased(until_s, doubted_s=-LEASE_S / 2), is_visible=True, now_us=NOW_US) == ("take", 0)


def test_a_doubt_of_tomorrow_is_a_doubt_of_now() -> None:
    verdict, at = judge(leased(-1, doubted_s=3_600), is_visible=True, now_us=NOW_US)
    assert (verdict, seconds(at)) == ("doubt", LEASE_S / 2)


@given(
    jumps=st.lists(st.floats(-1e7, 1e7), max_size=1),
    before=st.integers(0, 8),
    polls=st.lists(st.floats(0, LEASE_S / 6), min_size=1, max_size=20),
)
def test_one_jump_of_the_clock_takes_nothing_from_a_holder_that_renews(
    jumps: list[float], before: int, polls: list[float]
) -> None:
    """A holder that renews every third of its lease, and somebody who asks whenever it likes, on one clock that jumps once."""
    clock_us = NOW_US
    run = leased(LEASE_S)
    real_s = renewed_s = 0.0
    for number, pause_s in enumerate(polls):
        if jumps and number == before:
            clock_us += round(jumps[0] * 1e6)
        real_s += pause_s
        clock_us += round(pause_s * 1e6)
        if real_s - renewed_s >= LEASE_S / 3 - LEASE_S / 6:
            renewed_s = real_s
            until = datetime.fromtimestamp(clock_us / 1e6 + LEASE_S, UTC)
            run = replace(run, lease_until=until, doubted_at=None)
        verdict, _ = judge(run, is_visible=True, now_us=clock_us)
        assert verdict != "take"
        if verdict == "doubt":
            run = replace(run, doubted_at=datetime.fromtimestamp(clock_us / 1e6, UTC))


@given(ahead_s=st.floats(0, 1e8), polls=st.integers(1, 50))
def test_a_dead_holder_is_found_out_however_far_its_clock_was_ahead(ahead_s: float, polls: int) -> None:
    """Whatever the lease says, whoever asks regularly gets the run after a lease or after half of one; more only where the
    lease could be one of a clock that is right."""
    run, clock_us = leased(LEASE_S + ahead_s), NOW_US
    limit_s = 2 * LEASE_S + LEASE_S / 2 + 2
    for _ in range(polls + round(limit_s)):
        verdict, _ = judge(run, is_visible=True, now_us=clock_us)
        if verdict == "take":
            assert (clock_us - NOW_US) / 1e6 <= limit_s
            return
        if verdict == "doubt":
            run = replace(run, doubted_at=datetime.fromtimestamp(clock_us / 1e6, UTC))
        clock_us += 1_000_000
    pytest.fail("it was never taken")


def test_the_queue_and_the_runs_are_in_files_of_their_own() -> None:
    assert {"put", "remove", "peek"} == set(run_states.queue.by_name)
    assert {"create", "get", "list", "lock", "look", "move", "renew", "doubt"} <= set(run_states.queries.by_name)
