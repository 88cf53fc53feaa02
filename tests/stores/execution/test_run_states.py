"""The legal moves of a run, and the verdict of a claim: as data and as pure functions."""

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
from tests.errors import raises

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
    """Return a run whose lease ends at ``until_s`` and was doubted at ``doubted_s``, in seconds from now."""
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
        with raises(Conflict, reason="status"):
            next_status(run, verb)


def test_the_table_is_complete_and_closed() -> None:
    assert set(MOVES) == set(VERBS)
    for moves in MOVES.values():
        assert set(moves) | set(moves.values()) <= set(STATUSES)
    reached = {to for moves in MOVES.values() for to in moves.values()} | {"pending"}
    assert reached == set(STATUSES), "every status can be reached"


def test_completed_and_cancelled_runs_never_move_and_failed_ones_only_by_resume() -> None:
    for verb, moves in MOVES.items():
        assert not {"completed", "cancelled"} & set(moves)
        assert "failed" not in moves or verb == "resume"
    assert {"completed", "failed", "cancelled"} == FINAL


def test_every_open_status_can_be_cancelled() -> None:
    for status in set(STATUSES) - FINAL:
        assert MOVES["cancel"][status] == "cancelled"


@given(st.lists(st.sampled_from(VERBS), max_size=30))
def test_any_sequence_of_moves_stays_in_the_table(walk: list[Verb]) -> None:
    run = PLAIN
    for verb in walk:
        before = run.status
        try:
            run = replace(run, status=next_status(run, verb))
        except Conflict:
            assert before not in MOVES[verb]
    assert run.status in STATUSES


def test_both_schemas_allow_exactly_these_statuses() -> None:
    for dialect in Dialect:
        script = "".join(migration.up for migration in migrations(dialect))
        check = re.search(r"CHECK \(status IN \(([^)]*)\)\),\n    CHECK \(\(finished_at IS NOT NULL", script)
        assert check is not None
        assert re.findall(r"'(\w+)'", check[1]) == [*STATUSES]
        ended = re.search(r"= \(status IN \(([^)]*)\)\)\),\n    CHECK \(\(lease_until", script)
        assert ended is not None
        assert set(re.findall(r"'(\w+)'", ended[1])) == FINAL


@pytest.mark.parametrize(("epoch", "error"), [(2, Fenced), (4, Conflict), (0, Fenced)])
def test_only_the_epoch_of_the_last_claim_can_write(epoch: int, error: type[Exception]) -> None:
    run = leased(LEASE_S)
    check_holder(run, 3)
    with pytest.raises(error):
        check_holder(run, epoch)


@pytest.mark.parametrize("status", sorted(set(STATUSES) - {"running"}))
def test_the_current_epoch_cannot_write_when_the_run_is_not_running(status: Status) -> None:
    with raises(Conflict, reason="status"):
        check_holder(replace(PLAIN, status=status), 3)


@pytest.mark.parametrize("wrong", [-1, True, "1", 1.0, None, 2**62])
def test_an_invalid_epoch_is_refused(wrong: Any) -> None:
    with raises(InvalidInput, field="epoch"):
        check_epoch(wrong)


@pytest.mark.parametrize("wrong", [None, "now", 5, NOW.replace(tzinfo=None)])
def test_a_time_needs_a_time_zone(wrong: Any) -> None:
    with raises(InvalidInput, field="until"):
        time_us(wrong, "until")
    assert time_us(NOW, "until") == NOW_US


# The verdict of a claim.


@pytest.mark.parametrize("status", sorted(FINAL | {"waiting"}))
def test_unclaimable_runs_leave_the_queue(status: Status) -> None:
    assert judge(replace(PLAIN, status=status), is_visible=True, now_us=NOW_US) == ("drop", 0)
    assert judge(replace(PLAIN, status=status), is_visible=False, now_us=NOW_US) == ("drop", 0)


def test_a_pending_run_is_claimed_at_any_time() -> None:
    for now_us in (0, NOW_US, NOW_US + 10**15):
        assert judge(PLAIN, is_visible=True, now_us=now_us) == ("take", 0)


def test_a_run_of_a_deleted_session_is_examined_again_later() -> None:
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
def test_a_valid_lease_is_respected(until_s: float, doubted_s: float | None) -> None:
    verdict, at = judge(leased(until_s, doubted_s=doubted_s), is_visible=True, now_us=NOW_US)
    assert (verdict, seconds(at)) == ("later", until_s)


@pytest.mark.parametrize("until_s", [0, -1, -(10**9), 2 * LEASE_S + 1, 10**9])
def test_an_expired_or_impossible_lease_is_first_doubted(until_s: float) -> None:
    verdict, at = judge(leased(until_s), is_visible=True, now_us=NOW_US)
    assert (verdict, seconds(at)) == ("doubt", LEASE_S / 2)


@pytest.mark.parametrize("until_s", [0, -1, 10**9])
def test_a_doubted_run_is_claimed_half_a_lease_later(until_s: float) -> None:
    early = judge(leased(until_s, doubted_s=-LEASE_S / 2 + 0.000001), is_visible=True, now_us=NOW_US)
    assert (early[0], seconds(early[1])) == ("later", 0.000001)
    assert judge(leased(until_s, doubted_s=-LEASE_S / 2), is_visible=True, now_us=NOW_US) == ("take", 0)


def test_a_doubt_in_the_future_starts_again_now() -> None:
    verdict, at = judge(leased(-1, doubted_s=3_600), is_visible=True, now_us=NOW_US)
    assert (verdict, seconds(at)) == ("doubt", LEASE_S / 2)


@given(
    jumps=st.lists(st.floats(-1e7, 1e7), max_size=1),
    before=st.integers(0, 8),
    polls=st.lists(st.floats(0, LEASE_S / 6), min_size=1, max_size=20),
)
def test_one_clock_jump_takes_no_run_from_a_holder_that_renews(
    jumps: list[float], before: int, polls: list[float]
) -> None:
    """One holder renews every third of its lease, another one polls at any time, on one clock that jumps once."""
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
def test_a_dead_holders_run_is_claimed_even_if_its_clock_was_ahead(ahead_s: float, polls: int) -> None:
    """Whatever the lease contains, a regular poller gets the run after a lease or half of one; later only if the lease could have
    been written by a correct clock.
    """
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
    pytest.fail("the run was never claimed")


def test_the_queue_and_the_runs_have_their_own_query_files() -> None:
    assert {"put", "remove", "peek"} == set(run_states.queue.by_name)
    assert {"create", "get", "list", "lock", "look", "move", "renew", "doubt"} <= set(run_states.queries.by_name)
