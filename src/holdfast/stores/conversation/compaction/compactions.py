"""Compactions: keep a session inside its model's context window, reversibly.

A compaction removes or shortens old messages of a session and inserts a summary in their place. It has three phases::

    plan        read the session's messages; a strategy chooses which go         one read transaction
    summarize   call the caller's function with the messages to summarise        no transaction is open
    commit      archive the originals, remove, rewrite, insert the summary       one write transaction; if a covered
                                                                                 message changed, it raises Conflict

Messages appended during a compaction stay, after the summary. No data is lost: the originals of all removed and rewritten
messages are archived in the same transaction, and ``rollback`` restores them byte for byte.

Messages that are preserved, have the role ``system``, or are among the last messages or the last tokens are protected, and no
tool call is separated from its result (``strategies``). Token counts are those stored with the messages; messages without
one are counted by the token counter (``tokens``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....core import scope as scopes
from ....core import text
from ....core.blocking import Blocking, blocking
from ....core.checks import id_batch, whole_number
from ....core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ....core.store import TenantStore, reads, writes
from ....engines.protocol import Connection
from ....errors import InvalidInput, NotFound, NothingToCompact, OutcomeUnknown
from ....ids import Id
from ....ids import parse as parse_id
from ..branches import find_head
from ..log_reading import view_of
from ..tokens import MAX_TOKENS, counter_of
from . import archive, attachments, recording, rollback, strategies
from .arguments import check_choice, target_of
from .commit import CommitRequest, commit, summary_content
from .events import ArchivedMessage, CompactionEvent, events_of, queries
from .plan import CompactionPlan, make_plan, read_session_rows
from .policy import CompactionPolicy, policy_or_default
from .strategies import Strategy, Summarizer
from .summaries import check_function, summary_of

_MAX_NUMBER = 2**62


class AsyncCompactions(TenantStore):
    """The compactions of one tenant's sessions."""

    @reads
    async def plan(
        self,
        connection: Connection,
        session_id: Id,
        policy: CompactionPolicy | None = None,
        *,
        strategy: Strategy | None = None,
    ) -> CompactionPlan:
        """Plan a compaction: which messages would be removed, rewritten or protected, and why. Nothing is changed.

        Raises:
            NotFound: the session does not exist or is deleted.
            InvalidInput: the strategy does not exist, it chose a protected message, or a new content cannot be stored.
            LimitExceeded: the session has more than ``compaction_rows`` messages.
        """
        return await self._plan(connection, session_id, policy_or_default(policy), strategy)

    async def compact(
        self,
        session_id: Id,
        policy: CompactionPolicy | None = None,
        *,
        summarize: Summarizer | None = None,
        summary: str | None = None,
        strategy: Strategy | None = None,
        plan: CompactionPlan | None = None,
        model: str | None = None,
        id: str | None = None,
    ) -> CompactionEvent:
        """Compact a session now, whether it is due or not, and commit before returning.

        ``summarize`` is called with the messages that the summary must replace, while no transaction is open; a synchronous
        function blocks the event loop while it runs. A caller that has a ``summary`` already passes it instead, best together
        with the ``plan`` it was made for: then exactly that plan is executed. ``model`` is recorded in the event. With an
        ``id`` of the caller's the call can be repeated: if an event with this id exists, it is returned.

        Raises:
            NotFound: the session does not exist or is deleted.
            NothingToCompact: the session would not have fewer tokens afterwards.
            Conflict: a covered message was changed, or the session was compacted, after the plan was made.
            InvalidInput: a summary is needed and is missing or empty; or a function was given inside a transaction.
            LimitExceeded: the summary is over the policy's ``summary_tokens``.
            OutcomeUnknown: the answer to the commit was lost; repeat the call with the error's ``id``.
        """
        session, started = parse_id(session_id, "session id"), self._scope.clock.now_us()
        check_choice(self._engine, policy, strategy, plan, summarize, summary)
        event_id = self._scope.ids.new() if id is None else parse_id(id, "event id")
        if id is not None and (event := await self._find(event_id)) is not None and event.session_id == session:
            return event
        if plan is None:
            plan = await self.plan(session, policy, strategy=strategy)
        elif plan.session_id != session:
            raise InvalidInput(f"the plan is for session {plan.session_id}, not for session {session}", field="plan")
        if not plan.shrinks:
            raise NothingToCompact(_nothing_to_compact_reason(plan), reason="protected")
        request = CommitRequest(
            plan=plan,
            event_id=event_id,
            summary=await summary_of(self._engine, self._scope, plan, summarize, summary),
            summary_id=self._scope.ids.new(),
            copy_ids=[self._scope.ids.new() for _ in plan.rewritten],
            model=None if model is None else scopes.name(model, "model", self._scope.limits),
            started_us=started,
        )
        try:
            return await self._engine.write(lambda connection: commit(connection, self._scope, request))
        except OutcomeUnknown as error:
            error.id = event_id
            raise

    @writes
    async def record(
        self,
        connection: Connection,
        session_id: Id,
        *,
        strategy: str,
        removed: Sequence[str] = (),
        summary: str | None = None,
        preserved_message_ids: Sequence[str] = (),
        original_tokens: int | None = None,
        compacted_tokens: int | None = None,
        model: str | None = None,
        duration_ms: int = 0,
        id: str | None = None,
    ) -> CompactionEvent:
        """Record a compaction that the caller has computed, and remove the ``removed`` messages from the session.

        As with any other compaction, the originals are archived, the ``summary`` takes the position of the last of them, and
        ``rollback`` undoes it. The caller decides which messages are removed: a tool call should go with its result.
        Token counts that are not given are those of the session before and after. With an ``id`` of the caller's the call
        can be repeated. If nothing is removed yet, the summary message is inserted by the first ``archive``.

        Raises:
            NotFound: the session does not exist or is deleted, or it does not show one of the messages.
            InvalidInput: a name or a number is invalid, or the summary is empty.
        """
        limits = self._scope.limits
        if summary is not None and (not isinstance(summary, str) or not summary.strip()):
            raise InvalidInput("summary must be a non-empty string; nothing was changed", field="summary")
        limits.check("content_bytes", text.size(text.dump(summary_content(summary or ""))), "summary")
        compaction = recording.RecordedCompaction(
            session_id=parse_id(session_id, "session id"),
            event_id=self._scope.ids.new() if id is None else parse_id(id, "event id"),
            strategy=scopes.name(strategy, "strategy", limits),
            removed=self._ids(removed, "removed"),
            summary=summary,
            summary_id=self._scope.ids.new(),
            preserved=self._ids(preserved_message_ids, "preserved_message_ids"),
            model=None if model is None else scopes.name(model, "model", limits),
            duration_ms=whole_number(duration_ms, "duration_ms", maximum=MAX_TOKENS),
            original_tokens=None
            if original_tokens is None
            else whole_number(original_tokens, "original_tokens", maximum=MAX_TOKENS),
            compacted_tokens=None
            if compacted_tokens is None
            else whole_number(compacted_tokens, "compacted_tokens", maximum=MAX_TOKENS),
        )
        return await recording.record(connection, self._scope, compaction)

    @writes
    async def archive(self, connection: Connection, event_id: Id, message_ids: Sequence[Id]) -> CompactionEvent:
        """Remove more messages from a session into the archive of a compaction that was recorded before.

        A rollback restores all of them. The token counts of the event do not change.

        Raises:
            NotFound: the event does not exist, its session is deleted, or the session does not show one of the messages.
            Conflict: the event was rolled back, is not the newest of the session's current branch, or another branch
                shows some of the messages.
        """
        ids = self._ids(message_ids, "message_ids")
        event = parse_id(event_id, "event id")
        return await recording.archive(connection, self._scope, event, ids, self._scope.ids.new())

    @writes
    async def rollback(self, connection: Connection, event_id: Id) -> CompactionEvent:
        """Roll back a compaction: restore contents, flags, order and counts. Messages appended since then stay.

        The newest compaction of a branch must be rolled back first. Afterwards the session can be compacted again.

        Raises:
            NotFound: the event does not exist, or its session is deleted.
            Conflict: the compaction was rolled back before, a newer one must be rolled back first, the session is on another
                branch, or originals are missing from the archive.
        """
        return await rollback.roll_back(connection, self._scope, parse_id(event_id, "event id"))

    @reads
    async def get(self, connection: Connection, event_id: Id) -> CompactionEvent:
        """Return one compaction event, rolled back or not.

        Raises:
            NotFound: the event does not exist, or its session is deleted.
        """
        return await rollback.find_event(connection, self._scope, parse_id(event_id, "event id"))

    @reads
    async def history(
        self, connection: Connection, session_id: Id, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[CompactionEvent]:
        """List the compactions of a session, newest first, including those rolled back. With ``limit``, return a page.

        Raises:
            NotFound: the session does not exist or is deleted.
            LimitExceeded: ``limit`` is not given and there are more than ``list_rows``.
        """
        limits = self._scope.limits
        before = _MAX_NUMBER if cursor is None else decode_cursor(cursor, "compactions", int)[0]
        params = self._params(session_id, before=before, limit=rows_to_read(limit, limits))
        rows = await queries.history.all(connection, params)
        if not rows:
            await view_of(connection, params)
        events = events_of(connection, [*rows])
        return page(events, limit, limits, "compactions", lambda last: encode_cursor("compactions", last.number))

    @reads
    async def archived(
        self,
        connection: Connection,
        *,
        session_id: Id | None = None,
        event_id: Id | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[ArchivedMessage]:
        """List the originals of removed and rewritten messages, of a whole session or of one event, oldest event first.

        Compactions that were rolled back have none.

        Raises:
            NotFound: the session or the event does not exist, or the session is deleted.
            InvalidInput: neither or both of ``session_id`` and ``event_id`` were given.
        """
        return await archive.list_originals(connection, self._scope, session_id, event_id, limit, cursor)

    @reads
    async def search_archive(
        self,
        connection: Connection,
        session_id: Id,
        text: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[ArchivedMessage]:
        """Search the archived messages of a session for a substring, ignoring case.

        There are no wildcards. The search covers text and the inputs and outputs of tools; of other kinds of messages, all
        strings in their JSON.

        Raises:
            NotFound: the session does not exist or is deleted.
            InvalidInput: the text is empty.
        """
        return await archive.search_originals(connection, self._scope, session_id, text, limit, cursor)

    async def attach(
        self,
        policy: CompactionPolicy | None = None,
        *,
        session_id: Id | None = None,
        agent: str | None = None,
        summarize: Summarizer | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        """Compact a session, or every session of an agent, automatically whenever an append makes it due.

        The policy is stored. The function and the strategy are not: they belong to this Holdfast and all its handles, so each
        process that is to compact must attach its own. The append that makes a session due compacts it before it returns, and
        succeeds even if the compaction fails; errors are logged under ``holdfast``. A session's own policy takes precedence
        over its agent's. Attaching again replaces the policy and the functions.

        Messages stored with a token count of 0 do not make a session due. Attaching to a session counts its messages, which
        a buffer loaded before sees as a change of the session. Attaching to an agent does not count the messages of
        its sessions: attach to such a session, or call ``compact``.

        Raises:
            NotFound: the session does not exist or is deleted.
            InvalidInput: neither or both of ``session_id`` and ``agent`` were given, or the policy or the function is invalid.
        """
        policy = policy_or_default(policy)
        strategies.find(policy, strategy)
        if summarize is not None:
            check_function(self._engine, summarize)
        target, name = target_of(self._scope, session_id, agent)
        await self._engine.write(lambda connection: attachments.store(connection, self._scope, target, name, policy))
        functions = attachments.AttachedFunctions(summarize, strategy, policy)
        attachments.of(self._scope).put(self._scope, target, name, functions, keep_others=self._engine.joined)

    async def detach(self, *, session_id: Id | None = None, agent: str | None = None) -> None:
        """Stop compacting a session, or the sessions of an agent, automatically.

        Inside your own transaction, this process keeps the function, so that a rollback restores the attachment. Without a
        policy the function is not called.

        Raises:
            NotFound: no policy is attached.
            InvalidInput: neither or both of ``session_id`` and ``agent`` were given.
        """
        target, name = target_of(self._scope, session_id, agent)
        await self._engine.write(lambda connection: attachments.remove(connection, self._scope, target, name))
        if not self._engine.joined:
            attachments.of(self._scope).detach(self._scope, target, name)

    @reads
    async def attached(self, connection: Connection, session_id: Id) -> CompactionPolicy | None:
        """Return the policy of a session's automatic compaction: its own, else its agent's, else ``None``.

        Raises:
            NotFound: the session does not exist or is deleted.
        """
        params = self._params(session_id)
        await view_of(connection, params)
        attached = await attachments.find(connection, params)
        return None if attached is None else attached.policy

    async def _plan(
        self, connection: Connection, session_id: str, policy: CompactionPolicy, strategy: Strategy | None
    ) -> CompactionPlan:
        chosen = strategies.find(policy, strategy)
        params = self._params(session_id)
        head = await find_head(connection, params)
        session_rows = await read_session_rows(connection, queries, params, head, self._scope.limits)
        messages = session_rows.messages(connection)
        count, limits = counter_of(self._scope), self._scope.limits
        return make_plan(session_rows, messages, params["session_id"], policy, chosen, count, limits)

    async def _find(self, event_id: str) -> CompactionEvent | None:
        try:
            return await self.get(event_id)
        except NotFound:
            return None

    def _ids(self, ids: Sequence[str], what: str) -> list[str]:
        return [*dict.fromkeys(id_batch(ids, what, self._scope.limits))]

    def _params(self, session_id: str, **values: Any) -> dict[str, Any]:
        return self._scope.params(session_id=parse_id(session_id, "session id"), **values)


class Compactions(Blocking[AsyncCompactions]):
    """The compactions of one tenant's sessions."""

    plan = blocking(AsyncCompactions.plan)
    compact = blocking(AsyncCompactions.compact)
    record = blocking(AsyncCompactions.record)
    archive = blocking(AsyncCompactions.archive)
    rollback = blocking(AsyncCompactions.rollback)
    get = blocking(AsyncCompactions.get)
    history = blocking(AsyncCompactions.history)
    archived = blocking(AsyncCompactions.archived)
    search_archive = blocking(AsyncCompactions.search_archive)
    attach = blocking(AsyncCompactions.attach)
    detach = blocking(AsyncCompactions.detach)
    attached = blocking(AsyncCompactions.attached)


def _nothing_to_compact_reason(plan: CompactionPlan) -> str:
    if plan.removed or plan.rewritten:
        return "the removable messages have too few tokens for a summary to be shorter; nothing was changed"
    return (
        f"nothing to compact: {len(plan.protected)} messages are protected (see plan().protected), and no other change"
        " would make the session smaller"
    )
