"""What compacts by itself: which policy belongs to what, and the functions that a process brings along for it.

A policy is stored and so holds for every process. The function that summarises cannot be stored; it lives with the Holdfast it
was given to, shared by all its handles. It is used only for a policy that is stored, so one that is left over does nothing;
that is how it can outlive a caller's transaction, of which nobody here learns whether it was committed.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from ....core import text
from ....core.scope import Scope
from ....engines.protocol import Connection
from ....errors import Corrupt, InvalidInput, NotFound
from .events import queries
from .policy import CompactionPolicy
from .strategies import Strategy, Summarizer

Target = Literal["session", "agent"]
_SHARED = "compactions"


class Attachment(Struct, frozen=True):
    """What a process brings along to compact by itself."""

    summarize: Summarizer | None
    strategy: Strategy | None
    policy: CompactionPolicy
    """What it was attached with."""


class Attached(Struct, frozen=True):
    """The policy that holds for a session, and what it was attached to."""

    target: Target
    name: str
    policy: CompactionPolicy


class Attachments:
    """What was attached through one Holdfast, and the sessions that are being compacted by it."""

    def __init__(self) -> None:
        self._by_target: dict[tuple[str, Target, str], list[Attachment]] = {}
        self._agents: set[str] = set()
        self._busy: dict[tuple[str, str], object] = {}

    def put(self, scope: Scope, target: Target, name: str, attachment: Attachment, *, beside: bool = False) -> None:
        """Attach something, in place of what was there or, if nobody knows yet which of them will hold, beside it."""
        there = self._by_target.get((scope.stored_tenant, target, name), []) if beside else []
        others = [each for each in there if each.policy != attachment.policy]
        self._by_target[scope.stored_tenant, target, name] = [*others, attachment]
        self._note_whose()

    def take(self, scope: Scope, target: Target, name: str) -> None:
        """Detach it, if it is there."""
        self._by_target.pop((scope.stored_tenant, target, name), None)
        self._note_whose()

    def find(self, scope: Scope, attached: Attached) -> Attachment | None:
        """What this process brings along for a policy: what was attached with it, or else, if it is another process's, last."""
        there = self._by_target.get((scope.stored_tenant, attached.target, attached.name), [])
        candidates = [each for each in there if each.policy == attached.policy] or there
        return candidates[-1] if candidates else None

    def may_concern(self, scope: Scope, session_id: str) -> bool:
        """Whether something is attached to a session or, since nobody knows here whose it is, to any agent of the tenant."""
        return scope.stored_tenant in self._agents or (scope.stored_tenant, "session", session_id) in self._by_target

    def begin(self, scope: Scope, session_id: str) -> bool:
        """Whether a session is not being compacted yet; if so, it is from now on."""
        mine = object()
        return self._busy.setdefault((scope.stored_tenant, session_id), mine) is mine

    def end(self, scope: Scope, session_id: str) -> None:
        """It is not any more."""
        self._busy.pop((scope.stored_tenant, session_id), None)

    def _note_whose(self) -> None:
        self._agents = {tenant for tenant, target, _ in self._by_target if target == "agent"}


def of(scope: Scope) -> Attachments:
    """What was attached through the Holdfast that a scope belongs to."""
    found: Attachments = scope.shared.setdefault(_SHARED, Attachments())
    return found


async def store(connection: Connection, scope: Scope, target: Target, name: str, policy: CompactionPolicy) -> None:
    """Store a policy, and let what it is for follow it.

    Raises:
        NotFound: there is no such live session.
    """
    values = {
        "scope": target,
        "name": name,
        "policy": text.dump(msgspec.to_builtins(policy)),
        "compact_from": policy.due_tokens,
        "now_at": scope.clock.now_us(),
    }
    await queries.attach.all(connection, scope.params(**values))
    await _follow(connection, scope, target, name)


async def remove(connection: Connection, scope: Scope, target: Target, name: str) -> None:
    """Remove a policy, and let what it was for follow what is left.

    Raises:
        NotFound: there is none, or the session is not live.
    """
    if await queries.detach.one(connection, scope.params(scope=target, name=name)) is None:
        raise NotFound(f"no policy is attached to the {target} {text.unescape(name)}")
    await _follow(connection, scope, target, name)


async def find(connection: Connection, params: dict[str, Any]) -> Attached | None:
    """The policy that holds for a live session: its own before its agent's."""
    rows = {row[0]: row for row in await queries.attached.all(connection, params)}
    row = rows.get("session") or rows.get("agent")
    if row is None:
        return None
    try:
        return Attached(row[0], row[1], msgspec.convert(text.load(row[2]), CompactionPolicy))
    except (msgspec.ValidationError, InvalidInput) as error:
        raise Corrupt(f"a stored compaction policy cannot be read: {error}") from error


async def _follow(connection: Connection, scope: Scope, target: Target, name: str) -> None:
    if target == "agent":
        await queries.follow_agent.all(connection, scope.params(agent_id=name), index="sessions_by_agent")
    elif await queries.follow_session.one(connection, scope.params(session_id=name)) is None:
        raise NotFound(f"there is no session {name} here")
