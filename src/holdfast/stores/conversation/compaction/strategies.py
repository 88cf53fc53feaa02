"""What a compaction may touch, and the ways to choose from it.

A strategy looks at a ``History`` and answers with ``Changes``: which messages go, which are rewritten, and whether a summary
takes the place of those that go. It is asked outside of any transaction that writes, must not change anything, and cannot do
harm: what the policy protects, and whatever would separate the call of a tool from its result, is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct, structs

from ....core import text
from ....errors import InvalidInput
from ....limits import Limits
from ..contents import stored_content
from ..message_log import Message
from ..tokens import TokenCounter, tokens_of
from ..tool_pairs import Pairs, calls_in, results_in
from .policy import CompactionPolicy

Summarizer = Callable[[Sequence[Message]], str | Awaitable[str]]
"""A function of the caller's that is given messages and answers with a summary of them; it may be an ``async def``."""

PRUNED = "[tool output removed]"
"""What stands where the output of a tool was."""

Reason = Literal["preserved", "system", "last", "recent", "unanswered", "pair"]
"""Why a message stays: it is marked as preserved, of the role ``system``, one of the last messages, within the last tokens, has a
call whose result may still come, or belongs to a call or a result that stays. The last two may be rewritten."""
REWRITABLE: frozenset[Reason] = frozenset({"unanswered", "pair"})


class History:
    """A session as a strategy sees it.

    ``messages`` are those the session shows, in their order, ``tokens`` the tokens of each by its id, ``kept`` the reasons of
    those that cannot go, and ``count`` counts the tokens of any content.
    """

    def __init__(self, messages: Sequence[Message], policy: CompactionPolicy, count: TokenCounter) -> None:
        self.messages, self.count = messages, count
        self.tokens = {message.id: tokens_of(message, count) for message in messages}
        self.total_tokens = sum(self.tokens.values())
        self.pairs = Pairs(messages)
        self.kept = self._kept(policy)

    @property
    def removable(self) -> Sequence[Message]:
        """The messages that may go, in their order."""
        return [message for message in self.messages if message.id not in self.kept]

    @property
    def rewritable(self) -> Sequence[Message]:
        """The messages whose content may be changed, in their order: those that may go, and some that may not."""
        return [message for message in self.messages if self.may_rewrite(message.id)]

    def may_rewrite(self, message_id: str) -> bool:
        """Whether the content of a message may be changed."""
        reason = self.kept.get(message_id)
        return reason is None or reason in REWRITABLE

    def _kept(self, policy: CompactionPolicy) -> dict[str, Reason]:
        kept: dict[str, Reason] = {}
        for message in self.messages:
            if message.is_preserved or message.role == "system":
                kept[message.id] = "preserved" if message.is_preserved else "system"
        for message in self.messages[-policy.preserve_last :] if policy.preserve_last else ():
            kept.setdefault(message.id, "last")
        for each in self._newest(policy.protected_tokens):
            kept.setdefault(each, "recent")
        for each in self.pairs.unanswered:
            kept.setdefault(each, "unanswered")
        for each in self.pairs.bound_to(kept):
            kept[each] = "pair"
        return kept

    def _newest(self, tokens: int) -> Sequence[str]:
        """The newest messages that have at most so many tokens together."""
        found: list[str] = []
        for message in reversed(self.messages) if tokens else ():
            tokens -= self.tokens[message.id]
            if tokens < 0:
                break
            found.append(message.id)
        return found


class Changes(Struct, frozen=True, kw_only=True):
    """What a strategy chose. With ``summarize``, a summary takes the place of what is removed; the summariser sees a removed
    message as ``rewrite`` has it."""

    remove: Sequence[str] = ()
    """The ids of the messages that go."""
    rewrite: Mapping[str, Any] = {}
    """New contents, by the ids of their messages: each is what ``append`` takes, so text or a list of content blocks."""
    summarize: bool = True


class Strategy(Protocol):
    """A way to make a session smaller."""

    @property
    def name(self) -> str:
        """What events call it."""

    def choose(self, history: History, policy: CompactionPolicy) -> Changes:
        """Say what is to be removed and rewritten."""


class Summarization:
    """Everything that may go is replaced by one summary."""

    name = "summarization"

    def choose(self, history: History, policy: CompactionPolicy) -> Changes:
        """All that may go, unless nothing but summaries may."""
        removable = history.removable
        if all(message.is_summary for message in removable):
            return Changes()  # a summary of nothing but summaries says less, for the price of a call
        return Changes(remove=[message.id for message in removable])


