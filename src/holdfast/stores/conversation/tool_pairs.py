"""Pairs of messages that belong together, because one contains a tool call and the other its result.

A call is a block whose type ends in ``tool_use``, with an ``id``; a result is a block that names a call as its ``tool_use_id``.
One message may contain several of either, the results of one message's calls may be spread over several messages, with other
messages in between. Only entries of the kind ``message`` have blocks.

Some providers reuse the same ids in every turn. So a result belongs to the nearest earlier call with its id that has no
result yet; if all of them have one, it is another result of the nearest. Without an earlier call, it belongs to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from .message_log import Message


def calls_in(message: Message) -> set[str]:
    """Return the ids of the calls in a message."""
    return {block["id"] for block in _blocks(message) if _is_call(block)}


def results_in(message: Message) -> set[str]:
    """Return the ids of the calls whose results are in a message."""
    return {block["tool_use_id"] for block in _blocks(message) if _is_result(block)}


def has_tools(message: Message) -> bool:
    """Return whether a message may contain a call or a result: a fast check, because most messages are only text."""
    content = message.content
    return message.kind == "message" and not (len(content) == 1 and content[0].get("type") == "text")


Half = tuple[str, str]
"""The id of a message that contains a call or its result, and the id of the call."""


class Pairs:
    """Calls and results of a history, or of parts of it in which no message is missing; nothing is matched across parts."""

    def __init__(self, *parts: Iterable[Message]) -> None:
        self.call_of: dict[Half, str] = {}
        """The message with the call, for each result that has one."""
        self.results_of: dict[Half, list[str]] = {}
        """The messages with results, for each call; an empty list for a call without a result."""
        for part in parts:
            self._match(part)

    @property
    def unanswered(self) -> set[str]:
        """The messages with a call that has no result yet."""
        return {message for (message, _), results in self.results_of.items() if not results}

    def bound_to(self, kept: Iterable[str]) -> set[str]:
        """Return the messages that must stay if these do: partners, their partners, and so on, without the given messages."""
        first = set(kept)
        reached = set(first)
        waiting = [message_id for message_id in first if message_id in self._partners]
        while waiting:
            fresh = self._partners[waiting.pop()] - reached
            reached |= fresh
            waiting += fresh
        return reached - first

    def _match(self, messages: Iterable[Message]) -> None:
        nearest: dict[str, str] = {}
        unanswered: dict[str, list[str]] = {}
        for message in messages:
            for tool, is_call in _halves(message):
                if is_call:
                    self.results_of[message.id, tool] = []
                    nearest[tool] = message.id
                    unanswered.setdefault(tool, []).append(message.id)
                elif tool in nearest:
                    waiting = unanswered[tool]
                    call = waiting.pop() if waiting else nearest[tool]
                    self.call_of[message.id, tool] = call
                    self.results_of[call, tool].append(message.id)

    @cached_property
    def _partners(self) -> dict[str, set[str]]:
        """The messages with counterparts, for each message that has any."""
        partners: dict[str, set[str]] = {}
        for (result, _), call in self.call_of.items():
            partners.setdefault(call, set()).add(result)
            partners.setdefault(result, set()).add(call)
        return partners


def _blocks(message: Message) -> list[Mapping[str, Any]]:
    """Return the blocks that may be about a tool: the blocks of most messages have only a type and a text."""
    content = message.content
    if message.kind != "message" or not isinstance(content, list):
        return []
    return [
        block
        for block in content
        if isinstance(block, dict) and ("id" in block or "tool_use_id" in block)  # as every JSON object is loaded
    ]


def _halves(message: Message) -> Iterable[tuple[str, bool]]:
    """Return the ids of calls made or answered in a message, each once and in order, and whether it is the call."""
    halves: dict[tuple[str, bool], None] = {}
    for block in _blocks(message):
        if _is_result(block):
            halves[block["tool_use_id"], False] = None
        if _is_call(block):
            halves[block["id"], True] = None
    return halves


def _is_call(block: Mapping[str, Any]) -> bool:
    return isinstance(block.get("id"), str) and str(block.get("type")).endswith("tool_use")


def _is_result(block: Mapping[str, Any]) -> bool:
    return isinstance(block.get("tool_use_id"), str)
