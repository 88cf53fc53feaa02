"""Automatic compaction policies of sessions and agents, and the functions with which this process applies them.

A policy is stored and applies in every process. The summarize function and the strategy cannot be stored: they belong to the
Holdfast they were given to and are shared by all its handles. They are used only together with a stored policy, so leftover
functions have no effect. That is why they may outlive a joined transaction, whose outcome is not known here.
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


class AttachedFunctions(Struct, frozen=True):
    """The functions that this process uses for an automatic compaction."""

    summarize: Summarizer | None
    strategy: Strategy | None
    policy: CompactionPolicy
    """The policy that they were attached with."""


class AttachedPolicy(Struct, frozen=True):
    """The policy that applies to a session, and the session or agent it is attached to."""

    target: Target
    name: str
    policy: CompactionPolicy


class Attachments:
    """The functions attached through one Holdfast, and the sessions that it is compacting now."""

    def __init__(self) -> None:
        self._by_target: dict[tuple[str, Target, str], list[AttachedFunctions]] = {}
        self._agents: set[str] = set()
        self._busy: dict[tuple[str, str], object] = {}

    def put(
        self, scope: Scope, target: Target, name: str, functions: AttachedFunctions, *, keep_others: bool = False
    ) -> None:
        """Attach functions to a session or an agent, in place of earlier ones.

        With ``keep_others``, those attached with other policies stay: inside a joined transaction, either policy may be
        the one that is committed.
        """
        existing = self._by_target.get((scope.stored_tenant, target, name), []) if keep_others else []
        others = [other for other in existing if other.policy != functions.policy]
        self._by_target[scope.stored_tenant, target, name] = [*others, functions]
        self._update_agents()

    def detach(self, scope: Scope, target: Target, name: str) -> None:
        """Detach all functions of a session or an agent, if any are attached."""
        self._by_target.pop((scope.stored_tenant, target, name), None)
        self._update_agents()

    def find(self, scope: Scope, attached: AttachedPolicy) -> AttachedFunctions | None:
        """Return the functions attached with this policy, else the latest ones attached to its session or agent, or ``None``.

        Another process may have stored the policy; then the latest ones are used.
        """
        attached_functions = self._by_target.get((scope.stored_tenant, attached.target, attached.name), [])
        candidates = [
            functions for functions in attached_functions if functions.policy == attached.policy
        ] or attached_functions
        return candidates[-1] if candidates else None

    def may_apply_to(self, scope: Scope, session_id: str) -> bool:
        """Whether functions are attached to the session, or to any agent of the tenant: the session's agent is not known here."""
        return scope.stored_tenant in self._agents or (scope.stored_tenant, "session", session_id) in self._by_target

    def begin(self, scope: Scope, session_id: str) -> bool:
        """Mark a session as being compacted; return whether it was not marked before."""
        mine = object()
        return self._busy.setdefault((scope.stored_tenant, session_id), mine) is mine

    def end(self, scope: Scope, session_id: str) -> None:
        """Remove the mark that ``begin`` set."""
        self._busy.pop((scope.stored_tenant, session_id), None)

    def _update_agents(self) -> None:
        self._agents = {tenant for tenant, target, _ in self._by_target if target == "agent"}


def of(scope: Scope) -> Attachments:
    """Return the attachments of the Holdfast that a scope belongs to."""
    attachments: Attachments = scope.shared.setdefault(_SHARED, Attachments())
    return attachments


async def store(connection: Connection, scope: Scope, target: Target, name: str, policy: CompactionPolicy) -> None:
    """Store a policy, and set when its session or its agent's sessions are due.

    Raises:
        NotFound: the session does not exist or is deleted.
    """
    values = {
        "scope": target,
        "name": name,
        "policy": text.dump(msgspec.to_builtins(policy)),
        "compact_from": policy.due_tokens,
        "now_at": scope.clock.now_us(),
    }
    await queries.attach.all(connection, scope.params(**values))
    await _update_due_tokens(connection, scope, target, name)


async def remove(connection: Connection, scope: Scope, target: Target, name: str) -> None:
    """Remove a policy, and update when its session or its agent's sessions are due.

    Raises:
        NotFound: no policy is attached, or the session does not exist or is deleted.
    """
    if await queries.detach.one(connection, scope.params(scope=target, name=name)) is None:
        raise NotFound(
            f"no compaction policy is attached to {target} {text.unescape(name)!r}",
            noun="compaction policy",
            key=text.unescape(name),
        )
    await _update_due_tokens(connection, scope, target, name)


async def find(connection: Connection, params: dict[str, Any]) -> AttachedPolicy | None:
    """Return the policy of a live session: its own, else its agent's, else ``None``."""
    rows = {row[0]: row for row in await queries.attached.all(connection, params)}
    row = rows.get("session") or rows.get("agent")
    if row is None:
        return None
    try:
        return AttachedPolicy(row[0], row[1], msgspec.convert(text.load(row[2]), CompactionPolicy))
    except (msgspec.ValidationError, InvalidInput) as error:
        raise Corrupt(f"the stored compaction policy of {row[0]} {row[1]!r} cannot be read: {error}") from error


async def _update_due_tokens(connection: Connection, scope: Scope, target: Target, name: str) -> None:
    if target == "agent":
        await queries.follow_agent.all(connection, scope.params(agent_id=name), index="sessions_by_agent")
    elif await queries.follow_session.one(connection, scope.params(session_id=name)) is None:
        raise NotFound(f"session {name!r} does not exist", noun="session", key=name)
