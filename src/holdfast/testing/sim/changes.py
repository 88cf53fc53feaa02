"""Checks that a change of the committed state, from one observation to the next, is legal.

The checks do not use the stores. They state what the stores' promises mean for the rows, and know only the requested writes.
"""

from __future__ import annotations

from ...core import text
from .call_log import CallLog
from .observer import CallRow, Key, MessageRow, Rows, RunRow, StepRow
from .violation import Violation

FINAL = frozenset({"completed", "failed", "cancelled"})
DONE = frozenset({"finished", "failed", "cancelled", "discarded", "unknown"})


def check_change(was: Rows, now: Rows, attempts: CallLog) -> None:
    """Check the change from one committed state to the next.

    Raises:
        Violation: the change breaks a promise.
    """
    _check_runs(was, now, attempts)
    for key, session in now.sessions.items():
        log, old_log = now.messages.get(key, []), was.messages.get(key, [])
        if key[0] not in attempts.loose and log != old_log:
            _check_log(key, old_log, log, now, attempts)
            counters = (session.next_seq, session.message_count, session.token_count)
            if counters != (len(log) + 1, len(log), sum(message.token_count for message in log)):
                raise Violation(
                    f"session {key[1]} counts wrong: {counters} for {len(log)} messages",
                    kind="wrong_counts",
                    subject=key[1],
                )
    for key in was.sessions:
        if key not in now.sessions and key[0] not in attempts.loose:
            raise Violation(f"session {key[1]} is gone", kind="lost_session", subject=key[1])
    _check_agents(was, now, attempts)


def _check_runs(was: Rows, now: Rows, attempts: CallLog) -> None:
    for key in was.runs:
        if key not in now.runs:
            raise Violation(f"run {key[1]} is gone", kind="lost_run", subject=key[1])
    for key, run in now.runs.items():
        steps, calls = now.steps.get(key, []), now.calls.get(key, {})
        old, old_steps, old_calls = was.runs.get(key), was.steps.get(key, []), was.calls.get(key, {})
        if (run, steps, calls) != (old, old_steps, old_calls):
            _check_run(old, run)
            _check_steps(old, run, old_steps, steps)
            _check_calls(old, run, old_calls, calls)
            log = now.messages.get((run.tenant, run.session), [])
            for step in steps[len(old_steps) :]:
                _check_whole(step, calls, log, attempts)


def _check_run(was: RunRow | None, run: RunRow) -> None:
    if run.attempts > run.max_attempts:
        raise Violation(
            f"run {run.id} was claimed {run.attempts} times in a row, over {run.max_attempts}",
            kind="too_many_claims",
            subject=run.id,
        )
    if was is None:
        return
    if run.epoch < was.epoch or run.iteration < was.iteration:
        raise Violation(f"run {run.id} went back, from {was} to {run}", kind="run_went_back", subject=run.id)
    if was.status in ("completed", "cancelled") and run != was:
        raise Violation(
            f"run {run.id} was {was.status} and has changed, from {was} to {run}",
            kind="ended_run_changed",
            subject=run.id,
        )


def _check_steps(was: RunRow | None, run: RunRow, old: list[StepRow], steps: list[StepRow]) -> None:
    if steps[: len(old)] != old:
        raise Violation(f"a committed step of run {run.id} has changed or is gone", kind="step_changed", subject=run.id)
    if [step.iteration for step in steps] != [*range(1, run.iteration + 1)]:
        raise Violation(
            f"run {run.id} is at step {run.iteration} and has {[step.iteration for step in steps]}",
            kind="gap_in_steps",
            subject=run.id,
        )
    epoch = was.epoch if was is not None else 0
    for step in steps[len(old) :]:
        if not epoch <= step.epoch <= run.epoch:
            raise Violation(
                f"step {step.iteration} of run {run.id} was written by epoch {step.epoch}, stale since {epoch}",
                kind="stale_step",
                subject=run.id,
            )
        if was is not None and step.epoch == was.epoch and was.status != "running":
            raise Violation(
                f"step {step.iteration} of run {run.id} was written by epoch {step.epoch}, which held no lease",
                kind="step_without_lease",
                subject=run.id,
            )
        epoch = step.epoch
    used = (sum(step.input_tokens for step in steps), sum(step.output_tokens for step in steps))
    if used != (run.input_tokens, run.output_tokens):
        raise Violation(
            f"run {run.id} has used {run.input_tokens, run.output_tokens} tokens, its steps {used}",
            kind="wrong_usage",
            subject=run.id,
        )


