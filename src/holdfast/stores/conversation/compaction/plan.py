"""What a compaction would do, worked out before anything is touched.

A plan is made from one look at the session and carries a *fingerprint* of all it relies on: the branch, what the session shows
of its log, the compactions so far, and every byte of the messages it covers. Whoever carries it out compares the fingerprint
while holding the session, so that a plan is done exactly as it was made or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Struct, structs

from ....core.objects import digest_of
from ....core.queries import Queries
from ....core.rows import mapper
from ....engines.protocol import Connection, Row
from ....errors import InvalidInput, LimitExceeded
from ....ids import Id
from ....ids import parse as parse_id
from ....limits import Limits
from .. import views
from ..branches import BranchHead
from ..message_log import LogEntry, Message
from ..tokens import TokenCounter
from .policy import CompactionPolicy
from .strategies import Changes, History, Reason, Strategy, checked

_FIELDS = len(Message.__struct_fields__)
_ID, _KIND, _TOKENS = (Message.__struct_fields__.index(name) for name in ("id", "kind", "token_count"))
_compared = itemgetter(
    _FIELDS,  # its place
    *(
        place
        for place, name in enumerate(Message.__struct_fields__)
        if name not in ("session_id", "seq", "created_at", "updated_at")
    ),
)
_entry = itemgetter(*map(Message.__struct_fields__.index, LogEntry.__struct_fields__))
_FINGERPRINT_BYTES = 20


class Protected(Struct, frozen=True):
    """A message that stays as it is, and why."""

    message_id: Id
    seq: int
    why: Reason


class Rewrite(Struct, frozen=True):
    """A message that stays with another content. ``tokens`` is what it has then."""

    message_id: Id
    seq: int
    content: Any
    tokens: int


class Plan(Struct, frozen=True, kw_only=True):
    """What a compaction would do. It changes nothing; ``compact(plan=...)`` does exactly this, or raises ``Conflict``."""

    session_id: Id
    policy: CompactionPolicy
    strategy: str
    is_due: bool
    """Whether the session has reached the trigger."""
    shrinks: bool
    """Whether it would have fewer tokens afterwards; if not, the compaction is refused."""
    needs_summary: bool
    """Whether something is removed that a summary has to stand for."""
    tokens_before: int
    tokens_after: int
    """Without the summary, which adds at most ``policy.summary_tokens``."""
    covered_tokens: int
    """Of the messages that would be removed or rewritten."""
    estimated: int
    """How many messages came without a token count, so that theirs is the counter's."""
    protected: list[Protected]
    removed: list[Id]
    rewritten: list[Rewrite]
    to_summarize: list[Message]
    """What a summariser is given: the removed messages in their order, without the tool outputs that were pruned."""
    last_seq: int
    """The last message it knows of; whatever comes later stays, after the summary."""
    fingerprint: str

    @property
    def saved_tokens(self) -> int:
        """What the compaction saves, if nothing has to be added."""
        return self.tokens_before - self.tokens_after


class Snapshot:
    """A session at one moment: what it shows, the compactions there were, and the rows of its messages in their order."""

    def __init__(self, head: BranchHead, counts: Row, rows: Sequence[Row]) -> None:
        self.head, self.rows = head, rows
        self.compactions = tuple(int(count) for count in counts)

    def rows_of(self, ids: Iterable[str]) -> list[Row]:
        """The rows of some messages, in their order."""
        wanted = set(ids)
        return [row for row in self.rows if row[_ID] in wanted]

    def fingerprint(self, covered: Sequence[Row]) -> str:
        """Of everything a compaction of these rows relies on."""
        state = [self.head.branch, views.dump(self.head.view), self.compactions]
        encoded = msgspec.msgpack.encode([state, list(map(_compared, covered))])
        return digest_of(encoded, _FINGERPRINT_BYTES).hex()

    def messages(self, connection: Connection) -> list[Message]:
        """The messages of the rows."""
        return messages_of(self.rows, connection)


place_of: Callable[[Row], int] = itemgetter(_FIELDS)
"""Where a row of a snapshot stands in the log."""
id_of: Callable[[Row], str] = itemgetter(_ID)
"""The id of the message of a row."""
created_at_of: Callable[[Row], Any] = itemgetter(Message.__struct_fields__.index("created_at"))
"""When the message of a row was created, as the database has it."""
kind_of: Callable[[Row], str] = itemgetter(_KIND)
"""The kind of the message of a row."""
given_tokens: Callable[[Row], int] = itemgetter(_TOKENS)
"""The token count that is stored with a row."""


