"""Which messages belong together, because one holds the call of a tool and another its result.

A call is a block whose type ends in ``tool_use``, with an ``id``; a result is a block that names one as its ``tool_use_id``. One
message may hold several of either, the results of one message's calls may be spread over several, and other messages may
lie between. Only entries of the kind ``message`` have blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .message_log import Message


def calls_in(message: Message) -> set[str]:
    """The ids of the calls in a message."""
    return _calls(_blocks(message))


def results_in(message: Message) -> set[str]:
    """The ids of the calls whose results are in a message."""
    return _results(_blocks(message))


class Pairs:
    """Calls and results of a history."""

    def __init__(self, messages: Sequence[Message]) -> None:
        blocks = {message.id: found for message in messages if (found := _blocks(message))}
        calls = {each: _calls(found) for each, found in blocks.items()}
        results = {each: _results(found) for each, found in blocks.items()}
        self._tools = {each: calls[each] | results[each] for each in calls if calls[each] or results[each]}
        answered: set[str] = set().union(*results.values())
        self.unanswered = {each for each, made in calls.items() if made - answered}
        """The messages with a call that has no result, or none yet."""
        self._messages: dict[str, list[str]] = {}
        for each, tools in self._tools.items():
            for tool in tools:
                self._messages.setdefault(tool, []).append(each)

    def bound_to(self, kept: Iterable[str]) -> set[str]:
        """The messages that cannot go if these stay: partners, their partners, and so on. The given ones are not among them."""
        first = set(kept)
        reached = set(first)
        waiting = [each for each in first if each in self._tools]
        while waiting:
            for tool in self._tools[waiting.pop()]:
                fresh = [each for each in self._messages[tool] if each not in reached]
                reached.update(fresh)
                waiting += fresh
        return reached - first

    def tools_of(self, messages: Iterable[str]) -> set[str]:
        """The ids of all calls made or answered in these messages."""
        return set().union(*(self._tools.get(each, ()) for each in messages))


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


def _calls(blocks: Iterable[Mapping[str, Any]]) -> set[str]:
    return {
        block["id"]
        for block in blocks
        if isinstance(block.get("id"), str) and str(block.get("type")).endswith("tool_use")
    }


def _results(blocks: Iterable[Mapping[str, Any]]) -> set[str]:
    return {block["tool_use_id"] for block in blocks if isinstance(block.get("tool_use_id"), str)}