class Hybrid:
    """First the outputs of tools are removed. Only if that is not enough, everything that may go is summarised."""

    name = "hybrid"

    def choose(self, history: History, policy: CompactionPolicy) -> Changes:
        """The outputs of tools, if removing them saves enough, and all that may go, if that is still needed."""
        pruned, saved = ({}, 0) if policy.keep_tool_outputs else _pruned(history)
        if not pruned or saved < policy.prune_tokens:
            return Summarization().choose(history, policy)
        if history.total_tokens - saved <= policy.target_tokens:
            return Changes(rewrite=pruned, summarize=False)
        return Changes(remove=Summarization().choose(history, policy).remove, rewrite=pruned)


STRATEGIES: Mapping[str, Strategy] = {each.name: each for each in (Summarization(), Hybrid())}


def find(policy: CompactionPolicy, own: Strategy | None) -> Strategy:
    """The caller's own strategy, or else the one that the policy names.

    Raises:
        InvalidInput: there is none by that name.
    """
    if own is not None:
        if not isinstance(getattr(own, "name", None), str) or not callable(getattr(own, "choose", None)):
            raise InvalidInput("a strategy has a name and a method choose(history, policy)")
        structs.replace(policy, strategy=own.name)  # which refuses a name that cannot be stored
        return own
    if policy.strategy not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise InvalidInput(
            f"there is no strategy {policy.strategy!r}; there are {known}, and one of your own is given as strategy="
        )
    return STRATEGIES[policy.strategy]


def checked(changes: Changes, history: History, limits: Limits) -> Changes:
    """What a strategy chose, with its new contents as they are read once they are stored.

    Raises:
        InvalidInput: a message is not there or is protected, a call would be separated from its result, or a new content is not
            what an append takes.
        LimitExceeded: a new content is too large.
    """
    if not isinstance(changes, Changes):
        raise InvalidInput(f"a strategy must answer with Changes, not {type(changes).__name__}")
    if not isinstance(changes.remove, Collection) or isinstance(changes.remove, str):
        raise InvalidInput("the strategy must say what to remove as a list of ids")
    if not isinstance(changes.rewrite, Mapping):
        raise InvalidInput("the strategy must say what to rewrite as new contents by the ids of their messages")
    by_id = {message.id: message for message in history.messages}
    for each in {*changes.remove, *changes.rewrite} - by_id.keys():
        raise InvalidInput(f"the strategy chose {each!r}, which is not a message of this history")
    for each in changes.remove:
        if each in history.kept:
            raise InvalidInput(f"the strategy would remove {each}, which stays: {history.kept[each]}")
    staying = by_id.keys() - set(changes.remove)
    for each in history.pairs.bound_to(staying):
        raise InvalidInput(f"the strategy would remove {each} and leave the other half of a tool call")
    for each in changes.rewrite:
        if not history.may_rewrite(each):
            raise InvalidInput(f"the strategy would rewrite {each}, which is protected: {history.kept[each]}")
    new = {each: _rewritten(by_id[each], content, limits) for each, content in changes.rewrite.items()}
    return structs.replace(changes, rewrite=new)


def _rewritten(message: Message, content: Any, limits: Limits) -> Any:
    """A new content for a message, checked as that of an append."""
    try:
        found = text.load(stored_content(content, message.kind, limits))
    except InvalidInput as error:
        raise type(error)(f"the strategy would rewrite {message.id}, but {error}") from None
    new = structs.replace(message, content=found)
    if (calls_in(new), results_in(new)) != (calls_in(message), results_in(message)):
        raise InvalidInput(f"the strategy would rewrite {message.id} and lose a tool call or its result")
    return found


def _pruned(history: History) -> tuple[dict[str, Any], int]:
    """New contents without the outputs of tools, where that is shorter, and how many tokens they save."""
    found: dict[str, Any] = {}
    saved = 0
    for message in history.rewritable:
        if results_in(message) and any(map(_has_output, message.content)):
            content = [{**block, "content": PRUNED} if _has_output(block) else block for block in message.content]
            less = history.tokens[message.id] - history.count(content)
            if less > 0:
                found[message.id] = content
                saved += less
    return found, saved


def _has_output(block: Any) -> bool:
    """Whether a block holds the output of a tool that is longer than what would stand in its place. The results of tools that
    a provider runs itself have a form of their own, and stay."""
    if not isinstance(block, Mapping) or block.get("type") != "tool_result" or "content" not in block:
        return False
    return text.size(text.dump(block["content"], depth=text.MAX_DEPTH)) > len(PRUNED) + 2