def entry_of(row: Row, **changes: Any) -> LogEntry:
    """A row of a snapshot as an entry, with some of its columns changed."""
    return structs.replace(LogEntry(*_entry(row)), **changes)


def messages_of(rows: Sequence[Row], connection: Connection) -> list[Message]:
    """The messages of some rows of a snapshot."""
    return mapper(Message, connection.dialect)([row[:_FIELDS] for row in rows])


async def take_snapshot(
    connection: Connection, queries: Queries, params: Mapping[str, Any], head: BranchHead, limits: Limits
) -> Snapshot:
    """What a session shows, every message of it.

    Raises:
        LimitExceeded: it has more than ``compaction_rows`` messages.
    """
    counts = await queries.counts.one(connection, params)
    assert counts is not None
    most = limits.compaction_rows
    ranges = msgspec.json.encode(head.view).decode()
    rows = await queries.span.all(connection, {**params, "ranges": ranges, "limit": most + 1})
    if len(rows) > most:
        raise LimitExceeded(f"the session has more messages than the limit compaction_rows = {most:,}")
    return Snapshot(head, counts, sorted(rows, key=lambda row: row[_FIELDS] & views.LAST))


def check_plan(plan: Plan) -> None:
    """Refuse what no ``plan`` can have returned.

    Raises:
        InvalidInput: it is not a plan, or something in it is not what it should be.
    """
    if not isinstance(plan, Plan) or not isinstance(plan.policy, CompactionPolicy):
        raise InvalidInput(f"plan must be what plan() returned, not {type(plan).__name__}")
    try:
        # The messages to summarise are for the caller alone; the rest is small.
        found = msgspec.convert(msgspec.to_builtins(structs.replace(plan, to_summarize=[])), Plan)
        for each in (found.session_id, *found.removed, *(rewrite.message_id for rewrite in found.rewritten)):
            parse_id(each)
    except (msgspec.ValidationError, TypeError, ValueError, InvalidInput) as error:
        raise InvalidInput(f"plan must be what plan() returned: {error}") from None


def make_plan(
    snapshot: Snapshot,
    messages: Sequence[Message],
    session_id: str,
    policy: CompactionPolicy,
    strategy: Strategy,
    count: TokenCounter,
    limits: Limits,
) -> Plan:
    """What a strategy would do to a session under a policy.

    Raises:
        InvalidInput: the strategy chose something it may not touch, or a content that cannot be stored.
    """
    history = History(messages, policy, count)
    changes = checked(strategy.choose(history, policy), history, limits)
    removed, rewritten = _sorted_out(changes, history)
    covered = {*removed, *(each.message_id for each in rewritten)}
    covered_tokens = sum(history.tokens[each] for each in covered)
    after = history.total_tokens - covered_tokens + sum(each.tokens for each in rewritten)
    needs_summary = bool(removed) and changes.summarize
    return Plan(
        session_id=session_id,
        policy=policy,
        strategy=strategy.name,
        is_due=history.total_tokens >= policy.due_tokens,
        shrinks=after + needs_summary < history.total_tokens,
        needs_summary=needs_summary,
        tokens_before=history.total_tokens,
        tokens_after=after,
        covered_tokens=covered_tokens,
        estimated=sum(not message.token_count for message in messages),
        protected=_protected(history, covered),
        removed=list(removed),
        rewritten=rewritten,
        to_summarize=_as_rewritten(history, changes, removed) if needs_summary else [],
        last_seq=snapshot.head.last_seq,
        fingerprint=snapshot.fingerprint(snapshot.rows_of(covered)),
    )


def _sorted_out(changes: Changes, history: History) -> tuple[list[str], list[Rewrite]]:
    """What is really removed and really rewritten, in the order of the log."""
    going = set(changes.remove)
    removed = [message.id for message in history.messages if message.id in going]
    rewritten = [
        Rewrite(message.id, message.seq, changes.rewrite[message.id], history.count(changes.rewrite[message.id]))
        for message in history.messages
        if message.id in changes.rewrite and message.id not in going
    ]
    return removed, rewritten


def _protected(history: History, covered: set[str]) -> list[Protected]:
    return [
        Protected(message.id, message.seq, history.kept[message.id])
        for message in history.messages
        if message.id in history.kept and message.id not in covered
    ]


def _as_rewritten(history: History, changes: Changes, removed: Sequence[str]) -> list[Message]:
    going = set(removed)
    return [
        structs.replace(message, content=changes.rewrite[message.id]) if message.id in changes.rewrite else message
        for message in history.messages
        if message.id in going
    ]
