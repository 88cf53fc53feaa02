"""The promises that are checked after every event of every simulation.

* Acknowledged writes are committed and remain.
* Unacknowledged writes are committed completely or not at all.
* The iterations of a run and the messages of a session have one order without gaps; each message belongs to one step or append.
* Each epoch of a run belongs to one holder, and no process writes with an older epoch.
* A tool is called only after its call was recorded, never more often than the ledger permits, and never after it has finished.
* Reads return the written data, in order and complete, and finished calls are not offered again.
"""

from __future__ import annotations

from typing import Any

from ...core import text
from .call_log import CallLog
from .changes import DONE, check_change, check_list_result
from .observer import Key, Rows
from .recorder import RecordedCall
from .violation import Violation

PerformedCall = tuple[str, str, str]
"""A tenant, a run and a call."""


class Promises:
    """The promises made so far and the observed state, with the checks between them."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.attempts = CallLog()
        self.holders: dict[tuple[str, str, int], str] = {}
        self.performed: dict[PerformedCall, list[Any]] = {}
        self._unchecked: list[RecordedCall] = []
        self._opened: dict[int, RecordedCall] = {}

    # Events

    def begin(self, call: RecordedCall) -> None:
        """Record that a call is about to be made."""
        self.attempts.add(call)
        self._opened[call.number] = call
        session, run = call.arguments.get("session_id"), call.arguments.get("run_id")
        if session is not None:
            call.seen = len(self.rows.messages.get((call.tenant, session), ()))
        elif run is not None:
            call.seen = self.rows.runs.get((call.tenant, run)), self._done_calls((call.tenant, run))

    def end(self, call: RecordedCall) -> None:
        """Record that a call was answered or has failed. The answer is checked once the committed state was observed."""
        self._opened.pop(call.number, None)
        if call.outcome == "answered":
            self._check_pause(call)
            self._unchecked.append(call)

    def lose(self, process: str, incarnation: int) -> None:
        """Record that a process died, so that the answers to its open calls are lost."""
        for number, call in [*self._opened.items()]:
            if (call.process, call.incarnation) == (process, incarnation):
                call.outcome = "lost"
                del self._opened[number]

    def perform(self, what: PerformedCall, epoch: int) -> int:
        """Check that a tool may be called now, and return the number of earlier executions.

        Raises:
            Violation: the tool must not be called.
        """
        tenant, run, id = what
        row = self.rows.calls.get((tenant, run), {}).get(id)
        name = f"call {id} of run {run}, epoch {epoch},"
        if row is None or row.epoch < epoch:
            raise Violation(f"{name} is made and was not recorded before", kind="tool_not_recorded", subject=id)
        before = self.performed.setdefault(what, [])
        if row.safety == "at_most_once" and before:
            raise Violation(f"{name} is at_most_once and made again", kind="tool_called_again", subject=id)
        if len(before) >= row.attempts:
            raise Violation(
                f"{name} is made {len(before) + 1} times, and the ledger has {row.attempts} attempts",
                kind="tool_called_too_often",
                subject=id,
            )
        if row.status == "finished" and row.step is not None:
            finished_by = self.rows.steps[(tenant, run)][row.step - 1].epoch
            if epoch >= finished_by:
                raise Violation(
                    f"{name} is made though it is finished since epoch {finished_by}",
                    kind="tool_called_after_end",
                    subject=id,
                )
        return len(before)

    # Checks

    def see(self, rows: Rows) -> None:
        """Check newly committed rows.

        Raises:
            Violation: the change breaks a promise.
        """
        previous, self.rows = self.rows, rows
        check_change(previous, rows, self.attempts)
        for key, calls in rows.calls.items():
            for id, call in calls.items():
                if call.status == "finished" and previous.calls.get(key, {}).get(id) != call:
                    self._check_result((*key, id), call.result)

    def settle(self) -> None:
        """Check the answers since the last call against the committed state.

        Raises:
            Violation: an answer was wrong.
        """
        calls, self._unchecked = self._unchecked, []
        for call in calls:
            check = _CHECKS.get(call.method)
            if check is not None:
                check(self, call)

    def _check_pause(self, call: RecordedCall) -> None:
        """Check that a paused run is not claimed before its pause ends, by the claiming process's clock."""
        if call.method not in ("leases.claim", "run_queue.claim") or call.result is None:
            return
        tenant, run = (call.tenant, call.result) if call.tenant else (call.result.tenant, call.result.run)
        was = self.rows.runs.get((tenant, run.id))  # the current commit is observed at the end of the event
        if was is None or was.epoch >= run.epoch:
            return  # the answer is late: another process has claimed the run since
        if was.status != "paused" or was.pause_until is None or (tenant, run.id) in self.attempts.resumed:
            return
        if was.pause_until > call.now_us:
            raise Violation(
                f"run {run.id} was claimed {was.pause_until - call.now_us} us before its pause was over",
                kind="claimed_too_early",
                subject=run.id,
            )

    def _check_result(self, what: PerformedCall, result: str | None) -> None:
        if what not in self.performed:
            return  # a tool whose effects are not tracked
        value = None if result is None else text.load(result)
        if value not in self.performed[what]:
            raise Violation(
                f"call {what[2]} of run {what[1]} is finished with {value!r}, which none of its executions returned",
                kind="foreign_result",
                subject=what[2],
            )

    def _done_calls(self, key: Key) -> frozenset[str]:
        return frozenset(id for id, call in self.rows.calls.get(key, {}).items() if call.status in DONE)

    def _started(self, call: RecordedCall) -> None:
        if (call.tenant, call.result.id) not in self.rows.runs:
            raise Violation(
                f"run {call.result.id} was started, but does not exist", kind="lost_run", subject=call.result.id
            )

    def _stepped(self, call: RecordedCall) -> None:
        key, iteration = (call.tenant, call.arguments["run_id"]), call.arguments["iteration"]
        steps = self.rows.steps.get(key, [])
        if len(steps) < iteration or steps[iteration - 1].epoch != call.arguments["epoch"]:
            raise Violation(
                f"step {iteration} of run {key[1]} was acknowledged, but does not exist",
                kind="lost_step",
                subject=key[1],
            )
        if text.load(steps[iteration - 1].state) != call.arguments["state"]:
            raise Violation(
                f"step {iteration} of run {key[1]} was acknowledged, but another one exists",
                kind="other_step",
                subject=key[1],
            )
        seqs = [message.seq for message in call.result.messages]
        if seqs and (seqs[0], seqs[-1]) != (steps[iteration - 1].first_seq, steps[iteration - 1].last_seq):
            raise Violation(
                f"the messages of step {iteration} of run {key[1]} are not at {seqs}",
                kind="lost_messages",
                subject=key[1],
            )
        if (call.arguments.get("stop_reason") is not None) > (self.rows.runs[key].status == "completed"):
            raise Violation(
                f"run {key[1]} was finished with step {iteration}, and is {self.rows.runs[key].status}",
                kind="wrong_status",
                subject=key[1],
            )

    def _intended(self, call: RecordedCall) -> None:
        rows = self.rows.calls.get((call.tenant, call.arguments["run_id"]), {})
        for tool_call in call.arguments["calls"]:
            if tool_call.id not in rows:
                raise Violation(
                    f"call {tool_call.id} of run {call.arguments['run_id']} was recorded, but does not exist",
                    kind="lost_call",
                    subject=tool_call.id,
                )

    def _finished(self, call: RecordedCall) -> None:
        run = self.rows.runs[(call.tenant, call.arguments["run_id"])]
        if run.status != "completed":
            raise Violation(f"run {run.id} was finished, and is {run.status}", kind="wrong_status", subject=run.id)

    def _claimed(self, call: RecordedCall) -> None:
        if call.result is not None:
            self._held(call, call.tenant, call.result)

    def _claimed_of_any(self, call: RecordedCall) -> None:
        if call.result is not None:
            self._held(call, call.result.tenant, call.result.run)

    def _held(self, call: RecordedCall, tenant: str, run: Any) -> None:
        holder = f"{call.process} in its life {call.incarnation}, call {call.number}"
        before = self.holders.setdefault((tenant, run.id, run.epoch), holder)
        if before != holder:
            raise Violation(
                f"epoch {run.epoch} of run {run.id} was given to {before} and to {holder}",
                kind="epoch_shared",
                subject=run.id,
            )
        row = self.rows.runs.get((tenant, run.id))
        if row is None or row.epoch < run.epoch:
            raise Violation(
                f"run {run.id} was claimed with epoch {run.epoch}, and is {row}", kind="wrong_claim", subject=run.id
            )

    def _loaded(self, call: RecordedCall) -> None:
        run, step = call.result.run, call.result.step
        before = call.seen[0]
        if before is not None and (run.epoch, run.iteration) < (before.epoch, before.iteration):
            raise Violation(
                f"run {run.id} was loaded as of step {run.iteration}, and was at {before.iteration}",
                kind="stale_load",
                subject=run.id,
            )
        if run.iteration != (0 if step is None else step.iteration):
            raise Violation(
                f"run {run.id} is at step {run.iteration} and was loaded with {step}", kind="wrong_load", subject=run.id
            )
        if step is not None:
            row = self.rows.steps[(call.tenant, run.id)][step.iteration - 1]
            if (row.epoch, text.load(row.state)) != (step.epoch, step.state):
                raise Violation(
                    f"step {step.iteration} of run {run.id} was loaded as another one",
                    kind="other_step",
                    subject=run.id,
                )

    def _offered(self, call: RecordedCall) -> None:
        before, finished = call.seen
        for pending in call.result:
            tool_call = pending.call
            if tool_call.id in finished:
                raise Violation(
                    f"call {tool_call.id} is finished and was offered to be made again",
                    kind="finished_call_offered",
                    subject=tool_call.id,
                )
            stale = before is not None and tool_call.epoch < before.epoch
            if pending.action == "run" and stale and tool_call.status == "begun" and tool_call.safety != "idempotent":
                raise Violation(
                    f"call {tool_call.id} is {tool_call.safety}, was begun, and is to be made again",
                    kind="unsafe_call_offered",
                    subject=tool_call.id,
                )

    def _listed(self, call: RecordedCall) -> None:
        if [*call.arguments] != ["session_id"]:
            return  # only a part of the log
        log = self.rows.messages.get((call.tenant, call.arguments["session_id"]), [])
        check_list_result(log, [(message.seq, message.id, message.content) for message in call.result], call.seen)

    def _appended(self, call: RecordedCall) -> None:
        messages = call.result if isinstance(call.result, list) else [call.result]
        log = self.rows.messages.get((call.tenant, call.arguments["session_id"]), [])
        for message in messages:
            if call.tenant in self.attempts.loose:
                return
            if len(log) < message.seq or log[message.seq - 1].id != message.id:
                raise Violation(
                    f"message {message.id} was appended as {message.seq}, but does not exist",
                    kind="lost_message",
                    subject=message.id,
                )

    def _agent(self, call: RecordedCall) -> None:
        key = (call.tenant, call.result.id)
        row = self.rows.agents.get(key)
        if key not in self.attempts.deleted_agents and (row is None or row[1] < call.result.version):
            raise Violation(
                f"agent {key[1]} was at version {call.result.version}, and is {row}", kind="stale_agent", subject=key[1]
            )

    def _agent_listed(self, call: RecordedCall) -> None:
        if not call.arguments:
            ids = [agent.id for agent in call.result]
            if ids != sorted(ids):
                raise Violation(f"agents were listed in the order {ids}", kind="wrong_order")


_CHECKS = {
    "runs.start": Promises._started,
    "runs.step": Promises._stepped,
    "runs.finish": Promises._finished,
    "runs.load": Promises._loaded,
    "leases.claim": Promises._claimed,
    "run_queue.claim": Promises._claimed_of_any,
    "tool_calls.intend": Promises._intended,
    "tool_calls.pending": Promises._offered,
    "messages.list": Promises._listed,
    "messages.append": Promises._appended,
    "messages.append_many": Promises._appended,
    "agents.create": Promises._agent,
    "agents.upsert": Promises._agent,
    "agents.update": Promises._agent,
    "agents.list": Promises._agent_listed,
}
