"""Compaction plans: what a compaction would remove and rewrite, computed before anything is changed.

A plan is made from one read of the session and contains a *fingerprint* of everything it depends on: the branch, the session's
view, the compactions so far, and every byte of the messages it covers. The commit compares the fingerprint while it holds the
session's lock, so a plan is executed exactly as it was made or not at all.
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
from .strategies import CompactionChanges, CompactionHistory, Reason, Strategy, check_changes

_FIELDS = len(Message.__struct_fields__)
_ID, _KIND, _TOKENS = (Message.__struct_fields__.index(name) for name in ("id", "kind", "token_count"))
_compared = itemgetter(
    _FIELDS,  # the position in the log
    *(
        index
        for index, name in enumerate(Message.__struct_fields__)
        if name not in ("session_id", "seq", "created_at", "updated_at")
    ),
)
_entry = itemgetter(*map(Message.__struct_fields__.index, LogEntry.__struct_fields__))
_FINGERPRINT_BYTES = 20


class ProtectedMessage(Struct, frozen=True):
    """A message that the compaction leaves unchanged, and the reason."""

    message_id: Id
    seq: int
    why: Reason


class RewrittenMessage(Struct, frozen=True):
    """A message that gets another content. ``tokens`` counts the new content."""

    message_id: Id
    seq: int
    content: Any
    tokens: int


class CompactionPlan(Struct, frozen=True, kw_only=True):
    """A planned compaction. ``compact(plan=...)`` executes exactly this plan, or raises ``Conflict``."""

    session_id: Id
    policy: CompactionPolicy
    strategy: str
    is_due: bool
    """Whether the session has reached the trigger."""
    shrinks: bool
    """Whether the session would have fewer tokens afterwards; if not, ``compact`` raises ``NothingToCompact``."""
    needs_summary: bool
    """Whether messages are removed that a summary must replace."""
    tokens_before: int
    tokens_after: int
    """Tokens afterwards without the summary, which adds at most ``policy.summary_tokens``."""
    covered_tokens: int
    """Tokens of the messages that would be removed or rewritten."""
    estimated: int
    """Number of messages that were appended without a token count and are counted by the token counter."""
    protected: list[ProtectedMessage]
    removed: list[Id]
    rewritten: list[RewrittenMessage]
    to_summarize: list[Message]
    """The input of ``summarize``: the removed messages in their order, without the tool outputs that were pruned."""
    last_seq: int
    """The last message that the plan knows of; later messages stay, after the summary."""
    fingerprint: str

    @property
    def saved_tokens(self) -> int:
        """Tokens that the compaction saves before the summary is added."""
        return self.tokens_before - self.tokens_after


class SessionRows:
    """A session as read at one moment: its head, the counts of its compactions, and the rows of the messages it shows."""

    def __init__(self, head: BranchHead, counts: Row, rows: Sequence[Row]) -> None:
        self.head, self.rows = head, rows
        self.compactions = tuple(int(count) for count in counts)

    def rows_of(self, ids: Iterable[str]) -> list[Row]:
        """Return the rows of the messages with these ids, in the order of the log."""
        id_set = set(ids)
        return [row for row in self.rows if row[_ID] in id_set]

    def fingerprint(self, covered: Sequence[Row]) -> str:
        """Return a digest of everything that a compaction of these rows depends on."""
        state = [self.head.branch, views.dump(self.head.view), self.compactions]
        encoded = msgspec.msgpack.encode([state, list(map(_compared, covered))])
        return digest_of(encoded, _FINGERPRINT_BYTES).hex()

    def messages(self, connection: Connection) -> list[Message]:
        """Return all rows as messages."""
        return messages_of(self.rows, connection)


position_of: Callable[[Row], int] = itemgetter(_FIELDS)
"""Return the position in the log of a row."""
id_of: Callable[[Row], str] = itemgetter(_ID)
"""Return the message id of a row."""
created_at_of: Callable[[Row], Any] = itemgetter(Message.__struct_fields__.index("created_at"))
"""Return ``created_at`` of a row in the driver's type."""
kind_of: Callable[[Row], str] = itemgetter(_KIND)
"""Return the message kind of a row."""
stored_tokens_of: Callable[[Row], int] = itemgetter(_TOKENS)
"""Return the stored token count of a row; 0 if the message was appended without one."""


def entry_of(row: Row, **changes: Any) -> LogEntry:
    """Convert a row to an entry, with some of its columns changed."""
    return structs.replace(LogEntry(*_entry(row)), **changes)


def messages_of(rows: Sequence[Row], connection: Connection) -> list[Message]:
    """Convert rows to messages."""
    return mapper(Message, connection.dialect)([row[:_FIELDS] for row in rows])


