"""Makers for compactions and what undoes them. ``workloads`` says what a maker is."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.stores.conversation.compaction.events import CompactionEvent
from holdfast.stores.conversation.compaction.policy import CompactionPolicy
from holdfast.stores.conversation.compaction.strategies import Changes, History
from holdfast.stores.conversation.sessions import Session
from tests.workloads.workloads import Arguments, World, maker

POLICY = CompactionPolicy(
    strategy="summarization", preserve_last=1, protected_tokens=0, window_tokens=1_000, target_tokens=10
)
AGENTS_POLICY = replace(POLICY, trigger=0.9)


class Shorten:
    """Leaves every second message out, and of the others hardly anything."""

    name = "shorten"

    def choose(self, history: History, policy: CompactionPolicy) -> Changes:
        chosen = [message.id for message in history.removable]
        content = [{"type": "text", "text": "cut"}]
        rewrite = {item: content for item in chosen[1::2] if history.tokens[item] > history.count(content)}
        return Changes(remove=chosen[::2], rewrite=rewrite, summarize=False)


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
    removed = [message.id for message in world.tenant.messages.list(session.id)[:-1]]
    return (session.id,), {"strategy": "own", "removed": removed[:2], "summary": "s"}


@maker("compactions.archive", before="compactions.record")
def _archive(world: World) -> Arguments | None:
    for session in world.tenant.sessions.list():
        live = [item for item in world.tenant.compactions.history(session.id) if item.rolled_back_at is None]
        messages = [message.id for message in world.tenant.messages.list(session.id) if not message.is_summary]
        if live and messages:
            return (live[0].id, messages[:1]), {}
    return None


@maker("compactions.rollback", before="compactions.compact")
def _rollback(world: World) -> Arguments | None:
    """Mostly an event that can be undone; now and then one that cannot, because a newer one is in the way. One is left alone."""
    actual = [event for session in world.tenant.sessions.list() for event in _live(world, session)]
    return ((world.random.choice(actual).id,), {}) if len(actual) > 1 else None


@maker("compactions.attach")
def _attach(world: World) -> Arguments | None:
    session = world.session()
    if session is None or world.random.random() < 0.3:
        return (AGENTS_POLICY,), {"agent": "helper"}
    return (POLICY,), {"session_id": session.id}


@maker("compactions.detach", before="compactions.attach")
def _detach(world: World) -> Arguments | None:
    """From a session, or now and then from the agent; one session keeps its policy."""
    attached = {session.id: world.tenant.compactions.attached(session.id) for session in world.tenant.sessions.list()}
    own = [item for item, policy in attached.items() if policy == POLICY]
    if len(own) < 2:
        return None
    if AGENTS_POLICY in attached.values() and world.random.random() < 0.3:
        return (), {"agent": "helper"}
    return (), {"session_id": world.random.choice(own)}


def _compactable(world: World) -> Session | None:
    """Some session of which a compaction can take something away."""
    actual = [session for session in world.tenant.sessions.list() if session.message_count > 2]
    actual = [item for item in actual if world.tenant.compactions.plan(item.id, POLICY).tokens_before > 40]
    return world.random.choice(actual) if actual else None


def _live(world: World, session: Session) -> list[CompactionEvent]:
    events = [item for item in world.tenant.compactions.history(session.id) if item.rolled_back_at is None]
    return events[:1] if world.random.random() < 0.8 else events
