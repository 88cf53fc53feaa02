"""Makers for compactions and their rollback. ``workloads`` defines a maker."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.stores.conversation.compaction.events import CompactionEvent
from holdfast.stores.conversation.compaction.policy import CompactionPolicy
from holdfast.stores.conversation.compaction.strategies import CompactionChanges, CompactionHistory
from holdfast.stores.conversation.sessions import Session
from tests.workloads.workloads import Arguments, World, maker

POLICY = CompactionPolicy(
    strategy="summarization", preserve_last=1, protected_tokens=0, window_tokens=1_000, target_tokens=10
)
AGENTS_POLICY = replace(POLICY, trigger=0.9)


class Shorten:
    """A strategy that drops every second message and shortens the others."""

    name = "shorten"

    def choose(self, history: CompactionHistory, policy: CompactionPolicy) -> CompactionChanges:
        chosen = [message.id for message in history.removable]
        content = [{"type": "text", "text": "cut"}]
        rewrite = {item: content for item in chosen[1::2] if history.tokens[item] > history.count(content)}
        return CompactionChanges(remove=chosen[::2], rewrite=rewrite, summarize=False)


@maker("compactions.compact", before="messages.append_many")
def _compact(world: World) -> Arguments | None:
    session = _compactable(world)
    if session is None:
        return None
    if world.random.random() < 0.4:
        return (session.id, POLICY), {"strategy": Shorten()}
    return (session.id, POLICY), {"summary": "s", "model": "m"}


@maker("compactions.record", before="messages.append_many")
def _record(world: World) -> Arguments | None:
    session = world.session(filled=True)
    if session is None:
        return None
    removed = [item.id for item in world.tenant.messages.list(session.id)[:-1]]
    return (session.id,), {"strategy": "own", "removed": removed[:2], "summary": "s"}


@maker("compactions.archive", before="compactions.record")
def _archive(world: World) -> Arguments | None:
    for session in world.tenant.sessions.list():
        live = [item for item in world.tenant.compactions.history(session.id) if item.rolled_back_at is None]
        messages = [item.id for item in world.tenant.messages.list(session.id) if not item.is_summary]
        if live and messages:
            return (live[0].id, messages[:1]), {}
    return None


@maker("compactions.rollback", before="compactions.compact")
def _rollback(world: World) -> Arguments | None:
    """Usually an event that can be rolled back; sometimes one that cannot, because a newer one exists. One event remains."""
    candidates = [event for session in world.tenant.sessions.list() for event in _live(world, session)]
    return ((world.random.choice(candidates).id,), {}) if len(candidates) > 1 else None


@maker("compactions.attach")
def _attach(world: World) -> Arguments | None:
    session = world.session()
    if session is None or world.random.random() < 0.3:
        return (AGENTS_POLICY,), {"agent": "helper"}
    return (POLICY,), {"session_id": session.id}


@maker("compactions.detach", before="compactions.attach")
def _detach(world: World) -> Arguments | None:
    """Usually detach from a session, sometimes from the agent; one session keeps its policy."""
    attached = {item.id: world.tenant.compactions.attached(item.id) for item in world.tenant.sessions.list()}
    own = [item for item, policy in attached.items() if policy == POLICY]
    if len(own) < 2:
        return None
    if AGENTS_POLICY in attached.values() and world.random.random() < 0.3:
        return (), {"agent": "helper"}
    return (), {"session_id": world.random.choice(own)}


def _compactable(world: World) -> Session | None:
    """Return a session with messages that a compaction can remove."""
    candidates = [item for item in world.tenant.sessions.list() if item.message_count > 2]
    candidates = [item for item in candidates if world.tenant.compactions.plan(item.id, POLICY).tokens_before > 40]
    return world.random.choice(candidates) if candidates else None


def _live(world: World, session: Session) -> list[CompactionEvent]:
    events = [item for item in world.tenant.compactions.history(session.id) if item.rolled_back_at is None]
    return events[:1] if world.random.random() < 0.8 else events