async def read_session_rows(
    connection: Connection, queries: Queries, params: Mapping[str, Any], head: BranchHead, limits: Limits
) -> SessionRows:
    """Read all messages that a session shows.

    Raises:
        LimitExceeded: the session has more than ``compaction_rows`` messages.
    """
    counts = await queries.counts.one(connection, params)
    assert counts is not None
    maximum = limits.compaction_rows
    ranges = msgspec.json.encode(head.view).decode()
    rows = await queries.span.all(connection, {**params, "ranges": ranges, "limit": maximum + 1})
    if len(rows) > maximum:
        raise LimitExceeded(
            f"session {params['session_id']} has more than compaction_rows = {maximum:,} messages",
            limit="compaction_rows",
            maximum=maximum,
        )
    return SessionRows(head, counts, sorted(rows, key=lambda row: row[_FIELDS] & views.LAST))


def check_plan(plan: CompactionPlan) -> None:
    """Check that a plan is one that ``plan()`` can have returned.

    Raises:
        InvalidInput: it is not a plan, or a field has another type.
    """
    if not isinstance(plan, CompactionPlan) or not isinstance(plan.policy, CompactionPolicy):
        raise InvalidInput(f"plan must be a CompactionPlan returned by plan(), not {type(plan).__name__}", field="plan")
    try:
        # The messages to summarise are not used by the commit; the rest is small.
        converted = msgspec.convert(msgspec.to_builtins(structs.replace(plan, to_summarize=[])), CompactionPlan)
        for id in (converted.session_id, *converted.removed, *(rewrite.message_id for rewrite in converted.rewritten)):
            parse_id(id)
    except (msgspec.ValidationError, TypeError, ValueError, InvalidInput) as error:
        raise InvalidInput(f"plan must be a CompactionPlan returned by plan(): {error}", field="plan") from None


def make_plan(
    session_rows: SessionRows,
    messages: Sequence[Message],
    session_id: str,
    policy: CompactionPolicy,
    strategy: Strategy,
    count: TokenCounter,
    limits: Limits,
) -> CompactionPlan:
    """Make the plan of a strategy for a session under a policy.

    Raises:
        InvalidInput: the strategy chose a protected message, or a new content that cannot be stored.
    """
    history = CompactionHistory(messages, policy, count)
    changes = check_changes(strategy.choose(history, policy), history, limits)
    removed, rewritten = _split_changes(changes, history)
    covered = {*removed, *(rewrite.message_id for rewrite in rewritten)}
    covered_tokens = sum(history.tokens[rewrite] for rewrite in covered)
    tokens_after = history.total_tokens - covered_tokens + sum(rewrite.tokens for rewrite in rewritten)
    needs_summary = bool(removed) and changes.summarize
    return CompactionPlan(
        session_id=session_id,
        policy=policy,
        strategy=strategy.name,
        is_due=history.total_tokens >= policy.due_tokens,
        shrinks=tokens_after + needs_summary < history.total_tokens,
        needs_summary=needs_summary,
        tokens_before=history.total_tokens,
        tokens_after=tokens_after,
        covered_tokens=covered_tokens,
        estimated=sum(not message.token_count for message in messages),
        protected=_protected_messages(history, covered),
        removed=list(removed),
        rewritten=rewritten,
        to_summarize=_messages_to_summarize(history, changes, removed) if needs_summary else [],
        last_seq=session_rows.head.last_seq,
        fingerprint=session_rows.fingerprint(session_rows.rows_of(covered)),
    )


def _split_changes(changes: CompactionChanges, history: CompactionHistory) -> tuple[list[str], list[RewrittenMessage]]:
    """Return the removed ids and the rewritten messages in the order of the log. A removed message is not rewritten."""
    removed_ids = set(changes.remove)
    removed = [message.id for message in history.messages if message.id in removed_ids]
    rewritten = [
        RewrittenMessage(
            message.id, message.seq, changes.rewrite[message.id], history.count(changes.rewrite[message.id])
        )
        for message in history.messages
        if message.id in changes.rewrite and message.id not in removed_ids
    ]
    return removed, rewritten


def _protected_messages(history: CompactionHistory, covered: set[str]) -> list[ProtectedMessage]:
    return [
        ProtectedMessage(message.id, message.seq, history.kept[message.id])
        for message in history.messages
        if message.id in history.kept and message.id not in covered
    ]


def _messages_to_summarize(
    history: CompactionHistory, changes: CompactionChanges, removed: Sequence[str]
) -> list[Message]:
    removed_ids = set(removed)
    return [
        structs.replace(message, content=changes.rewrite[message.id]) if message.id in changes.rewrite else message
        for message in history.messages
        if message.id in removed_ids
    ]
