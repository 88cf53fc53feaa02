"""Tool calls: a run records each call before it makes it.

A call is recorded as intended in a commit of its own, then it runs, and the step with its result finishes it. So after a
crash it is known of every call whether it was finished. The action for an unfinished call depends on whether the tool
is safe to run twice:

=============  ==========================================================================================
safety         an attempt whose outcome is unknown
=============  ==========================================================================================
idempotent     is run again
at_most_once   is reported as of unknown outcome, and never run again
ask            waits until a person allows it, cancels it or discards it
=============  ==========================================================================================

A finished call is never offered again. A tool that wants to be called later snoozes its call, which uses up no
attempt. A call can also be held from the beginning, until a person allows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from ....core import scope as scopes
from ....core import text
from ....core.blocking import Blocking, blocking
from ....core.rows import mapper
from ....core.store import TenantStore, reads, writes
from ....engines.protocol import Connection
from ....errors import Conflict, LimitExceeded, NotFound
from ....ids import Id
from ....ids import parse as parse_id
from . import states
from .ledger import (
    CALL_MOVES,
    OPEN_STATUSES,
    CallVerb,
    Intent,
    NeedsTransaction,
    NewToolCall,
    PendingCall,
    ToolCall,
    action_of,
    call_id,
    call_of,
    hold_run,
    insert_calls,
    intent_group,
    must_begin,
    queries,
    stored_calls,
)
from .states import Run, check_epoch, check_holder, lock_run, time_us


class AsyncToolCalls(TenantStore):
    """The tool calls of one tenant's runs."""

    async def intend(self, run_id: Id, *, epoch: int, calls: Sequence[NewToolCall]) -> Sequence[ToolCall]:
        """Record calls before they are made, all or none of them, in one commit; this also renews the lease.

        Repeating an intent returns the recorded calls. A recorded call that may run again is begun again.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Fenced: another holder has claimed the run since.
            Conflict: the caller does not hold the run, a call is recorded with other content, or it may not be begun.
            LimitExceeded: the run has too many open calls.
        """
        check_epoch(epoch)
        scope = self._scope
        intent = Intent(
            scope.stored_tenant,
            parse_id(run_id, "run id"),
            epoch,
            stored_calls(calls, scope.limits),
            scope.clock.now_us(),
            scope.limits.open_tool_calls,
        )
        try:
            return await self._engine.grouped(intent_group, intent)
        except NeedsTransaction:
            return await self._engine.write(lambda connection: self._intend(connection, intent))

    @reads
    async def pending(self, connection: Connection, run_id: Id) -> Sequence[PendingCall]:
        """List the unfinished calls of a run, oldest first, each with the action to take.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
        """
        run, calls = await open_calls(connection, self._params(run_id))
        now = self._scope.clock.now_us()
        return [
            PendingCall(call, action_of(call, run_status=run.status, run_epoch=run.epoch, now_us=now))
            for call in calls
            if call.status in OPEN_STATUSES
        ]

    @reads
    async def get(self, connection: Connection, run_id: Id, id: str) -> ToolCall:
        """Return one call.

        Raises:
            NotFound: the run or the call does not exist, or the session is deleted.
        """
        params = self._params(run_id, id)
        await _check_run(connection, params)
        return await _get(connection, params)

    @reads
    async def list(self, connection: Connection, run_id: Id) -> Sequence[ToolCall]:
        """List all calls of a run, in the order they were intended.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            LimitExceeded: there are more than ``list_rows``.
        """
        maximum = self._scope.limits.list_rows
        params = self._params(run_id)
        await _check_run(connection, params)
        rows = await queries.list.all(connection, {**params, "limit": maximum + 1})
        if len(rows) > maximum:
            message = f"run {run_id} has more than list_rows = {maximum:,} tool calls"
            raise LimitExceeded(message, limit="list_rows", maximum=maximum)
        return mapper(ToolCall, connection.dialect)(rows)

    @writes
    async def snooze(self, connection: Connection, run_id: Id, id: str, *, epoch: int, until: datetime) -> ToolCall:
        """Postpone a call whose tool has done nothing yet. This uses up no attempt.

        Raises:
            NotFound: the call does not exist.
            Fenced: another holder has claimed the run since.
            Conflict: the caller does not hold the run, or the call is finished or held.
        """
        until_us = time_us(until, "until")
        params = self._params(run_id, id)
        check_holder(await lock_run(connection, self._scope, run_id), epoch)
        call = await _get(connection, params)
        fewer_attempts = int(call.status == "begun")
        return await self._change(
            connection, params, call, "snooze", pause_until_at=until_us, fewer_attempts=fewer_attempts
        )

    @writes
    async def allow(self, connection: Connection, run_id: Id, id: str) -> ToolCall:
        """Allow a held call as a person's decision, or allow a call that may have happened to be made again. Needs no lease.

        If the run waits for the decision, wake it with ``runs.resume``.

        Raises:
            NotFound: the call does not exist.
            Conflict: it is finished, its holder is making it, or it must not run twice.
        """
        params = self._params(run_id, id)
        run = await lock_run(connection, self._scope, run_id)
        call = await _get(connection, params)
        if call.status == "ready" and call.pause_until is None:
            return call
        if call.status == "begun":
            _check_may_repeat(call, run)
        return await self._change(connection, params, call, "allow")

    @writes
    async def cancel(self, connection: Connection, run_id: Id, id: str, *, reason: str | None = None) -> ToolCall:
        """Cancel a call: it is not made, or its result is not awaited; the model is told. Needs no lease. Can be repeated.

        Raises:
            NotFound: the call does not exist.
            Conflict: it has another outcome.
        """
        return await self._end(connection, run_id, id, "cancel", reason)

    @writes
    async def discard(self, connection: Connection, run_id: Id, id: str, *, reason: str | None = None) -> ToolCall:
        """Discard a call: it is not made, and the model is not told about it. Needs no lease. Can be repeated.

        Raises:
            NotFound: the call does not exist.
            Conflict: it has another outcome.
        """
        return await self._end(connection, run_id, id, "discard", reason)

    async def _intend(self, connection: Connection, intent: Intent) -> Sequence[ToolCall]:
        """Record an intent that the grouped path cannot: calls are recorded already, or it must be refused."""
        run = await lock_run(connection, self._scope, intent.run_id)
        check_holder(run, intent.epoch)
        params = self._scope.params(run_id=run.id)
        pairs = [(call, await _find(connection, {**params, "id": call.id})) for call in intent.calls]
        new = [call for call, recorded in pairs if recorded is None]
        to_begin = [
            call
            for call, recorded in pairs
            if recorded is not None and must_begin(recorded, call, epoch=intent.epoch, now_us=intent.now_us)
        ]
        counts = await hold_run(connection, intent, len(new))
        if counts is None:
            message = f"run {run.id} would have more than open_tool_calls = {intent.most:,} calls that no step contains"
            raise LimitExceeded(message, limit="open_tool_calls", maximum=intent.most)
        await insert_calls(connection, intent, new, counts)
        for call in to_begin:
            await queries.begin.all(connection, {**params, "id": call.id, "epoch": run.epoch, "now_at": intent.now_us})
        return [await _get(connection, {**params, "id": call.id}) for call in intent.calls]

    async def _end(self, connection: Connection, run_id: str, id: str, verb: CallVerb, reason: str | None) -> ToolCall:
        error = None if reason is None else scopes.free_text(reason, "reason", self._scope.limits)
        params = self._params(run_id, id)
        await lock_run(connection, self._scope, run_id)
        call = await _get(connection, params)
        if call.status in CALL_MOVES[verb].values():
            return call
        now = self._scope.clock.now_us()
        return await self._change(connection, params, call, verb, error=error, finished_at=now)

    async def _change(
        self, connection: Connection, params: dict[str, Any], call: ToolCall, verb: CallVerb, **changes: Any
    ) -> ToolCall:
        status = CALL_MOVES[verb].get(call.status)
        if status is None:
            raise Conflict(
                f"call {call.id!r} of run {call.run_id} is {call.status}: it is too late to {verb} it", reason="status"
            )
        new = {"fewer_attempts": 0, "pause_until_at": None, "error": None, "finished_at": None, **changes}
        row = await queries.change.one(connection, {**params, "status": status, **new})
        assert row is not None  # its run is locked
        return call_of(connection, row)

    def _params(self, run_id: str, id: str | None = None) -> dict[str, Any]:
        params = self._scope.params(run_id=parse_id(run_id, "run id"))
        if id is not None:
            params["id"] = call_id(id, self._scope.limits)
        return params


