"""Compactions: keeping a session inside its model's window, in a way that can be undone.

A compaction takes old messages out of a session, or shortens them, and puts a summary in their place. It has three parts::

    read     what the session shows; a strategy chooses what goes                     plan
    think    the caller's function is given those messages and answers a summary      outside of any transaction
    write    originals into the archive, messages out, summary in, one commit         only if nothing it covers has changed

Messages that are appended meanwhile stay, after the summary. Nothing is lost: the original of everything that was removed or
rewritten is in the archive, in the same commit, and ``rollback`` puts it back byte for byte.

What is preserved, of the role ``system``, among the last messages or the last tokens is not touched, and no call of a tool is
separated from its result (``strategies``). Tokens are the counts that came with the messages, and where there are
none, those of the counter (``tokens``).
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
from .commit import Order, commit, summary_content
from .events import ArchivedMessage, CompactionEvent, events_of, queries
from .plan import Plan, check_plan, make_plan, take_snapshot
from .policy import CompactionPolicy, checked
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
    ) -> Plan:
        """What a compaction would do now: what goes, what is rewritten, what is protected and why. Nothing is changed.

        Raises:
            NotFound: there is no such live session.
            InvalidInput: there is no such strategy, it chose what it may not touch, or a new content cannot be stored.
            LimitExceeded: the session has more than ``compaction_rows`` messages.
        """
        return await self._plan(connection, session_id, checked(policy), strategy)

    async def compact(
        self,
        session_id: Id,
        policy: CompactionPolicy | None = None,
        *,
        summarize: Summarizer | None = None,
        summary: str | None = None,
        strategy: Strategy | None = None,
        plan: Plan | None = None,
        model: str | None = None,
        id: str | None = None,
    ) -> CompactionEvent:
        """Compact a session now, whether it is due or not. Done, with everything that belongs to it, when this returns.

        ``summarize`` is called with the messages that a summary has to stand for, while no transaction is open; a synchronous
        function blocks the event loop while it runs. Whoever has a ``summary`` already gives that, best together with the
        ``plan`` it was made for: then exactly that plan is carried out. ``model`` is noted in the event. With an ``id`` of
        the caller's the call can be repeated: the event that is there under this id is returned.

        Raises:
            NotFound: there is no such live session.
            NothingToCompact: it would not have fewer tokens afterwards.
            Conflict: what is covered was changed, or the session compacted, meanwhile.
            InvalidInput: a summary is needed and there is none, or it is empty; or a function was given inside a transaction.
            LimitExceeded: the summary is over the policy's ``summary_tokens``.
            OutcomeUnknown: the answer to the commit was lost; ask again with its ``id``.
        """
        session, started = parse_id(session_id, "session id"), self._scope.clock.now_us()
        self._check_ways(policy, strategy, plan, summarize, summary)
        event_id = self._scope.ids.new() if id is None else parse_id(id, "event id")
        if id is not None and (there := await self._find(event_id)) is not None and there.session_id == session:
            return there
        if plan is None:
            plan = await self.plan(session, policy, strategy=strategy)
        elif plan.session_id != session:
            raise InvalidInput(f"the plan is for the session {plan.session_id}, not for {session}")
        if not plan.shrinks:
            raise NothingToCompact(_why_nothing(plan))
        order = Order(
            plan=plan,
            event_id=event_id,
            summary=await summary_of(self._engine, self._scope, plan, summarize, summary),
            summary_id=self._scope.ids.new(),
            copy_ids=[self._scope.ids.new() for _ in plan.rewritten],
            model=None if model is None else scopes.name(model, "model", self._scope.limits),
            started_us=started,
        )
        try:
            return await self._engine.write(lambda connection: commit(connection, self._scope, order))
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
        """Keep the event of a compaction that the caller has thought out, and take the ``removed`` messages out of the session.

        Their originals are in the archive, the ``summary`` stands in the place of the last of them, and ``rollback`` undoes it,
        as with any other compaction. Which messages go is the caller's decision: a call of a tool should go with its result.
        Token counts that are not given are those of the session before and after. With an ``id`` of the caller's the call
        can be repeated. A summary of a compaction that has removed nothing yet waits for ``archive``.

        Raises:
            NotFound: there is no such live session, or it does not show one of the messages.
            InvalidInput: a name or a number is not acceptable, or the summary is empty.
        """
        limits = self._scope.limits
        if summary is not None and (not isinstance(summary, str) or not summary.strip()):
            raise InvalidInput("the summary is empty or no text; nothing was changed")
        limits.check("content_bytes", text.size(text.dump(summary_content(summary or ""))), "the summary")
        given = recording.Record(
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
        return await recording.record(connection, self._scope, given)

    @writes
    async def archive(self, connection: Connection, event_id: Id, message_ids: Sequence[Id]) -> CompactionEvent:
        """Take more messages out of a session, into the archive of a compaction that was recorded before; a rollback brings all
        of them back. Its token counts stay what they were.

        Raises:
            NotFound: there is no such event of a live session, or the session does not show one of the messages.
            Conflict: the event was rolled back, is not the newest of the branch that the session shows, or another branch
                shows some of the messages.
        """
        ids = self._ids(message_ids, "message_ids")
        event = parse_id(event_id, "event id")
        return await recording.archive(connection, self._scope, event, ids, self._scope.ids.new())

    @writes
    async def rollback(self, connection: Connection, event_id: Id) -> CompactionEvent:
        """Undo a compaction: contents, flags, order and counts are what they were, and what was appended since stays.

        The newest of a branch is undone first. Afterwards the session can be compacted again.

        Raises:
            NotFound: there is no such event of a live session.
            Conflict: it was undone before, a newer one must be undone first, the session shows another branch, or its
                originals are no longer in the archive.
        """
        return await rollback.roll_back(connection, self._scope, parse_id(event_id, "event id"))

    @reads
    async def get(self, connection: Connection, event_id: Id) -> CompactionEvent:
        """One compaction, undone or not.

        Raises:
            NotFound: there is no such event of a live session.
        """
        return await rollback.find_event(connection, self._scope, parse_id(event_id, "event id"))

    @reads
    async def history(
        self, connection: Connection, session_id: Id, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[CompactionEvent]:
        """The compactions of a session, newest first, undone ones too. With ``limit``, a page.

        Raises:
            NotFound: there is no such live session.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        before = _MAX_NUMBER if cursor is None else decode_cursor(cursor, "compactions", int)[0]
        params = self._of(session_id, before=before, limit=rows_to_read(limit, limits))
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
        """The originals of what live compactions removed or rewrote, of a whole session or of one event, oldest event first.

        Raises:
            NotFound: there is no such live session, or no such event.
            InvalidInput: neither or both were given.
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
        """The archived messages of a session whose words contain a text, in whatever case it is written.

        All characters mean themselves. Searched is what a message says: text, the inputs and outputs of tools; of other kinds,
        all texts in their JSON.

        Raises:
            NotFound: there is no such live session.
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
        """From now on, compact a session, or every session of an agent, whenever an append makes it due.

        The policy is stored. The function and the strategy are not: they belong to this Holdfast and all its handles, so each
        process that is to compact attaches its own. The append that makes a session due compacts it before it returns, and
        succeeds whether that works or not; what went wrong is logged under ``holdfast``. A session's own policy comes before its
        agent's. Attaching again replaces what was there.

        A message that was stored with a count of 0 weighs nothing here. Such messages of a session are counted when something is
        attached to the session, which a buffer that was loaded before takes for the change that it is; those of an agent's
        sessions are not: attach to such a session, or compact it by hand.

        Raises:
            NotFound: there is no such live session.
            InvalidInput: neither or both were named, or the policy or the function cannot be used.
        """
        policy = checked(policy)
        strategies.find(policy, strategy)
        if summarize is not None:
            check_function(self._engine, summarize)
        scope, name = self._target(session_id, agent)
        await self._engine.write(lambda connection: attachments.store(connection, self._scope, scope, name, policy))
        mine = attachments.Attachment(summarize, strategy, policy)
        attachments.of(self._scope).put(self._scope, scope, name, mine, beside=self._engine.joined)

    async def detach(self, *, session_id: Id | None = None, agent: str | None = None) -> None:
        """No longer compact a session, or the sessions of an agent, by itself.

        Inside your own transaction, this process keeps the function, which is not called without a policy, and if the
        transaction is rolled back everything is as it was.

        Raises:
            NotFound: nothing was attached to it.
            InvalidInput: neither or both were named.
        """
        scope, name = self._target(session_id, agent)
        await self._engine.write(lambda connection: attachments.remove(connection, self._scope, scope, name))
        if not self._engine.joined:
            attachments.of(self._scope).take(self._scope, scope, name)

    @reads
    async def attached(self, connection: Connection, session_id: Id) -> CompactionPolicy | None:
        """The policy by which a session is compacted by itself: its own, else its agent's, else ``None``.

        Raises:
            NotFound: there is no such live session.
        """
        params = self._of(session_id)
        await view_of(connection, params)
        found = await attachments.find(connection, params)
        return None if found is None else found.policy

    async def _plan(
        self, connection: Connection, session_id: str, policy: CompactionPolicy, strategy: Strategy | None
    ) -> Plan:
        chosen = strategies.find(policy, strategy)
        params = self._of(session_id)
        head = await find_head(connection, params)
        snapshot = await take_snapshot(connection, queries, params, head, self._scope.limits)
        messages = snapshot.messages(connection)
        count, limits = counter_of(self._scope), self._scope.limits
        return make_plan(snapshot, messages, params["session_id"], policy, chosen, count, limits)

    async def _find(self, event_id: str) -> CompactionEvent | None:
        try:
            return await self.get(event_id)
        except NotFound:
            return None

    def _ids(self, ids: Sequence[str], what: str) -> list[str]:
        return [*dict.fromkeys(id_batch(ids, what, self._scope.limits))]

    def _check_ways(
        self,
        policy: CompactionPolicy | None,
        strategy: Strategy | None,
        plan: Plan | None,
        summarize: Summarizer | None,
        summary: str | None,
    ) -> None:
        if plan is not None:
            check_plan(plan)
        if plan is not None and (policy is not None or strategy is not None):
            raise InvalidInput("a plan has a policy and a strategy already: give the plan or those")
        if summarize is not None and summary is not None:
            raise InvalidInput("give summarize= or summary=, not both")
        if summarize is not None:
            check_function(self._engine, summarize)
            if self._engine.joined:
                raise InvalidInput(
                    "a function cannot be called inside your transaction, which would stay open for as long as it thinks:"
                    " call plan(), summarise, then compact(plan=..., summary=...)"
                )

    def _target(self, session_id: str | None, agent: str | None) -> tuple[attachments.Target, str]:
        if (session_id is None) == (agent is None):
            raise InvalidInput("say to what: session_id= or agent=")
        if session_id is not None:
            return "session", parse_id(session_id, "session id")
        return "agent", scopes.name(agent, "agent", self._scope.limits)

    def _of(self, session_id: str, **values: Any) -> dict[str, Any]:
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


def _why_nothing(plan: Plan) -> str:
    if plan.removed or plan.rewritten:
        return "what could go has too few tokens for a summary to be shorter; nothing was changed"
    stays = f"{len(plan.protected)} messages are protected"
    return (
        f"there is nothing to compact: {stays} (see plan().protected), and nothing else would make the session smaller"
    )
