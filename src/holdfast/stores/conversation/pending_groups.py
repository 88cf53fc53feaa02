"""Groups of pending messages: their order in pages, and the session keys that name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from ...clock import to_us
from ...core import text
from ...core.paging import decode_cursor, encode_cursor
from ...errors import InvalidInput
from ...limits import Limits
from .keys import GroupKey


class PendingGroup(Struct, frozen=True):
    """A group with pending messages. ``has_summary``: whether its last message is a summary."""

    channel_name: str
    history_key: str
    message_count: int
    has_summary: bool
    last_activity: datetime

    @property
    def name(self) -> tuple[str, str]:
        """The channel's name and the history key, as ``resolve_group_titles`` takes them."""
        return (self.channel_name, self.history_key)


def group_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the channel's name and the history key of a row, in their stored form."""
    return (row["channel_name"], row["history_key"])


def group_cursor(group: PendingGroup) -> str:
    """Return the cursor of the page that starts after a group."""
    return encode_cursor("pending-groups", to_us(group.last_activity), group.channel_name, group.history_key)


def groups_after(cursor: str | None, params: dict[str, Any]) -> str:
    """Return the condition that a page of groups starts after a cursor."""
    if cursor is None:
        return ""
    after_at, channel, key = decode_cursor(cursor, "pending-groups", int, str, str)
    params.update(after_at=after_at, after_channel=text.escape(channel), after_key=text.escape(key))
    return (
        "\n  AND (MAX(created_at) < :after_at OR (MAX(created_at) = :after_at"
        " AND (channel_name, history_key) > (:after_channel, :after_key)))"
    )


def group_by_key_tail(groups: Sequence[tuple[str, str]], limits: Limits) -> dict[str, tuple[str, str]]:
    """Map the part of their sessions' keys that follows the agent, in its stored form, to the groups.

    Raises:
        InvalidInput: a group is not a pair of a channel's name and a history key.
        LimitExceeded: there are more than ``batch_rows``.
    """
    if not isinstance(groups, Sequence) or not all(_is_pair(group) for group in groups):
        raise InvalidInput("groups must be a list of pairs: the channel's name and the history key", field="groups")
    limits.check("batch_rows", len(groups), "groups")
    tails: dict[str, tuple[str, str]] = {}
    for channel, key in groups:
        try:
            escaped = text.escape(str(GroupKey(agent="a", channel=channel, peer=key)))
        except InvalidInput:
            continue  # no session key can contain this channel
        tails[escaped.removeprefix("agent:a:")] = (channel, key)
    return tails


def _is_pair(group: object) -> bool:
    return isinstance(group, (tuple, list)) and len(group) == 2 and all(isinstance(part, str) for part in group)
