"""What to send to the model: as much of a session as fits, chosen so that every model accepts it.

Always there: system messages at the beginning, what is preserved, and summaries. The rest of the room goes to the newest
messages, as many as fit without a gap. Calls of tools and their results stay together: a result whose call is left out is
left out too, and a call that has no result, because the agent died before it came, is answered with a result that says so.
Nothing is stored, and the log is read from its end and no further than the answer needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Any

from msgspec import Struct, structs

from ...core.queries import Queries
from ...core.rows import mapper
from ...core.scope import Scope
from ...engines.protocol import Connection, Row
from ...errors import InvalidInput, LimitExceeded, NotFound, Unavailable
from . import views
from .log_reading import read_log
from .message_log import Message, Role
from .tokens import TokenCounter, tokens_of
from .tool_pairs import calls_in, results_in

FIRST_PAGE = 64
"""Messages read from the end at first; each page after that is twice as long."""
LEADING_MOST = 8
"""System messages at the beginning of a session that are looked for."""
TRIES = 16
"""How often everything is read anew because the session was switched or compacted meanwhile."""
UNFINISHED = "[the call was interrupted: there is no result]"
LEFT_OUT = "[the result is left out]"

queries = Queries(__package__, "context.sql", Message)
_seq = attrgetter("seq")


class ContextMessage(Struct, frozen=True):
    """One message for the model: a stored one, or a result that stands in for one that never came."""

    role: Role | None
    content: Any
    token_count: int
    message_id: str | None
    """The stored message it is, or ``None`` for one that was made up."""
    seq: int | None
    kind: str = "message"
    is_summary: bool = False
    is_preserved: bool = False


class Context(Struct, frozen=True):
    """What to send to the model, in order, and how many tokens that is."""

    messages: list[ContextMessage]
    token_count: int


class Budget:
    """How many tokens there are, and how they are counted.

    Raises:
        InvalidInput: ``max_tokens`` is not a number of tokens.
    """

    def __init__(self, max_tokens: int, count: TokenCounter) -> None:
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
            raise InvalidInput(f"max_tokens must be a whole number from 1 on, not {max_tokens!r}")
        self.most, self.count = max_tokens, count

    def of(self, messages: Iterable[Message]) -> int:
        """The tokens of some messages."""
        return sum(tokens_of(message, self.count) for message in messages)


async def build_context(connection: Connection, scope: Scope, params: Mapping[str, Any], budget: Budget) -> Context:
    """What a live session has to say within a budget.

    Raises:
        NotFound: there is no such live session.
        LimitExceeded: what must be there has more tokens than the budget.
    """
    state = await _state(connection, params)
    for _ in range(TRIES):
        pinned = await _pinned(connection, scope, params, state)
        recent = await _recent(connection, params, budget, pinned)
        used, state = state, await _state(connection, params)
        if used == state:
            return _assembled(pinned, recent, budget)
    raise Unavailable(f"session {params['session_id']} is being changed all the time; nothing was read, try again")


async def _state(connection: Connection, params: Mapping[str, Any]) -> Row:
    row = await queries.state.one(connection, params)
    if row is None:
        raise NotFound(f"there is no session {params['session_id']} here")
    return row


async def _pinned(connection: Connection, scope: Scope, params: Mapping[str, Any], state: Row) -> dict[str, Message]:
    """What is there in any case, by id."""
    most = scope.limits.list_rows
    rows = await queries.pinned.all(connection, {**params, "limit": most + 1})
    if len(rows) > most:
        raise LimitExceeded(f"the session has more preserved messages and summaries than list_rows = {most:,}")
    view = views.load(state[0])
    shown = [row[:-1] for row in rows if views.shows(view, row[-1])]
    found = mapper(Message, connection.dialect)(shown)
    return {message.id: message for message in [*found, *await _leading(connection, params)]}


async def _leading(connection: Connection, params: Mapping[str, Any]) -> list[Message]:
    """The system messages a session begins with: mostly none or one, so it is one that is read first."""
    found: list[Message] = []
    for limit in (1, LEADING_MOST):
        rows = await read_log(connection, {**params, "after": 0, "before": views.BLOCK, "limit": limit})
        found = list(takewhile(_is_system, mapper(Message, connection.dialect)(rows)))
        if len(found) < limit:
            break
    return found


def _is_system(message: Message) -> bool:
    return message.role == "system"


async def _recent(
    connection: Connection, params: Mapping[str, Any], budget: Budget, pinned: Mapping[str, Message]
) -> list[Message]:
    """The newest messages that fit beside what is pinned, oldest first."""
    left = budget.most - budget.of(pinned.values())
    if left < 0:
        needed = budget.most - left
        raise LimitExceeded(f"system, preserved and summary messages alone have {needed:,} tokens; max_tokens is less")
    found: list[Message] = []
    before, page = views.BLOCK, FIRST_PAGE
    while True:
        asked = {**params, "after": 0, "before": before, "limit": page}
        rows = await read_log(connection, asked, newest_first=True)
        for message in mapper(Message, connection.dialect)(rows):
            left -= 0 if message.id in pinned else tokens_of(message, budget.count)
            if left < 0:
                return found[::-1]
            found.append(message)
        if not left or len(rows) < page:
            return found[::-1]
        before, page = found[-1].seq, page * 2


def _assembled(pinned: Mapping[str, Message], recent: Sequence[Message], budget: Budget) -> Context:
    while True:
        chosen = {**pinned, **{message.id: message for message in recent}}
        ordered = sorted(chosen.values(), key=_seq)
        if not any(map(_has_tools, ordered)):
            plain = [_as_it_is(message, message.content, budget) for message in ordered]
            return Context(plain, sum(message.token_count for message in plain))
        reasons = {call: UNFINISHED for message in recent for call in calls_in(message)}
        closed = _closed(_without_orphans(ordered, budget), reasons, budget)
        context = Context(closed, sum(message.token_count for message in closed))
        # Results that were made up take room as well.
        if context.token_count <= budget.most or not recent:
            return context
        recent = recent[1:]


def _without_orphans(messages: Sequence[Message], budget: Budget) -> list[ContextMessage]:
    """The messages, without results whose calls are not among them."""
    called: set[str] = set()
    kept: list[ContextMessage] = []
    for message in messages:
        orphans = results_in(message) - called
        called |= calls_in(message)
        content = [each for each in message.content if not _answers(each, orphans)] if orphans else message.content
        if content or not orphans:
            kept.append(_as_it_is(message, content, budget))
    return kept


def _closed(messages: Sequence[ContextMessage], reasons: Mapping[str, str], budget: Budget) -> list[ContextMessage]:
    """The messages, with a result for every call: in the message that holds its neighbours' results, or in one of its own."""
    answered = {block["tool_use_id"] for message in messages for block in _results(message)}
    closed: list[ContextMessage] = []
    missing: list[dict[str, Any]] = []
    for message in messages:
        if missing and _results(message):
            more = message.token_count + budget.count(missing)
            closed.append(structs.replace(message, content=[*missing, *message.content], token_count=more))
        else:
            closed += [*_made_up(missing, budget), message]
        missing = [
            _stand_in(block["id"], reasons.get(block["id"], LEFT_OUT))
            for block in _calls(message)
            if block["id"] not in answered
        ]
    return [*closed, *_made_up(missing, budget)]