def _check_calls(was: RunRow | None, run: RunRow, old: dict[str, CallRow], calls: dict[str, CallRow]) -> None:
    for id, before in old.items():
        after = calls.get(id)
        if after is None:
            raise Violation(f"call {id} of run {run.id} is gone from the ledger", kind="lost_call", subject=id)
        if before.status in DONE and (before.status, before.result) != (after.status, after.result):
            raise Violation(
                f"call {id} of run {run.id} was {before.status} and became {after.status}",
                kind="ended_call_changed",
                subject=id,
            )
        if before.step is not None and before.step != after.step:
            raise Violation(
                f"call {id} of run {run.id} was taken in by step {before.step} and now by {after.step}",
                kind="call_moved",
                subject=id,
            )
    for id, call in calls.items():
        if call.safety == "at_most_once" and call.attempts > 1:
            raise Violation(
                f"call {id} of run {run.id} is at_most_once and was begun {call.attempts} times",
                kind="begun_again",
                subject=id,
            )
        if was is not None and id not in old and call.epoch < was.epoch:
            raise Violation(
                f"call {id} of run {run.id} was intended by epoch {call.epoch}, stale since {was.epoch}",
                kind="stale_call",
                subject=id,
            )
    if run.status == "completed" and any(call.status not in DONE for call in calls.values()):
        raise Violation(f"run {run.id} is completed and has open calls", kind="open_calls", subject=run.id)


def _check_whole(step: StepRow, calls: dict[str, CallRow], log: list[MessageRow], attempts: CallLog) -> None:
    """Check that a committed step was requested and is complete."""
    where = (step.tenant, step.run)
    messages = [] if step.first_seq is None or step.last_seq is None else log[step.first_seq - 1 : step.last_seq]
    matching = [attempt for attempt in attempts.steps.get(where, []) if attempt.is_at(step, messages)]
    if not matching:
        raise Violation(
            f"step {step.iteration} of run {step.run}, epoch {step.epoch}, was not requested",
            kind="unknown_step",
            subject=step.run,
        )
    taken = {id: call.status for id, call in calls.items() if call.step == step.iteration}
    for id, status in matching[0].outcomes.items():
        decided = (*where, id) in attempts.decided
        if taken.pop(id, None) != status and not decided:
            raise Violation(
                f"step {step.iteration} of run {step.run} exists, the end of its call {id} does not",
                kind="incomplete_step",
                subject=step.run,
            )
    foreign = [id for id in taken if (*where, id) not in attempts.decided]
    if foreign:
        raise Violation(
            f"step {step.iteration} of run {step.run} has taken in calls it did not finish: {foreign}",
            kind="foreign_calls",
            subject=step.run,
        )


def _check_log(key: Key, old: list[MessageRow], log: list[MessageRow], now: Rows, attempts: CallLog) -> None:
    if log[: len(old)] != old:
        raise Violation(f"a message of session {key[1]} has changed or is gone", kind="message_changed", subject=key[1])
    if [message.seq for message in log] != [*range(1, len(log) + 1)]:
        raise Violation(
            f"the log of session {key[1]} has gaps: {[message.seq for message in log]}",
            kind="gap_in_log",
            subject=key[1],
        )
    owned: list[int] = []
    for run in now.runs.values():
        if (run.tenant, run.session) == key:
            for step in now.steps.get((run.tenant, run.id), []):
                if step.first_seq is not None and step.last_seq is not None:
                    owned += range(step.first_seq, step.last_seq + 1)
    if len({*owned}) < len(owned) or (owned and max(owned) > len(log)):
        raise Violation(
            f"messages of session {key[1]} belong to two steps, or are missing", kind="wrong_owner", subject=key[1]
        )
    appended = [message for message in log[len(old) :] if message.seq not in {*owned}]
    for message in appended:
        if not any(attempt.is_at(message) for attempt in attempts.messages.get(key, [])):
            raise Violation(
                f"message {message.seq} of session {key[1]} was not requested: {message}",
                kind="unknown_message",
                subject=key[1],
            )


def _check_agents(was: Rows, now: Rows, attempts: CallLog) -> None:
    for key, (name, version) in was.agents.items():
        row = now.agents.get(key)
        if key in attempts.deleted_agents:
            continue
        if row is None:
            raise Violation(f"agent {key[1]} is gone", kind="lost_agent", subject=key[1])
        if row[1] < version or (row[1] == version and row[0] != name):
            raise Violation(
                f"agent {key[1]} was {name!r} at version {version} and is {row}", kind="agent_changed", subject=key[1]
            )


def check_list_result(log: list[MessageRow], result: list[tuple[int, str, object]], at_least: int) -> None:
    """Check that a list of messages is the log in order, without gaps, and includes the messages that preceded the call.

    Raises:
        Violation: the list differs from the log.
    """
    if [seq for seq, _, _ in result] != [*range(1, len(result) + 1)]:
        raise Violation(f"messages were listed in the order {[seq for seq, _, _ in result]}", kind="wrong_order")
    if len(result) < at_least:
        raise Violation(
            f"{len(result)} messages were listed, although {at_least} existed before the call", kind="incomplete_list"
        )
    for row, (_, id, content) in zip(log, result, strict=False):
        if row.id != id or text.load(row.content) != content:
            raise Violation(f"message {row.seq} is {row.id}, but was listed as {id}", kind="wrong_list")
