"""What to send to the model: as much of a session as fits, chosen so that every model accepts it.

Always there: system messages, what is preserved, the latest summary, and the other halves of tool calls in any of these. The
rest of the room goes to the newest messages, as many as fit without a gap. Calls of tools and their results stay together: a
result whose call is left out is left out too, and a call that has no result, because the agent died before it came, is
answered with a result that says so. Nothing is stored, and the log is read from its end and no further than the answer
needs: mostly by one statement.
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
"""Messages read from the end at first; if there is room for more, what follows is as long as the room seems to need."""
MIN_PAGE = 16
MAX_PAGE = 1_000
TRIES = 16
"""How often everything is read anew because the session was switched or compacted, or lost messages, meanwhile."""
UNFINISHED = "[the call was interrupted: there is no result]"

queries = Queries(__package__, "context.sql", Message)
_seq = attrgetter("seq")


class ContextMessage(Struct, frozen=True):
    """One message for the model: a stored one, or results that stand in for those that never came."""

    role: Role | None
    content: Any
    token_count: int
    message_id: str | None
    """The stored message it is, or ``None`` for one that was made up."""
    seq: int | None
    kind: str = "message"
    is_summary: bool = False
    is_preserved: bool = False
    made_up: tuple[str, ...] = ()
    """The calls whose results in it were made up; they are stored nowhere."""


class Context(Struct, frozen=True):
    """What to send to the model, in order, and how many tokens that is.

    ``summary`` is what a buffered session said by ``set_summary`` about what came before, or empty; its tokens are counted
    too. ``left_out`` is how many of the session's messages are not there.
    """

    messages: list[ContextMessage]
    token_count: int
    summary: str = ""
    left_out: int = 0


class Budget:
    """How many tokens there are, and how they are counted.

    Raises:
        InvalidInput: ``max_tokens`` is not a number of tokens.
    """

    def __init__(self, max_tokens: int, count: TokenCounter) -> None:
        self.most, self.count = whole_number(max_tokens, "max_tokens", least=1), count


class Found:
    """What has been read of a session so far."""

    def __init__(self, view: str | None, next_place: int, message_count: int, compactions: int, summary: str) -> None:
        self.state = (view, compactions, next_place - message_count)
        self.view, self.message_count, self.summary = view, message_count, summary
        self.before = views.seq_of(next_place)
        """What is appended from now on has this number or a higher one, and is not looked at: it is not counted either."""
        self.around = Surroundings(view, self.before)
        self.pinned: dict[str, Message] = {}
        self.recent: list[Message] = []
        """The newest messages, newest first."""
        self.in_one_moment = True


async def build_context(connection: Connection, scope: Scope, params: Mapping[str, Any], budget: Budget) -> Context:
    """What a live session has to say within a budget.

    Raises:
        NotFound: there is no such live session.
        LimitExceeded: what must be there has more tokens than the budget.
    """
    for _ in range(TRIES):
        found = await _start(connection, scope, params)
        if not await _add_partners(connection, params, found):
            continue
        tokens = await _fill(connection, params, found, budget)
        if found.in_one_moment or await _state(connection, params) == found.state:
            return _assembled(found, tokens, budget)
    raise Unavailable(f"session {params['session_id']} is being changed all the time; nothing was read, try again")


async def _start(connection: Connection, scope: Scope, params: Mapping[str, Any]) -> Found:
    """What is there in any case, and the first page from the end."""
    most = scope.limits.page_rows
    asked = {**params, "before": views.BLOCK, "pinned": most + 1, "limit": FIRST_PAGE}
    rows = await queries.start.all(connection, asked)
    session = next((row for row in rows if row[5] is None), None)
    if session is None:
        raise NotFound(f"there is no session {params['session_id']} here")
    view, next_place, message_count, compactions, summary = session[:5]
    found = Found(view, next_place, message_count, compactions, text.unescape(summary))
    messages = mapper(Message, connection.dialect)
    if view is None:
        pinned = [row[6:] for row in rows if row[5] == 0]
        found.recent = messages([row[6:] for row in rows if row[5]])
    else:
        found.in_one_moment = False
        asked["before"] = found.before
        ranges = msgspec.json.encode([*views.within(views.load(view), 0, found.before)]).decode()
        pinned = [*await queries.pinned.all(connection, {**asked, "ranges": ranges, "mask": views.LAST})]
        found.recent = await read_log(connection, {**asked, "after": 0}, newest_first=True)
    found.pinned = {message.id: message for message in messages(pinned)}
    if len(found.pinned) > most:
        raise LimitExceeded(f"the session has more than page_rows = {most:,} system and preserved messages")
    return found


async def _add_partners(connection: Connection, params: Mapping[str, Any], found: Found) -> bool:
    """What belongs to what is there in any case; whether the session still showed what it did."""
    if not any(map(has_tools, found.pinned.values())):
        return True
    found.around.add_newest(found.recent)
    still = await found.around.complete(connection, params, found.pinned)
    found.in_one_moment = found.in_one_moment and not found.around.looked
    return still


async def _state(connection: Connection, params: Mapping[str, Any]) -> tuple[Any, ...] | None:
    return await queries.state.one(connection, params)


async def _fill(connection: Connection, params: Mapping[str, Any], found: Found, budget: Budget) -> dict[str, int]:
    """Read on as long as there is room beside what is pinned, and drop what does not fit; the tokens of each message, by id."""
    tokens = {id: tokens_of(message, budget.count) for id, message in found.pinned.items()}
    room = left = budget.most - sum(tokens.values()) - _summary_tokens(found.summary, budget)
    if left < 0:
        raise _too_much(budget.most - left, budget)
    kept, count = 0, budget.count
    while True:
        for message in found.recent[kept:]:
            if message.id not in tokens:
                size = message.token_count or count(message.content)
                if size > left or not left:
                    del found.recent[kept:]
                    return tokens
                tokens[message.id] = size
                left -= size
            kept += 1
        if kept >= found.message_count or not left:
            return tokens
        mean = max(1, (room - left) // max(1, kept))
        if not await _read_on(connection, params, found, left // mean + MIN_PAGE):
            return tokens


async def _read_on(connection: Connection, params: Mapping[str, Any], found: Found, rows: int) -> bool:
    """About as many messages more as there is room for; whether there are any."""
    found.in_one_moment = False
    before = found.recent[-1].seq if found.recent else found.before
    asked = {**params, "after": 0, "before": before, "limit": min(rows, MAX_PAGE)}
    more = await read_log(connection, asked, newest_first=True)
    found.recent += more
    return bool(more)


def _too_much(needed: int, budget: Budget) -> LimitExceeded:
    return LimitExceeded(
        f"system, preserved and summary messages alone have {needed:,} tokens, more than max_tokens = {budget.most:,}"
    )


def _summary_tokens(summary: str, budget: Budget) -> int:
    return budget.count([{"type": "text", "text": summary}]) if summary else 0


def _assembled(found: Found, tokens: Mapping[str, int], budget: Budget) -> Context:
    recent, summary = found.recent, _summary_tokens(found.summary, budget)
    ordered = _ordered(found.pinned, recent)
    if not any(map(has_tools, ordered)):
        messages = [_stored(message, message.content, tokens[message.id]) for message in ordered]
        return Context(messages, sum(tokens.values()) + summary, found.summary, found.message_count - len(messages))
    found.around.add_newest(recent)
    pairs = found.around.pairs()
    while True:
        messages = _closed([*_without_orphans(ordered, pairs, tokens, budget)], pairs, budget)
        total = sum(message.token_count for message in messages) + summary
        # Results that were made up take room as well.
        if total <= budget.most:
            there = sum(message.message_id is not None for message in messages)
            return Context(messages, total, found.summary, found.message_count - there)
        if not recent:
            raise _too_much(total, budget)
        recent = recent[:-1]
        ordered = _ordered(found.pinned, recent)


def _ordered(pinned: Mapping[str, Message], recent: Sequence[Message]) -> Sequence[Message]:
    """Both, oldest first."""
    if not pinned:
        return recent[::-1]
    there = {message.id for message in recent}
    return sorted([*(each for each in pinned.values() if each.id not in there), *recent[::-1]], key=_seq)


def _without_orphans(
    messages: Sequence[Message], pairs: Pairs, tokens: Mapping[str, int], budget: Budget
) -> Iterator[ContextMessage]:
    """The messages, without results whose calls are not among them."""
    there = {message.id for message in messages}
    for message in messages:
        orphans = {tool for tool in results_in(message) if pairs.call_of.get((message.id, tool)) not in there}
        if not orphans:
            yield _stored(message, message.content, tokens[message.id])
            continue
        content = [block for block in message.content if block.get("tool_use_id") not in orphans]
        if content:
            # The whole may have been counted in another way; without something it is not more.
            yield _stored(message, content, min(tokens[message.id], budget.count(content)))


def _closed(messages: Sequence[ContextMessage], pairs: Pairs, budget: Budget) -> list[ContextMessage]:
    """The messages, with a result for every call: in the message that holds its neighbours' results, or in one of its own."""
    answered = {
        (pairs.call_of.get((message.message_id or "", block["tool_use_id"])), block["tool_use_id"])
        for message in messages
        for block in _results(message)
    }
    closed: list[ContextMessage] = []
    missing: list[str] = []
    for message in messages:
        if missing and message.role == "user" and _results(message):
            results = _stand_ins(missing)
            more = message.token_count + budget.count(results)
            content = [*results, *message.content]
            closed.append(structs.replace(message, content=content, token_count=more, made_up=tuple(missing)))
        else:
            closed += [*_made_up(missing, budget), message]
        missing = [block["id"] for block in _calls(message) if (message.message_id, block["id"]) not in answered]
    return [*closed, *_made_up(missing, budget)]


def _made_up(calls: Sequence[str], budget: Budget) -> list[ContextMessage]:
    if not calls:
        return []
    results = _stand_ins(calls)
    return [ContextMessage("user", results, budget.count(results), None, None, made_up=tuple(calls))]


def _stand_ins(calls: Sequence[str]) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": call, "content": UNFINISHED, "is_error": True} for call in calls]


def _stored(message: Message, content: Any, tokens: int) -> ContextMessage:
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
    """The calls that wait for a result of the caller's; those that a provider makes itself are its own business."""
    return [block for block in _blocks(message) if block.get("type") == "tool_use" and isinstance(block.get("id"), str)]


def _blocks(message: ContextMessage) -> list[Mapping[str, Any]]:
    return message.content if message.kind == "message" else []
