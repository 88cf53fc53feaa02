"""Compaction strategies: which messages a compaction may change, and which it chooses.

A strategy gets a ``CompactionHistory`` and returns ``CompactionChanges``: the messages to remove, the messages to rewrite, and
whether a summary replaces those removed. It is called outside of any write transaction and must not change anything. It cannot
do harm: changes to protected messages, and changes that would separate a tool call from its result, raise ``InvalidInput``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct, structs

from ....core import text
from ....errors import InvalidInput, LimitExceeded
from ....limits import Limits
from ..contents import stored_content
from ..message_log import Message
from ..tokens import TokenCounter, tokens_of
from ..tool_pairs import Pairs, calls_in, results_in
from .policy import CompactionPolicy

Summarizer = Callable[[Sequence[Message]], str | Awaitable[str]]
"""A function of the caller's that takes messages and returns their summary; it may be an ``async def``."""

PRUNED = "[tool output removed]"
"""Replaces a removed tool output."""

Reason = Literal["preserved", "system", "last", "recent", "unanswered", "pair"]
"""Why a message is kept: it is marked as preserved, has the role ``system``, is one of the last messages, is within the last
tokens, has a tool call without a result, or has a call or a result whose other half is kept. The last two may be rewritten."""
REWRITABLE: frozenset[Reason] = frozenset({"unanswered", "pair"})


class CompactionHistory:
    """A session as a strategy sees it.

    ``messages`` are the session's messages in order, ``tokens`` their token counts by id, ``kept`` the reasons of the messages
    that must not be removed, by id, and ``count`` counts the tokens of any content.
    """

    def __init__(self, messages: Sequence[Message], policy: CompactionPolicy, count: TokenCounter) -> None:
        self.messages, self.count = messages, count
        self.tokens = {message.id: tokens_of(message, count) for message in messages}
        self.total_tokens = sum(self.tokens.values())
        self.pairs = Pairs(messages)
        self.kept = self._protection_reasons(policy)

    @property
    def removable(self) -> Sequence[Message]:
        """The messages that may be removed, in order."""
        return [message for message in self.messages if message.id not in self.kept]

    @property
    def rewritable(self) -> Sequence[Message]:
        """The messages whose content may be changed, in order: those that may be removed, and some that may not."""
        return [message for message in self.messages if self.may_rewrite(message.id)]

    def may_rewrite(self, message_id: str) -> bool:
        """Return whether the content of a message may be changed."""
        reason = self.kept.get(message_id)
        return reason is None or reason in REWRITABLE

    def _protection_reasons(self, policy: CompactionPolicy) -> dict[str, Reason]:
        kept: dict[str, Reason] = {}
        for message in self.messages:
            if message.is_preserved or message.role == "system":
                kept[message.id] = "preserved" if message.is_preserved else "system"
        for message in self.messages[-policy.preserve_last :] if policy.preserve_last else ():
            kept.setdefault(message.id, "last")
        for id in self._newest_within(policy.protected_tokens):
            kept.setdefault(id, "recent")
        for id in self.pairs.unanswered:
            kept.setdefault(id, "unanswered")
        for id in self.pairs.bound_to(kept):
            kept[id] = "pair"
        return kept

    def _newest_within(self, tokens: int) -> Sequence[str]:
        """Return the ids of the newest messages that together have at most ``tokens`` tokens."""
        ids: list[str] = []
        for message in reversed(self.messages) if tokens else ():
            tokens -= self.tokens[message.id]
            if tokens < 0:
                break
            ids.append(message.id)
        return ids


class CompactionChanges(Struct, frozen=True, kw_only=True):
    """The choice of a strategy. With ``summarize``, a summary replaces the removed messages. The function that summarises gets a
    removed message with its content from ``rewrite``, if it has one there."""

    remove: Sequence[str] = ()
    """The ids of the messages to remove."""
    rewrite: Mapping[str, Any] = {}
    """New contents by message id, in the form that ``append`` takes: text or a list of content blocks."""
    summarize: bool = True


class Strategy(Protocol):
    """A way to make a session smaller."""

    @property
    def name(self) -> str:
        """The name recorded in events."""

    def choose(self, history: CompactionHistory, policy: CompactionPolicy) -> CompactionChanges:
        """Choose the messages to remove and to rewrite."""


class Summarization:
    """Replaces all removable messages by one summary."""

    name = "summarization"

    def choose(self, history: CompactionHistory, policy: CompactionPolicy) -> CompactionChanges:
        """Choose all removable messages, unless all of them are summaries."""
        removable = history.removable
        if all(message.is_summary for message in removable):
            return CompactionChanges()  # a summary of summaries loses information, at the price of a model call
        return CompactionChanges(remove=[message.id for message in removable])


