"""Starting a run: its row, its place below another run, and what a repeated start returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core import scope as scopes
from ....core import text
from ....core.checks import whole_number
from ....engines.protocol import Connection
from ....errors import Conflict, InvalidInput, NotFound
from ....ids import parse as parse_id
from . import ledger
from .states import FINAL, Run, check_holder, lock_run, queries, run_of

MAX_ATTEMPTS = 1_000_000


def new_run(
    scope: scopes.Scope,
    session_id: str,
    agent: str | None,
    id: str | None,
    max_attempts: int | None,
    metadata: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The parameters of a new run.

    Raises:
        InvalidInput: something about it is not acceptable.
    """
    new_id = scope.ids.new() if id is None else parse_id(id, "run id")
    return scope.params(
        id=new_id,
        run_id=new_id,
        session_id=parse_id(session_id, "session id"),
        agent_id=None if agent is None else scopes.name(agent, "agent", scope.limits),
        max_attempts=scope.limits.run_attempts
        if max_attempts is None
        else whole_number(max_attempts, "max_attempts", minimum=1, maximum=MAX_ATTEMPTS),
        metadata=scopes.metadata(metadata, scope.limits),
        now_at=scope.clock.now_us(),
    )


async def below(
    connection: Connection, scope: scopes.Scope, parent: str | None, call: str | None, epoch: int | None
) -> dict[str, Any]:
    """The parameters that put a new run below another, which is locked.

    Raises:
        NotFound: there is no such parent, or it has no such call.
        Conflict: the parent has ended.
        Fenced: the caller no longer holds the parent.
    """
    if parent is None:
        if call is not None or epoch is not None:
            raise InvalidInput("parent_call and parent_epoch go with a parent")
        return {"parent_run_id": None, "parent_call_id": None, "depth": 0}
    above = await lock_run(connection, scope, parent)
    if epoch is not None:
        check_holder(above, epoch)
    if above.status in FINAL:
        raise Conflict(f"run {above.id} is {above.status}; nothing can be started below it")
    scope.limits.check("run_depth", above.depth + 1, "runs one below the other")
    stored = None if call is None else ledger.call_id(call, scope.limits)
    if stored is not None:
        row = await ledger.queries.get.one(connection, scope.params(run_id=above.id, id=stored))
        if row is None:
            raise NotFound(f"run {above.id} has no call {call!r}; intend it first")
    return {"parent_run_id": above.id, "parent_call_id": stored, "depth": above.depth + 1}


async def find_started(connection: Connection, new: dict[str, Any]) -> Run:
    """The run that an earlier start with the same arguments made.

    Raises:
        NotFound: there is no such live session.
        Conflict: another run has this id, or belongs to this call.
    """
    row = await queries.get.one(connection, new)
    if row is None and new["parent_call_id"] is not None:
        row = await queries.of_call.one(connection, new)
    if row is None:
        raise NotFound(f"there is no session {new['session_id']} here")
    run = run_of(connection, row)
    agent = run.agent if new["agent_id"] is None else text.unescape(new["agent_id"])
    call = None if new["parent_call_id"] is None else text.unescape(new["parent_call_id"])
    wanted = (new["session_id"], agent, new["parent_run_id"], call)
    if wanted != (run.session_id, run.agent, run.parent_run_id, run.parent_call_id):
        raise Conflict(f"there is another run {run.id}, in session {run.session_id}, by this id or for this call")
    return run
