"""Edge cases of rewinds: runs in any state, names of any text, and changes between begin and finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from holdfast import FixedClock, Holdfast, Limits, NewMessage, NewToolCall, TenantHandle, ToolOutcome, Usage
from holdfast.errors import Conflict, Fenced, InvalidInput, LimitExceeded, NotFound
from holdfast.types import Run
from tests.errors import raises

UNKNOWN_ID = "01900000-0000-7000-8000-000000000000"
ODD = "nul \0, lone \udcff, Ünïcode 🙂"
NUMBERS = count(1)
LATER = datetime(2100, 1, 1, tzinfo=UTC)


class Place(NamedTuple):
    """A tenant with a run of two steps that a worker holds, and another tenant."""

    acme: TenantHandle
    zenith: TenantHandle
    clock: FixedClock
    run: Run

    def now(self) -> Run:
        return self.acme.runs.get(self.run.id)


@pytest.fixture(scope="module")
def _open() -> Iterator[tuple[Holdfast, FixedClock]]:
    """One database for all: each test has tenants of its own."""
    clock = FixedClock()
    with Holdfast(":memory:", clock=clock, limits=Limits(list_rows=2, page_rows=3)) as hf:
        yield hf, clock


@pytest.fixture
def place(_open: tuple[Holdfast, FixedClock]) -> Place:
    hf, clock = _open
    number = next(NUMBERS)
    acme = hf.tenant(f"acme {number}")
    run = start_held_run(acme)
    for iteration in (1, 2):
        step(acme, run, iteration)
    return Place(acme, hf.tenant(f"zenith {number}"), clock, run)


def start_held_run(acme: TenantHandle) -> Run:
    run = acme.leases.claim("me", run_id=acme.runs.start(acme.sessions.create().id).id)
    assert run is not None
    return run


def step(acme: TenantHandle, run: Run, number: int, **more: Any) -> None:
    """Commit a step with a message."""
    messages = [NewMessage(role="assistant", content=f"step {number}")]
    acme.runs.step(run.id, epoch=run.epoch, iteration=number, state=number, messages=messages, **more)


def rewind_to(place: Place, to_step: int, **more: Any) -> str:
    rewind = place.acme.rewinds.begin(place.run.id, to_step=to_step, **more)
    return place.acme.rewinds.finish(rewind.id).id


def redo_last(place: Place) -> None:
    place.acme.rewinds.finish(place.acme.rewinds.redo(place.run.id).id)


def release_run(place: Place) -> None:
    place.acme.leases.release(place.run.id, epoch=place.run.epoch)


# ---------------------------------------------------------------------------------------------- runs in any state

ENDINGS: dict[str, Callable[[TenantHandle, Run], object]] = {
    "pending": lambda acme, run: acme.leases.release(run.id, epoch=run.epoch),
    "paused": lambda acme, run: acme.runs.pause(run.id, epoch=run.epoch, until=LATER),
    "waiting": lambda acme, run: acme.runs.pause(run.id, epoch=run.epoch),
    "completed": lambda acme, run: acme.runs.finish(run.id, epoch=run.epoch, stop_reason=ODD),
    "failed": lambda acme, run: acme.runs.fail(run.id, epoch=run.epoch, error=ODD),
    "cancelled": lambda acme, run: acme.runs.cancel(run.id, reason=ODD),
}


@pytest.mark.parametrize("status", ENDINGS)
def test_a_rewound_run_waits_and_a_redo_restores_its_state(place: Place, status: str) -> None:
    ENDINGS[status](place.acme, place.run)
    before = place.now()
    rewind_to(place, 1)
    existing = place.now()
    assert (existing.status, existing.iteration, existing.attempts) == ("waiting", 1, 0)
    assert (existing.stop_reason, existing.error, existing.pause_until, existing.finished_at) == (
        None,
        None,
        None,
        None,
    )
    redo_last(place)
    assert place.now().status == status
    assert replace(place.now(), epoch=0) == replace(before, epoch=0)


@pytest.mark.parametrize("status", ENDINGS)
def test_a_redone_run_regains_its_status_only_when_finished(place: Place, status: str) -> None:
    ENDINGS[status](place.acme, place.run)
    rewind_to(place, 0)
    place.acme.rewinds.redo(place.run.id)
    existing = place.now()
    assert (existing.status, existing.iteration) == ("waiting", 2)
    assert (existing.stop_reason, existing.error, existing.finished_at) == (None, None, None)


def test_a_redone_paused_run_is_claimed_after_its_pause(place: Place) -> None:
    until = datetime.fromtimestamp(place.clock.now_us() / 1e6, UTC) + timedelta(hours=1)
    place.acme.runs.pause(place.run.id, epoch=place.run.epoch, until=until)
    rewind_to(place, 1)
    redo_last(place)
    assert place.acme.leases.claim("heir") is None
    place.clock.advance(3_601)
    assert place.acme.leases.claim("heir") is not None


def test_a_redone_completed_run_is_not_claimed(place: Place) -> None:
    place.acme.runs.finish(place.run.id, epoch=place.run.epoch, stop_reason="done")
    rewind_to(place, 1)
    redo_last(place)
    assert place.acme.leases.claim("heir") is None
    assert place.acme.leases.claim("heir", run_id=place.run.id) is None


def test_a_rewound_completed_run_can_continue(place: Place) -> None:
    place.acme.runs.finish(place.run.id, epoch=place.run.epoch, stop_reason="done")
    rewind_to(place, 1)
    place.acme.runs.resume(place.run.id)
    heir = place.acme.leases.claim("heir")
    assert heir is not None
    step(place.acme, heir, 2)
    assert place.now().iteration == 2


def test_failed_attempts_are_reset_by_a_rewind_and_restored_by_a_redo(place: Place) -> None:
    for _ in range(3):
        place.clock.advance(3_600)
        assert place.acme.leases.claim("heir") is None, "the lease is only doubted"
        place.clock.advance(3_600)
        assert place.acme.leases.claim("heir") is not None
    place.acme.runs.fail(place.run.id, epoch=place.now().epoch, error="no")
    tried = place.now().attempts
    assert tried > 1
    rewind_to(place, 1)
    assert place.now().attempts == 0
    redo_last(place)
    assert place.now().attempts == tried


def test_the_tokens_of_rewound_steps_are_subtracted(place: Place) -> None:
    step(place.acme, place.run, 3, usage=Usage(input_tokens=100, output_tokens=20))
    rewind_to(place, 2, epoch=place.run.epoch)
    assert (place.now().input_tokens, place.now().output_tokens) == (0, 0)
    place.acme.rewinds.finish(place.acme.rewinds.redo(place.run.id, epoch=place.run.epoch).id)
    assert (place.now().input_tokens, place.now().output_tokens) == (100, 20)


# ------------------------------------------------------------------------------------------- changes between begin and finish


@pytest.mark.parametrize("verb", ["begin", "redo"])
def test_a_run_cancelled_before_finish_stays_cancelled(place: Place, verb: str) -> None:
    release_run(place)
    rewind = place.acme.rewinds.begin(place.run.id, to_step=1)
    if verb == "redo":
        place.acme.rewinds.finish(rewind.id)
        place.acme.rewinds.redo(place.run.id)
    place.acme.runs.cancel(place.run.id, reason="enough")
    result = place.acme.rewinds.finish(rewind.id)
    assert result.status == ("rewound" if verb == "begin" else "redone")
    assert (place.now().status, place.now().error) == ("cancelled", "enough")


def test_a_deleted_session_hides_the_rewind_until_it_is_restored(place: Place) -> None:
    release_run(place)
    rewind = place.acme.rewinds.begin(place.run.id, to_step=1)
    place.acme.sessions.delete(place.run.session_id)
    calls: list[Callable[[], object]] = [
        lambda: place.acme.rewinds.finish(rewind.id),
        lambda: place.acme.rewinds.begin(place.run.id, to_step=0),
        lambda: place.acme.rewinds.redo(place.run.id),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()
    place.acme.sessions.restore(place.run.session_id)
    assert place.acme.rewinds.finish(rewind.id).status == "rewound"


def test_a_run_with_a_pending_rewind_has_no_holder(place: Place) -> None:
    release_run(place)
    place.acme.rewinds.begin(place.run.id, to_step=1)
    assert place.acme.leases.claim("heir") is None
    with pytest.raises(Fenced):
        step(place.acme, place.run, 2)


def test_begin_and_finish_have_their_own_times(place: Place) -> None:
    release_run(place)
    rewind = place.acme.rewinds.begin(place.run.id, to_step=1)
    place.clock.advance(7)
    result = place.acme.rewinds.finish(rewind.id)
    assert result.finished_at is not None
    assert result.finished_at - result.created_at == timedelta(seconds=7)
    assert place.acme.rewinds.redo(place.run.id).finished_at is None, "the redo must be finished again"


# ------------------------------------------------------------------------------------------------------ repetitions


def test_a_repeated_rewind_returns_its_current_state(place: Place) -> None:
    release_run(place)
    id = rewind_to(place, 1, id=UNKNOWN_ID)
    redo_last(place)
    again = place.acme.rewinds.begin(place.run.id, to_step=1, id=id)
    assert (again.id, again.status) == (UNKNOWN_ID, "redone")
    assert place.now().iteration == 2, "the run is not rewound again"


def test_the_same_id_for_another_step_is_refused(place: Place) -> None:
    release_run(place)
    rewind_to(place, 1, id=UNKNOWN_ID)
    with raises(Conflict, reason="other_content"):
        place.acme.rewinds.begin(place.run.id, to_step=0, id=UNKNOWN_ID)


def test_a_redo_that_is_repeated_by_its_id_does_nothing_more(place: Place) -> None:
    release_run(place)
    id = rewind_to(place, 1)
    redo_last(place)
    assert place.acme.rewinds.redo(place.run.id, id=id).status == "redone"
    with raises(Conflict, reason="nothing_to_redo"):
        place.acme.rewinds.redo(place.run.id)


def test_two_tenants_may_use_the_same_id(place: Place) -> None:
    theirs = start_held_run(place.zenith)
    rewind_to(place, 1, id=UNKNOWN_ID, epoch=place.run.epoch)
    place.zenith.rewinds.begin(theirs.id, to_step=0, id=UNKNOWN_ID, epoch=theirs.epoch)
    assert place.acme.rewinds.get(UNKNOWN_ID).run_id == place.run.id
    assert place.zenith.rewinds.get(UNKNOWN_ID).run_id == theirs.id


# ------------------------------------------------------------------------------------------------------ names and numbers


def test_names_of_any_text_are_kept(place: Place) -> None:
    release_run(place)
    made = place.acme.rewinds.begin(place.run.id, to_step=1, path=ODD, snapshot=ODD, dirty=ODD)
    assert (made.path, made.snapshot, made.dirty) == (ODD, ODD, ODD)
    assert place.acme.rewinds.finish(made.id).path == ODD
    assert place.acme.rewinds.get(made.id).snapshot == ODD
    assert place.acme.rewinds.redo(place.run.id, path=ODD + "2").path == ODD + "2"
    assert place.acme.rewinds.finish(made.id).path == ODD + "2"


@pytest.mark.parametrize("what", ["path", "snapshot", "dirty"])
@pytest.mark.parametrize(("value", "error"), [("", InvalidInput), (7, InvalidInput), ("ä" * 8_193, LimitExceeded)])
def test_an_invalid_name_begins_no_rewind(place: Place, what: str, value: Any, error: type[Exception]) -> None:
    release_run(place)
    with raises(error, field=what):
        place.acme.rewinds.begin(place.run.id, to_step=1, **{what: value})
    assert (place.now().status, place.now().iteration) == ("pending", 2)
    assert [*place.acme.rewinds.list(place.run.id)] == []


def test_a_path_of_the_maximum_length_is_stored(place: Place) -> None:
    path = "ä" * 8_192
    assert place.acme.rewinds.begin(place.run.id, to_step=1, path=path, epoch=place.run.epoch).path == path


@pytest.mark.parametrize("wrong", ["", "7", 7, "not an id", b"x"])
def test_an_invalid_id_is_refused_by_every_method(place: Place, wrong: Any) -> None:
    rewinds = place.acme.rewinds
    for call in (
        lambda: rewinds.begin(wrong, to_step=0),
        lambda: rewinds.begin(place.run.id, to_step=0, epoch=place.run.epoch, id=wrong),
        lambda: rewinds.redo(wrong),
        lambda: rewinds.redo(place.run.id, id=wrong, epoch=place.run.epoch),
        lambda: rewinds.finish(wrong),
        lambda: rewinds.get(wrong),
        lambda: rewinds.list(wrong),
        lambda: rewinds.pending(wrong),
    ):
        with pytest.raises(InvalidInput):
            call()


@pytest.mark.parametrize("epoch", [True, "1", 1.0, -1])
def test_an_invalid_epoch_is_refused(place: Place, epoch: Any) -> None:
    with raises(InvalidInput, field="epoch"):
        place.acme.rewinds.begin(place.run.id, to_step=0, epoch=epoch)


def test_calls_with_any_id_are_archived_and_restored(place: Place) -> None:
    calls = [NewToolCall(id=ODD, tool_name=ODD, tool_input={ODD: ODD})]
    place.acme.tool_calls.intend(place.run.id, epoch=place.run.epoch, calls=calls)
    below = place.acme.runs.start(place.acme.sessions.create().id, parent=place.run.id, parent_call=ODD)
    place.acme.runs.cancel(below.id)
    step(place.acme, place.run, 3, tool_calls=[ToolOutcome(id=ODD, result=ODD)])
    release_run(place)
    before = place.acme.tool_calls.list(place.run.id)
    rewind_to(place, 2)
    assert place.acme.tool_calls.list(place.run.id) == []
    redo_last(place)
    assert place.acme.tool_calls.list(place.run.id) == before
    assert place.acme.runs.get(below.id).parent_call_id == ODD


# --------------------------------------------------------------------------------------------------------- lists of them


def test_an_unknown_run_has_no_rewinds(place: Place) -> None:
    assert [*place.acme.rewinds.list(UNKNOWN_ID)] == [*place.acme.rewinds.pending(UNKNOWN_ID)] == []


def test_another_tenant_cannot_see_a_rewind(place: Place) -> None:
    release_run(place)
    rewind = place.acme.rewinds.begin(place.run.id, to_step=1)
    theirs = place.zenith.rewinds
    assert [*theirs.pending()] == [*theirs.pending(place.run.id)] == [*theirs.list(place.run.id, limit=1)] == []
    calls: list[Callable[[], object]] = [
        lambda: theirs.get(rewind.id),
        lambda: theirs.finish(rewind.id),
        lambda: theirs.redo(place.run.id, id=rewind.id),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()
    assert place.acme.rewinds.get(rewind.id).status == "rewinding"


def test_pending_rewinds_are_limited_and_the_oldest_first(place: Place) -> None:
    made = []
    for _ in range(3):
        run = start_held_run(place.acme)
        place.clock.advance(1)
        made.append(place.acme.rewinds.begin(run.id, to_step=0, epoch=run.epoch).id)
    assert [rewind.id for rewind in place.acme.rewinds.pending()] == made[:2]
    place.acme.rewinds.finish(made[0])
    assert [rewind.id for rewind in place.acme.rewinds.pending()] == made[1:]


def test_a_list_of_the_maximum_length_needs_no_page(place: Place) -> None:
    for _ in range(2):
        rewind_to(place, 2, epoch=place.run.epoch)
    assert len(place.acme.rewinds.list(place.run.id)) == 2
    whole = place.acme.rewinds.list(place.run.id, limit=2)
    assert (len(whole), whole.next) == (2, None)


@pytest.mark.parametrize("limit", [0, -1, True, "1", 4])
def test_an_invalid_page_size_is_refused(place: Place, limit: Any) -> None:
    with pytest.raises((InvalidInput, LimitExceeded)):
        place.acme.rewinds.list(place.run.id, limit=limit)


def test_a_cursor_of_another_list_is_refused(place: Place) -> None:
    for _ in range(2):
        place.acme.runs.start(place.run.session_id)
    other = place.acme.runs.list(limit=1).next
    assert other is not None
    for cursor in (other, "", "garbage", "ä"):
        with pytest.raises(InvalidInput):
            place.acme.rewinds.list(place.run.id, limit=1, cursor=cursor)


# ------------------------------------------------------------------------------------------------------ how long it is kept


@pytest.mark.parametrize(("keep_s", "kept"), [(86_400 * 30, 86_400 * 30), (10**9, 86_400 * 90)])
def test_snapshots_are_kept_for_as_long_as_asked_and_no_longer_than_may_be(
    place: Place, keep_s: int, kept: int
) -> None:
    rewind_to(place, 1, epoch=place.run.epoch, keep_s=keep_s)
    assert place.acme.retention.policy(run_id=place.run.id).grace_s == kept


@pytest.mark.parametrize("keep_s", [-1, True, "7", 1.5])
def test_an_invalid_keep_time_begins_no_rewind(place: Place, keep_s: Any) -> None:
    with pytest.raises(InvalidInput):
        place.acme.rewinds.begin(place.run.id, to_step=1, epoch=place.run.epoch, keep_s=keep_s)
    assert place.now().iteration == 2
