"""Makers for pending messages, contacts and feedback. ``workloads`` defines a maker."""

from __future__ import annotations

from datetime import timedelta

from holdfast.stores.conversation.feedback import ISSUE_TYPES, Feedback
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.pending_groups import PendingGroup
from holdfast.stores.conversation.pending_messages import NewPendingMessage
from tests.workloads.workloads import Arguments, World, maker

ROOMS = (("telegram", "-100"), ("telegram", "-1001"), ("discord", "general"))
SENDERS = 10
"""Few names, so that many calls concern an existing user."""


# Pending messages


@maker("pending_messages.append_batch")
def _append_batch(world: World) -> Arguments:
    rooms = world.random.sample(ROOMS, 2)
    messages = [
        NewPendingMessage(channel_name=channel, history_key=key, body=world.text(), sender="Ada", sender_id="s1")
        for channel, key in (rooms[0], rooms[1], rooms[0])
    ]
    return (messages,), {}


@maker("pending_messages.compact", before="pending_messages.append_batch")
def _compact_pending(world: World) -> Arguments | None:
    group = _group(world, least=2)
    if group is None:
        return None
    ids = [message.id for message in world.tenant.pending_messages.list_by_key(*group.name)]
    return (ids[: 1 + len(ids) // 2], world.text()), {}


@maker("pending_messages.delete_by_key", before="pending_messages.append_batch")
def _delete_by_key(world: World) -> Arguments | None:
    group = _group(world)
    return None if group is None else (group.name, {})


@maker("pending_messages.delete_stale", before="pending_messages.append_batch")
def _delete_stale(world: World) -> Arguments | None:
    """Expire the pending messages that are older than about six calls."""
    return ((), {"older_than": timedelta(seconds=40)}) if _group(world) else None


def _group(world: World, least: int = 1) -> PendingGroup | None:
    actual = [group for group in world.tenant.pending_messages.list_groups() if group.message_count >= least]
    return world.random.choice(actual) if actual else None


# Contacts


@maker("contacts.upsert")
def _upsert_contact(world: World) -> Arguments:
    channel, _ = world.random.choice(ROOMS)
    sender = f"s{world.random.randrange(SENDERS)}"
    return (channel, sender), {"display_name": world.name("Name"), "metadata": {"text": world.text()}}


@maker("contacts.merge", before="contacts.upsert")
def _merge(world: World) -> Arguments | None:
    existing = [contact.id for contact in world.tenant.contacts.list()]
    return ((world.random.sample(existing, 2),), {}) if len(existing) > 1 else None


@maker("contacts.unmerge", before="contacts.merge")
def _unmerge(world: World) -> Arguments | None:
    existing = [contact.id for contact in world.tenant.contacts.list() if contact.merged_id is not None]
    return (([world.random.choice(existing)],), {}) if existing else None


# Feedback


@maker("feedback.create", before="messages.append")
def _create_feedback(world: World) -> Arguments | None:
    message = _message(world)
    kwargs = {"is_positive": False, "issue_type": world.random.choice(ISSUE_TYPES), "feedback_text": world.text()[:400]}
    return None if message is None else ((message.id,), {**kwargs, "user": world.name("user")})


@maker("feedback.upsert", before="messages.append")
def _upsert_feedback(world: World) -> Arguments | None:
    message = _message(world)
    kwargs = {"is_positive": world.random.random() < 0.5, "metadata": {"text": world.text()}}
    return None if message is None else ((message.id,), {**kwargs, "user": world.random.choice(("ada", "grace"))})


@maker("feedback.update", before="feedback.create")
def _update_feedback(world: World) -> Arguments | None:
    existing = _feedback(world)
    return None if existing is None else ((existing.id,), {"is_positive": not existing.is_positive, "issue_type": ""})


@maker("feedback.delete", before="feedback.create")
def _delete_feedback(world: World) -> Arguments | None:
    existing = _feedback(world)
    return None if existing is None else ((existing.id,), {})


def _message(world: World) -> Message | None:
    session = world.session(filled=True)
    return None if session is None else world.random.choice(world.tenant.messages.list(session.id))


def _feedback(world: World) -> Feedback | None:
    existing = world.tenant.feedback.list()
    return world.random.choice(existing) if existing else None
