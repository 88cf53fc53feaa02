"""Tool calls: what a run was about to do, written down before it is done.

A call is recorded as intended in a commit of its own, then it runs, and the step that carries its result finishes it. So after
a crash it is known of every call whether it was finished, and of those that were not what may be done with them, which
depends on how safe the tool says it is to run twice:

=============  ==========================================================================================
safety         an attempt that never came back
=============  ==========================================================================================
idempotent     is run again
at_most_once   is reported as of unknown outcome, and never run again
ask            waits until a person allows it, cancels it or discards it
=============  ==========================================================================================

A call that is finished is never offered again. A tool that wants to be called later snoozes its call, which uses up no
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
    OPEN,
    CallVerb,
    Intent,
    NewToolCall,
    PendingCall,
    ToolCall,
    Unusual,
    action_of,
    begins,
    call_id,
    call_of,
    hold_run,
    insert_calls,
    intent_group,
    queries,
    stored_calls,
)
from .states import Run, check_epoch, check_holder, lock_run, moment


class AsyncToolCalls(TenantStore):
    """The tool calls of one tenant's runs."""

    async def intend(self, run_id: Id, *, epoch: int, calls: Sequence[NewToolCall]) -> Sequence[ToolCall]:
        """Record calls before they are made, all or none of them, in one commit; it also renews the lease.

        The same intent again returns what is there. A call that is there and may be run again is begun once more.

        Raises:
            NotFound: there is no such run in a live session.
            Fenced: somebody else has claimed the run since.
            Conflict: the caller does not hold the run, a call is there with another content, or it may not be begun (again).
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
        except Unusual:
            return await self._engine.write(lambda connection: self._intend(connection, intent))

    @reads
    async def pending(self, connection: Connection, run_id: Id) -> Sequence[PendingCall]:
        """The calls of a run that are not finished, oldest first, and what is to be done about each.

        Raises:
            NotFound: there is no such run in a live session.
        """
        run, calls = await open_calls(connection, self._params(run_id))
        now = self._scope.clock.now_us()
        return [
            PendingCall(call, action_of(call, run_status=run.status, run_epoch=run.epoch, now_us=now))
            for call in calls
            if call.status in OPEN
        ]

    @reads
    async def get(self, connection: Connection, run_id: Id, id: str) -> ToolCall:
        """One call.

        Raises:
            NotFound: there is none.
        """
        params = self._params(run_id, id)
        await _seen_run(connection, params)
        return await _get(connection, params)

    @reads
    async def list(self, connection: Connection, run_id: Id) -> Sequence[ToolCall]:
        """All calls of a run, in the order they were intended.

        Raises:
            NotFound: there is no such run in a live session.
            LimitExceeded: there are more than ``list_rows``.
        """
        most = self._scope.limits.list_rows
        params = self._params(run_id)
        await _seen_run(connection, params)
        rows = await queries.list.all(connection, {**params, "limit": most + 1})
        if len(rows) > most:
            raise LimitExceeded(f"the run has more than list_rows = {most:,} tool calls")
        return mapper(ToolCall, connection.dialect)(rows)

    @writes
    async def snooze(self, connection: Connection, run_id: Id, id: str, *, epoch: int, until: datetime) -> ToolCall:
        """The tool, which has done nothing, wants to be called later. That uses up no attempt.

        Raises:
            NotFound: there is no such call.
            Fenced: somebody else has claimed the run since.
            Conflict: the caller does not hold the run, or the call is finished or held.
        """
        until_us = moment(until, "until")
        params = self._params(run_id, id)
        check_holder(await lock_run(connection, self._scope, run_id), epoch)
        there = await _get(connection, params)
        fewer = int(there.status == "begun")
        return await self._change(connection, params, there, "snooze", pause_until_at=until_us, fewer_attempts=fewer)

    @writes
    async def allow(self, connection: Connection, run_id: Id, id: str) -> ToolCall:
        """A person allows a call that was held, or to be made again though it may have happened. Needs no lease.

        A run that waits for it is woken by ``runs.resume``.

        Raises:
            NotFound: there is no such call.
            Conflict: it is finished, somebody is at it, or it must not be run twice.
        """
        params = self._params(run_id, id)
        run = await lock_run(connection, self._scope, run_id)
        there = await _get(connection, params)
        if there.status == "ready" and there.pause_until is None:
            return there
        if there.status == "begun":
            _check_again(there, run)
        return await self._change(connection, params, there, "allow")

    @writes
    async def cancel(self, connection: Connection, run_id: Id, id: str, *, reason: str | None = None) -> ToolCall:
        """A call is not to be made, or its result is not waited for; the model is told. Needs no lease. Repeating it is fine.

        Raises:
            NotFound: there is no such call.
            Conflict: it is finished otherwise.
        """
        return await self._end(connection, run_id, id, "cancel", reason)

    @writes
    async def discard(self, connection: Connection, run_id: Id, id: str, *, reason: str | None = None) -> ToolCall:
        """A call is dropped: it is neither to be made nor to be spoken of. Needs no lease. Repeating it is fine.

        Raises:
            NotFound: there is no such call.
            Conflict: it is finished otherwise.
        """
        return await self._end(connection, run_id, id, "discard", reason)

    async def _intend(self, connection: Connection, intent: Intent) -> Sequence[ToolCall]:
        """What is unusual about an intent: calls that are there already, or a reason to refuse it."""
        run = await lock_run(connection, self._scope, intent.run_id)
        check_holder(run, intent.epoch)
        params = self._scope.params(run_id=run.id)
        again = [(call, await _find(connection, {**params, "id": call.id})) for call in intent.calls]
        new = [call for call, found in again if found is None]
        begun = [
            call
            for call, found in again
            if found is not None and begins(found, call, epoch=intent.epoch, now_us=intent.now_us)
        ]
        at = await hold_run(connection, intent, len(new))
        if at is None:
            raise LimitExceeded(
                f"run {run.id} would have more than open_tool_calls = {intent.most:,} calls that no step has taken in"
            )
        await insert_calls(connection, intent, new, at)
        for call in begun:
            await queries.begin.all(connection, {**params, "id": call.id, "epoch": run.epoch, "now_at": intent.now_us})
        return [await _get(connection, {**params, "id": call.id}) for call in intent.calls]

    async def _end(self, connection: Connection, run_id: str, id: str, verb: CallVerb, reason: str | None) -> ToolCall:
        error = None if reason is None else scopes.free_text(reason, "reason", self._scope.limits)
        params = self._params(run_id, id)
        await lock_run(connection, self._scope, run_id)
        there = await _get(connection, params)
        if there.status in CALL_MOVES[verb].values():
            return there
        now = self._scope.clock.now_us()
        return await self._change(connection, params, there, verb, error=error, finished_at=now)

    async def _change(
        self, connection: Connection, params: dict[str, Any], there: ToolCall, verb: CallVerb, **changes: Any
    ) -> ToolCall:
        status = CALL_MOVES[verb].get(there.status)
        if status is None:
            raise Conflict(f"call {there.id!r} of run {there.run_id} is {there.status}: it is too late to {verb} it")
        new = {"fewer_attempts": 0, "pause_until_at": None, "error": None, "finished_at": None, **changes}
        row = await queries.change.one(connection, {**params, "status": status, **new})
        assert row is not None  # its run is held
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


class Progress(Struct, frozen=True):
    """How far a run was when its open calls were looked at."""

    iteration: int
    epoch: int
    status: str


async def open_calls(connection: Connection, params: Mapping[str, Any]) -> tuple[Progress, list[ToolCall]]:
    """The calls of a run that no step has taken in yet, and how far the run was at that moment; for other stores too.

    Raises:
        NotFound: there is no such run in a live session.
    """
    rows = await queries.open.all(connection, params)
    if not rows:
        raise states.missing(params["run_id"])
    calls = [tuple(row[3:]) for row in rows if row[3] is not None]
    return Progress(*rows[0][:3]), mapper(ToolCall, connection.dialect)(calls)


async def _seen_run(connection: Connection, params: Mapping[str, Any]) -> None:
    if await states.queries.get.one(connection, params) is None:
        raise states.missing(params["run_id"])


async def _find(connection: Connection, params: Mapping[str, Any]) -> ToolCall | None:
    row = await queries.get.one(connection, params)
    return None if row is None else call_of(connection, row)


async def _get(connection: Connection, params: Mapping[str, Any]) -> ToolCall:
    found = await _find(connection, params)
    if found is None:
        raise NotFound(f"run {params['run_id']} has no call {text.unescape(params['id'])!r}")
    return found


def _check_again(there: ToolCall, run: Run) -> None:
    """Refuse to have a call that was begun made again, if it may be under way or must not happen twice."""
    what = f"call {there.id!r} of run {run.id}"
    if there.safety == "at_most_once":
        raise Conflict(f"{what} was begun and is at_most_once: it must not be made again; cancel or discard it")
    if run.status == "running" and there.epoch == run.epoch:
        raise Conflict(f"{what} is under way")
