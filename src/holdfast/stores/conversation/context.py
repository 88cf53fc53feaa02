"""The context of a model call: as much of a session as fits, chosen so that every model accepts it.

Always included: system messages, preserved messages, the latest summary, and the counterparts of tool calls and results in any of
these. The remaining budget goes to the newest messages, as many as fit without a gap. Tool calls and their results stay together:
a result whose call is left out is left out too, and a call without a result, because the agent stopped before it came, gets
an error result that says so. Nothing is stored. The log is read from its end and no further than needed, mostly with one
statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct, structs

from ...core import text
from ...core.checks import whole_number
from ...core.queries import Queries
from ...core.rows import mapper
from ...core.scope import Scope
from ...engines.protocol import Connection
from ...errors import LimitExceeded, NotFound, Unavailable
from . import views
from .log_reading import read_log
from .message_log import Message, Role
from .tokens import TokenCounter, tokens_of
from .tool_pair_lookup import Surroundings
from .tool_pairs import Pairs, has_tools, results_in

FIRST_PAGE = 50
"""The number of messages read from the end at first. Later pages are as long as the remaining budget seems to need."""
MIN_PAGE = 16
MAX_PAGE = 1_000
TRIES = 16
"""How often the read starts again because the session was switched, compacted or lost messages at the same time."""
UNFINISHED = "[the call was interrupted: there is no result]"

queries = Queries(__package__, "context.sql", Message)
_seq = attrgetter("seq")


class ContextMessage(Struct, frozen=True):
    """One message for the model: a stored one, or results that stand in for missing ones."""

    role: Role | None
    content: Any
    token_count: int
    message_id: str | None
    """The id of the stored message, or ``None`` for a message that is not stored."""
    seq: int | None
    kind: str = "message"
    is_summary: bool = False
    is_preserved: bool = False
    made_up: tuple[str, ...] = ()
    """The calls that got an error result here because they have none; these results are not stored."""


class Context(Struct, frozen=True):
    """The messages to send to the model, in order, and their tokens.

    ``summary`` is the summary of earlier messages that a buffered session set with ``set_summary``, or empty; its tokens are
    included. ``left_out`` is the number of the session's messages that are not in the context.
    """

    messages: list[ContextMessage]
    token_count: int
    summary: str = ""
    left_out: int = 0


class Budget:
    """The number of available tokens, and the function that counts them.

    Raises:
        InvalidInput: ``max_tokens`` is not a positive whole number.
    """

    def __init__(self, max_tokens: int, count: TokenCounter) -> None:
        self.max_tokens, self.count = whole_number(max_tokens, "max_tokens", minimum=1), count


class ContextInput:
    """The part of a session that has been read so far."""

    def __init__(
        self, view: str | None, next_position: int, message_count: int, compactions: int, summary: str
    ) -> None:
        self.state = (view, compactions, next_position - message_count)
        self.view, self.message_count, self.summary = view, message_count, summary
        self.before = views.seq_of(next_position)
        """Messages appended from now on have this ``seq`` or a higher one; they are neither read nor counted."""
        self.around = Surroundings(view, self.before)
        self.pinned: dict[str, Message] = {}
        self.recent: list[Message] = []
        """The newest messages, newest first."""
        self.is_consistent = True
        """Whether everything was read by one statement, or its consistency checked."""


async def build_context(connection: Connection, scope: Scope, params: Mapping[str, Any], budget: Budget) -> Context:
    """Return the context of a live session within a budget.

    Raises:
        NotFound: no live session has this id.
        LimitExceeded: the messages that are always included have more tokens than the budget.
    """
    for _ in range(TRIES):
        source = await _read_start(connection, scope, params)
        if not await _add_partners(connection, params, source):
            continue
        tokens = await _fill(connection, params, source, budget)
        if source.is_consistent or await _read_state(connection, params) == source.state:
            return _assemble(source, tokens, budget)
    raise Unavailable(f"session {params['session_id']} is being changed all the time; nothing was read, try again")


async def _read_start(connection: Connection, scope: Scope, params: Mapping[str, Any]) -> ContextInput:
    """Read the messages that are always included, and the first page from the end."""
    maximum = scope.limits.page_rows
    query_params = {**params, "before": views.BLOCK, "pinned": maximum + 1, "limit": FIRST_PAGE}
    rows = await queries.start.all(connection, query_params)
    session = next((row for row in rows if row[5] is None), None)
    if session is None:
        raise NotFound(f"session {params['session_id']} does not exist", noun="session", key=params["session_id"])
    view, next_position, message_count, compactions, summary = session[:5]
    source = ContextInput(view, next_position, message_count, compactions, text.unescape(summary))
    messages = mapper(Message, connection.dialect)
    if view is None:
        pinned = [row[6:] for row in rows if row[5] == 0]
        source.recent = messages([row[6:] for row in rows if row[5]])
    else:
        source.is_consistent = False
        query_params["before"] = source.before
        ranges = msgspec.json.encode([*views.within(views.load(view), 0, source.before)]).decode()
        pinned = [*await queries.pinned.all(connection, {**query_params, "ranges": ranges, "mask": views.LAST})]
        source.recent = await read_log(connection, {**query_params, "after": 0}, newest_first=True)
    source.pinned = {message.id: message for message in messages(pinned)}
    if len(source.pinned) > maximum:
        raise LimitExceeded(
            f"the session has more than page_rows = {maximum:,} system and preserved messages",
            limit="page_rows",
            maximum=maximum,
        )
    return source


async def _add_partners(connection: Connection, params: Mapping[str, Any], source: ContextInput) -> bool:
    """Add the counterparts of pinned tool calls and results; return whether the session still shows the same view."""
    if not any(map(has_tools, source.pinned.values())):
        return True
    source.around.add_newest(source.recent)
    is_unchanged = await source.around.complete(connection, params, source.pinned)
    source.is_consistent = source.is_consistent and not source.around.looked
    return is_unchanged


async def _read_state(connection: Connection, params: Mapping[str, Any]) -> tuple[Any, ...] | None:
    return await queries.state.one(connection, params)


async def _fill(
    connection: Connection, params: Mapping[str, Any], source: ContextInput, budget: Budget
) -> dict[str, int]:
    """Read on while the budget allows, and drop messages that do not fit; return the tokens of each message, by id."""
    tokens = {id: tokens_of(message, budget.count) for id, message in source.pinned.items()}
    room = left = budget.max_tokens - sum(tokens.values()) - _summary_tokens(source.summary, budget)
    if left < 0:
        raise _over_budget(budget.max_tokens - left, budget)
    kept, count = 0, budget.count
    while True:
        for message in source.recent[kept:]:
            if message.id not in tokens:
                size = message.token_count or count(message.content)
                if size > left or not left:
                    del source.recent[kept:]
                    return tokens
                tokens[message.id] = size
                left -= size
            kept += 1
        if kept >= source.message_count or not left:
            return tokens
        mean = max(1, (room - left) // max(1, kept))
        if not await _read_on(connection, params, source, left // mean + MIN_PAGE):
            return tokens


async def _read_on(connection: Connection, params: Mapping[str, Any], source: ContextInput, rows: int) -> bool:
    """Read about as many further messages as fit; return whether there were any."""
    source.is_consistent = False
    before = source.recent[-1].seq if source.recent else source.before
    query_params = {**params, "after": 0, "before": before, "limit": min(rows, MAX_PAGE)}
    more = await read_log(connection, query_params, newest_first=True)
    source.recent += more
    return bool(more)


def _over_budget(needed: int, budget: Budget) -> LimitExceeded:
    return LimitExceeded(
        f"system, preserved and summary messages alone have {needed:,} tokens, more than max_tokens = {budget.max_tokens:,}",
        field="max_tokens",
        maximum=budget.max_tokens,
    )


def _summary_tokens(summary: str, budget: Budget) -> int:
    return budget.count([{"type": "text", "text": summary}]) if summary else 0


def _assemble(source: ContextInput, tokens: Mapping[str, int], budget: Budget) -> Context:
    recent, summary = source.recent, _summary_tokens(source.summary, budget)
    ordered = _ordered(source.pinned, recent)
    if not any(map(has_tools, ordered)):
        messages = [_to_context_message(message, message.content, tokens[message.id]) for message in ordered]
        return Context(messages, sum(tokens.values()) + summary, source.summary, source.message_count - len(messages))
    source.around.add_newest(recent)
    pairs = source.around.pairs()
    while True:
        messages = _answer_calls([*_without_orphans(ordered, pairs, tokens, budget)], pairs, budget)
        total = sum(message.token_count for message in messages) + summary
        # Results added for interrupted calls count against the budget too.
        if total <= budget.max_tokens:
            included = sum(message.message_id is not None for message in messages)
            return Context(messages, total, source.summary, source.message_count - included)
        if not recent:
            raise _over_budget(total, budget)
        recent = recent[:-1]
        ordered = _ordered(source.pinned, recent)


def _ordered(pinned: Mapping[str, Message], recent: Sequence[Message]) -> Sequence[Message]:
    """Merge both lists, oldest first."""
    if not pinned:
        return recent[::-1]
    recent_ids = {message.id for message in recent}
    return sorted([*(message for message in pinned.values() if message.id not in recent_ids), *recent[::-1]], key=_seq)


def _without_orphans(
    messages: Sequence[Message], pairs: Pairs, tokens: Mapping[str, int], budget: Budget
) -> Iterator[ContextMessage]:
    """Yield the messages, without results whose calls are not among them."""
    ids = {message.id for message in messages}
    for message in messages:
        orphans = {tool for tool in results_in(message) if pairs.call_of.get((message.id, tool)) not in ids}
        if not orphans:
            yield _to_context_message(message, message.content, tokens[message.id])
            continue
        content = [block for block in message.content if block.get("tool_use_id") not in orphans]
        if content:
            # The whole message may have been counted in another way; a part of it has no more tokens than the whole.
            yield _to_context_message(message, content, min(tokens[message.id], budget.count(content)))


def _answer_calls(messages: Sequence[ContextMessage], pairs: Pairs, budget: Budget) -> list[ContextMessage]:
    """Return the messages with a result for every call: in the message with the other results, or in a new message."""
    answered = {
        (pairs.call_of.get((message.message_id or "", block["tool_use_id"])), block["tool_use_id"])
        for message in messages
        for block in _results(message)
    }
    answered_messages: list[ContextMessage] = []
    missing: list[str] = []
    for message in messages:
        if missing and message.role == "user" and _results(message):
            results = _placeholder_results(missing)
            tokens = message.token_count + budget.count(results)
            content = [*results, *message.content]
            answered_messages.append(
                structs.replace(message, content=content, token_count=tokens, made_up=tuple(missing))
            )
        else:
            answered_messages += [*_interrupted_results(missing, budget), message]
        missing = [block["id"] for block in _calls(message) if (message.message_id, block["id"]) not in answered]
    return [*answered_messages, *_interrupted_results(missing, budget)]


def _interrupted_results(calls: Sequence[str], budget: Budget) -> list[ContextMessage]:
    if not calls:
        return []
    results = _placeholder_results(calls)
    return [ContextMessage("user", results, budget.count(results), None, None, made_up=tuple(calls))]


def _placeholder_results(calls: Sequence[str]) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": call, "content": UNFINISHED, "is_error": True} for call in calls]


def _to_context_message(message: Message, content: Any, tokens: int) -> ContextMessage:
    return ContextMessage(
        message.role,
        content,
        tokens,
        message.id,
        message.seq,
        message.kind,
        message.is_summary,
        message.is_preserved,
    )


def _results(message: ContextMessage) -> list[Mapping[str, Any]]:
    return [block for block in _blocks(message) if isinstance(block.get("tool_use_id"), str)]


def _calls(message: ContextMessage) -> list[Mapping[str, Any]]:
    """Return the calls that need a result from the caller; providers answer the calls of their own tools."""
    return [block for block in _blocks(message) if block.get("type") == "tool_use" and isinstance(block.get("id"), str)]


def _blocks(message: ContextMessage) -> list[Mapping[str, Any]]:
    return message.content if message.kind == "message" else []