def _made_up(results: list[dict[str, Any]], budget: Budget) -> list[ContextMessage]:
    return [ContextMessage("user", results, budget.count(results), None, None)] if results else []


def _stand_in(call: str, reason: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": reason, "is_error": True}


def _as_it_is(message: Message, content: Any, budget: Budget) -> ContextMessage:
    tokens = tokens_of(message, budget.count) if content is message.content else budget.count(content)
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


def _has_tools(message: Message) -> bool:
    if message.kind != "message":
        return False
    return any("tool_use_id" in block or block["type"].endswith("tool_use") for block in message.content)


def _answers(block: Any, calls: set[str]) -> bool:
    return isinstance(block, Mapping) and block.get("tool_use_id") in calls


def _results(message: ContextMessage) -> list[Mapping[str, Any]]:
    return [block for block in _blocks(message) if isinstance(block.get("tool_use_id"), str)]


def _calls(message: ContextMessage) -> list[Mapping[str, Any]]:
    return [
        block
        for block in _blocks(message)
        if isinstance(block.get("id"), str) and str(block.get("type")).endswith("tool_use")
    ]


def _blocks(message: ContextMessage) -> list[Mapping[str, Any]]:
    if message.kind != "message" or not isinstance(message.content, list):
        return []
    return [block for block in message.content if isinstance(block, Mapping)]