class Hybrid:
    """Removes tool outputs first. Only if that is not enough, replaces all removable messages by one summary."""

    name = "hybrid"

    def choose(self, history: CompactionHistory, policy: CompactionPolicy) -> CompactionChanges:
        """Choose tool outputs, if removing them saves enough, and all removable messages, if that is still needed."""
        pruned, saved = ({}, 0) if policy.keep_tool_outputs else _prune_tool_outputs(history)
        if not pruned or saved < policy.prune_tokens:
            return Summarization().choose(history, policy)
        if history.total_tokens - saved <= policy.target_tokens:
            return CompactionChanges(rewrite=pruned, summarize=False)
        return CompactionChanges(remove=Summarization().choose(history, policy).remove, rewrite=pruned)


STRATEGIES: Mapping[str, Strategy] = {strategy.name: strategy for strategy in (Summarization(), Hybrid())}


def find(policy: CompactionPolicy, own: Strategy | None) -> Strategy:
    """Return the caller's own strategy, or else the strategy that the policy names.

    Raises:
        InvalidInput: no strategy has that name, or ``own`` is not a strategy.
    """
    if own is not None:
        if not isinstance(getattr(own, "name", None), str) or not callable(getattr(own, "choose", None)):
            raise InvalidInput("strategy must have a name and a method choose(history, policy)", field="strategy")
        structs.replace(policy, strategy=own.name)  # raises if the name cannot be stored
        return own
    if policy.strategy not in STRATEGIES:
        names = ", ".join(STRATEGIES)
        raise InvalidInput(
            f"strategy {policy.strategy!r} does not exist: choose one of {names}, or pass your own as strategy=",
            field="strategy",
        )
    return STRATEGIES[policy.strategy]


def check_changes(changes: CompactionChanges, history: CompactionHistory, limits: Limits) -> CompactionChanges:
    """Check the choice of a strategy; return it with the new contents as they will be read back from the database.

    Raises:
        InvalidInput: a message does not exist or is protected, a call would be separated from its result, or a new content
            cannot be appended.
        LimitExceeded: a new content is too large.
    """
    if not isinstance(changes, CompactionChanges):
        raise InvalidInput(f"strategy must return CompactionChanges, not {type(changes).__name__}", field="strategy")
    if not isinstance(changes.remove, Collection) or isinstance(changes.remove, str):
        raise InvalidInput("CompactionChanges.remove must be a list of message ids", field="remove")
    if not isinstance(changes.rewrite, Mapping):
        raise InvalidInput("CompactionChanges.rewrite must map message ids to new contents", field="rewrite")
    by_id = {message.id: message for message in history.messages}
    for id in {*changes.remove, *changes.rewrite} - by_id.keys():
        raise InvalidInput(f"the strategy chose {id!r}, which is not a message of this history", field="strategy")
    for id in changes.remove:
        if id in history.kept:
            raise InvalidInput(
                f"the strategy would remove message {id}, which is protected: {history.kept[id]}", field="remove"
            )
    staying = by_id.keys() - set(changes.remove)
    for id in history.pairs.bound_to(staying):
        raise InvalidInput(
            f"the strategy would remove message {id} and keep the other half of its tool call", field="remove"
        )
    for id in changes.rewrite:
        if not history.may_rewrite(id):
            raise InvalidInput(
                f"the strategy would rewrite message {id}, which is protected: {history.kept[id]}", field="rewrite"
            )
    contents = {id: _check_content(by_id[id], content, limits) for id, content in changes.rewrite.items()}
    return structs.replace(changes, rewrite=contents)


def _check_content(message: Message, content: Any, limits: Limits) -> Any:
    """Check a new content of a message like that of an append, and return it as it will be read back."""
    try:
        new_content = text.load(stored_content(content, message.kind, limits))
    except InvalidInput as error:
        refusal = f"the strategy would rewrite message {message.id}, but {error}"
        if isinstance(error, LimitExceeded):
            raise LimitExceeded(refusal, field="rewrite", limit=error.limit, maximum=error.maximum) from None
        raise type(error)(refusal, field="rewrite") from None
    rewritten = structs.replace(message, content=new_content)
    if (calls_in(rewritten), results_in(rewritten)) != (calls_in(message), results_in(message)):
        raise InvalidInput(
            f"the strategy would rewrite message {message.id} and lose a tool call or its result", field="rewrite"
        )
    return new_content


def _prune_tool_outputs(history: CompactionHistory) -> tuple[dict[str, Any], int]:
    """Return new contents without tool outputs, where they are shorter, and the number of tokens saved."""
    contents: dict[str, Any] = {}
    saved = 0
    for message in history.rewritable:
        if results_in(message) and any(map(_has_output, message.content)):
            content = [{**block, "content": PRUNED} if _has_output(block) else block for block in message.content]
            less = history.tokens[message.id] - history.count(content)
            if less > 0:
                contents[message.id] = content
                saved += less
    return contents, saved


def _has_output(block: Any) -> bool:
    """Return whether a block contains a tool output that is longer than its replacement.

    The results of tools that a provider runs itself have another form, and stay.
    """
    if not isinstance(block, Mapping) or block.get("type") != "tool_result" or "content" not in block:
        return False
    return text.size(text.dump(block["content"], depth=text.MAX_DEPTH)) > len(PRUNED) + 2
