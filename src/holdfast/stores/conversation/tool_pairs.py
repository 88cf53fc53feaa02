"""Which messages belong together, because one holds the call of a tool and another its result.

A call is a block whose type ends in ``tool_use``, with an ``id``; a result is a block that names one as its ``tool_use_id``. One
message may hold several of either, the results of one message's calls may be spread over several, and other messages may
lie between. Only entries of the kind ``message`` have blocks.

Some providers begin with the same ids in every turn. So a result belongs to the nearest call before it that has its id and no
result yet; if all of them have one, it is another result of the nearest. Without a call before it, it belongs to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from .message_log import Message


def calls_in(message: Message) -> set[str]:
    """The ids of the calls in a message."""
    return {block["id"] for block in _blocks(message) if _is_call(block)}


def results_in(message: Message) -> set[str]:
    """The ids of the calls whose results are in a message."""
    return {block["tool_use_id"] for block in _blocks(message) if _is_result(block)}


def has_tools(message: Message) -> bool:
    """Whether it can hold a call or a result: a quick look, because most messages are nothing but text."""
    content = message.content
    return message.kind == "message" and not (len(content) == 1 and content[0].get("type") == "text")


Half = tuple[str, str]
"""The id of a message that holds a call or its result, and the id of the call."""


class Pairs:
    """Calls and results of a history, or of parts of it in which nothing is missing: between them nothing is matched."""

    def __init__(self, *parts: Iterable[Message]) -> None:
        self.call_of: dict[Half, str] = {}
        """The message with the call, for each result that has one."""
        self.results_of: dict[Half, list[str]] = {}
        """The messages with results, for each call; for one that has no result, or none yet, there are none."""
        for part in parts:
            self._match(part)

    @property
    def unanswered(self) -> set[str]:
        """The messages with a call that has no result, or none yet."""
        return {message for (message, _), results in self.results_of.items() if not results}

    def bound_to(self, kept: Iterable[str]) -> set[str]:
        """The messages that cannot go if these stay: partners, their partners, and so on. The given ones are not among them."""
        first = set(kept)
        reached = set(first)
        waiting = [each for each in first if each in self._partners]
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
        """The messages with other halves, for each message that has any."""
        found: dict[str, set[str]] = {}
        for (result, _), call in self.call_of.items():
            found.setdefault(call, set()).add(result)
            found.setdefault(result, set()).add(call)
        return found


def _blocks(message: Message) -> list[Mapping[str, Any]]:
    """The blocks that could be about a tool: those of most messages have nothing but a type and a text."""
    content = message.content
    if message.kind != "message" or not isinstance(content, list):
        return []
    return [
        block
        for block in content
        if isinstance(block, dict) and ("id" in block or "tool_use_id" in block)  # as every JSON object is loaded
    ]


def _halves(message: Message) -> Iterable[tuple[str, bool]]:
    """The ids of calls made or answered in a message, in their order, each once, and whether it is the call."""
    found: dict[tuple[str, bool], None] = {}
    for block in _blocks(message):
        if _is_result(block):
            found[block["tool_use_id"], False] = None
        if _is_call(block):
            found[block["id"], True] = None
    return found


def _is_call(block: Mapping[str, Any]) -> bool:
    return isinstance(block.get("id"), str) and str(block.get("type")).endswith("tool_use")


def _is_result(block: Mapping[str, Any]) -> bool:
    return isinstance(block.get("tool_use_id"), str)