class ToolCalls(Blocking[AsyncToolCalls]):
    """The tool calls of one tenant's runs."""

    intend = blocking(AsyncToolCalls.intend)
    pending = blocking(AsyncToolCalls.pending)
    get = blocking(AsyncToolCalls.get)
    list = blocking(AsyncToolCalls.list)
    snooze = blocking(AsyncToolCalls.snooze)
    allow = blocking(AsyncToolCalls.allow)
    cancel = blocking(AsyncToolCalls.cancel)
    discard = blocking(AsyncToolCalls.discard)


class RunProgress(Struct, frozen=True):
    """The progress of a run when its open calls were read."""

    iteration: int
    epoch: int
    status: str


async def open_calls(connection: Connection, params: Mapping[str, Any]) -> tuple[RunProgress, list[ToolCall]]:
    """Return the calls of a run that no step contains yet, and the run's progress at the same time; also used by other stores.

    Raises:
        NotFound: the run does not exist, or its session is deleted.
    """
    rows = await queries.open.all(connection, params)
    if not rows:
        raise states.run_not_found(params["run_id"])
    calls = [tuple(row[3:]) for row in rows if row[3] is not None]
    return RunProgress(*rows[0][:3]), mapper(ToolCall, connection.dialect)(calls)


async def _check_run(connection: Connection, params: Mapping[str, Any]) -> None:
    if await states.queries.get.one(connection, params) is None:
        raise states.run_not_found(params["run_id"])


async def _find(connection: Connection, params: Mapping[str, Any]) -> ToolCall | None:
    row = await queries.get.one(connection, params)
    return None if row is None else call_of(connection, row)


async def _get(connection: Connection, params: Mapping[str, Any]) -> ToolCall:
    call = await _find(connection, params)
    if call is None:
        id = text.unescape(params["id"])
        raise NotFound(f"run {params['run_id']} has no call {id!r}", noun="call", key=id)
    return call


def _check_may_repeat(call: ToolCall, run: Run) -> None:
    """Raise ``Conflict`` if a begun call must not be made again: it is under way, or must not happen twice."""
    label = f"call {call.id!r} of run {run.id}"
    if call.safety == "at_most_once":
        raise Conflict(
            f"{label} was begun and is at_most_once: it must not be made again; cancel or discard it",
            reason="may_have_happened",
        )
    if run.status == "running" and call.epoch == run.epoch:
        raise Conflict(f"{label} is under way", reason="under_way")
