"""Messages: one log per session, for every framework.

Each message has a position in its session's log, ``seq``: 1, 2, 3 and so on without a gap, assigned by the append. Order is
always by ``seq`` and never by time. A ``message`` has a role and content blocks; entries of other kinds (``adk.event``,
``openai.item`` ...) keep the framework's JSON unchanged.

Every append has an id. Repeating an append with the same id and the same content returns the first result; the same id with
other content is a ``Conflict``. So a caller that did not receive the result can repeat the call.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.blocking import Blocking, blocking
from ...core.checks import id_batch, list_of, whole_number
from ...core.filters import Filter, FilterColumns, id_list
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.store import TenantStore, reads, writes, writes_in_thread
from ...engines.heavy_calls import compute
from ...engines.protocol import Connection
from ...ids import Id
from ...ids import parse as parse_id
from ...offload import INLINE_CHARS, is_large
from . import deleted_messages, views
from .branches import lock_head
from .compaction.automatic import compact_if_attached
from .compaction.rollback import forget_originals
from .context import Budget, Context, build_context
from .deleted_messages import DeletedMessage
from .log_reading import count_fitting, count_log, read_log, view_of
from .message_changes import change, find, queries, recount
from .message_log import HEAVY_CHARS, Append, LogEntry, Message, append_group
from .new_entries import NewMessage, flag, new_entries, new_entry
from .search.index import remove_deleted, requeue
from .search.search import Search, SearchPage
from .tokens import TokenCounter, counter_of

_MAX_SEQ = 2**63 - 1
_FIRST = "00000000-0000-0000-0000-000000000000"


FILTERS = FilterColumns(
    {
        "seq": (f"(seq & {views.LAST})", "number"),
        "kind": ("kind", "text"),
        "role": ("role", "text"),
        "token_count": ("token_count", "number"),
        "is_preserved": ("is_preserved", "bool"),
        "is_summary": ("is_summary", "bool"),
        "created_at": ("created_at", "time"),
        "content": ("content", "json"),
    },
    metadata="metadata",
)


class AsyncMessages(TenantStore):
    """The messages of one tenant's sessions."""

    async def append(
        self,
        session_id: Id,
        *,
        role: str | None = None,
        content: Any,
        kind: str = "message",
        metadata: Mapping[str, Any] | None = None,
        token_count: int | None = None,
        is_preserved: bool = False,
        is_summary: bool = False,
        id: str | None = None,
    ) -> Message:
        """Append one message to the end of a session's log; durable when this returns.

        ``content`` is text or a list of content blocks; for other kinds, any JSON value. Without a ``token_count`` the content
        is counted by the Holdfast's ``count_tokens``, or else estimated from its size.

        Raises:
            NotFound: no live session has this id.
            Conflict: a message with this id has other content.
            InvalidInput: the role, the content or another argument is not valid.
        """
        values = (role, content, kind, metadata, token_count, is_preserved, is_summary, id)
        if is_large(content):
            entry = await compute(self._engine, lambda _: new_entry(self._scope, *values), chars=INLINE_CHARS)
        else:
            entry = new_entry(self._scope, *values)
        return (await self._append(session_id, [entry]))[0]

    async def append_many(self, session_id: Id, messages: Sequence[NewMessage]) -> list[Message]:
        """Append several messages at consecutive positions, all or none of them.

        Raises:
            NotFound: no live session has this id.
            Conflict: a message with one of the ids has other content, or only some of the messages exist.
            LimitExceeded: there are more than ``batch_rows``.
        """
        list_of(NewMessage, messages, "messages")
        self._scope.limits.check("batch_rows", len(messages), "messages")
        if not messages:
            return []
        return await self._append(session_id, await new_entries(self._engine, self._scope, messages))

    @reads
    async def get(self, connection: Connection, message_id: Id) -> Message:
        """Return one message, from any branch.

        Raises:
            NotFound: it does not exist, or its session is deleted.
        """
        return await find(connection, self._scope, message_id)

    @reads
    async def last(self, connection: Connection, session_id: Id, count: int = 50) -> Sequence[Message]:
        """Return the last messages of a session, oldest first; the rest of the log is not read.

        Raises:
            NotFound: no live session has this id.
        """
        params = self._range_params(session_id, 0, None)
        params["limit"] = rows_to_read(count, self._scope.limits) - 1
        return (await read_log(connection, params, newest_first=True, engine=self._engine))[::-1]

    @reads
    async def list(
        self,
        connection: Connection,
        session_id: Id,
        *,
        where: Sequence[Filter] = (),
        after: int = 0,
        before: int | None = None,
        newest_first: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
        max_bytes: int | None = None,
    ) -> Page[Message]:
        """List the messages of a session in the order of the log, or from its end with ``newest_first``.

        ``after`` and ``before`` are exclusive bounds on ``seq``. With ``limit``, a page; its ``next`` is the cursor of
        the next page, and each page costs the same wherever it starts. With ``max_bytes`` too, a page ends before its
        contents have more bytes than that, but has at least one message; no more than that is loaded.

        Raises:
            NotFound: no live session has this id.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        listing = "messages-newest" if newest_first else "messages"
        if cursor is not None:
            (position,) = decode_cursor(cursor, listing, int)
            after, before = (after, position) if newest_first else (position, before)
        params = self._range_params(session_id, after, before)
        params["limit"] = rows_to_read(limit, limits)
        clause = FILTERS.compile(where, params, connection.dialect, limits)
        if limit is not None and max_bytes is not None:
            limit = min(limit, await count_fitting(connection, params, clause, max_bytes, newest_first=newest_first))
            params["limit"] = limit + 1
        messages = await read_log(connection, params, clause, newest_first=newest_first, engine=self._engine)
        return page(messages, limit, limits, "messages", lambda last: encode_cursor(listing, last.seq))

    @reads
    async def context(
        self, connection: Connection, session_id: Id, *, max_tokens: int, count_tokens: TokenCounter | None = None
    ) -> Context:
        """Return the messages to send to the model: system messages, preserved messages, the latest summary, and as many of the
        newest messages as fit into ``max_tokens``, with tool calls and their results together. The rest of the log is not read.

        A result whose call is not included is left out; a call without a result gets an error result, which is not
        stored. ``count_tokens`` counts messages that were stored without a token count; the default is that of the
        Holdfast. It is called while the log is read, so it must only count.

        Raises:
            NotFound: no live session has this id.
            LimitExceeded: the messages that are always included have more tokens than ``max_tokens``.
        """
        budget = Budget(max_tokens, counter_of(self._scope, count_tokens))
        params = self._scope.params(session_id=parse_id(session_id, "session id"))
        return await build_context(connection, self._scope, params, budget)

    @reads
    async def count(self, connection: Connection, session_id: Id, *, where: Sequence[Filter] = ()) -> int:
        """Return the number of messages of a session that match.

        Raises:
            NotFound: no live session has this id.
        """
        params = self._scope.params(session_id=parse_id(session_id, "session id"))
        clause = FILTERS.compile(where, params, connection.dialect, self._scope.limits)
        return await count_log(connection, params, clause)

    @writes
    async def update(
        self,
        connection: Connection,
        message_id: Id,
        *,
        content: Any = None,
        metadata: Mapping[str, Any] | None = None,
        token_count: int | None = None,
        is_preserved: bool | None = None,
    ) -> Message:
        """Change the given fields; the message keeps its position and creation time.

        All branches that share the message show the change. New content without a ``token_count`` is counted as in an
        append.

        Raises:
            NotFound: it does not exist, or its session is deleted.
        """
        return await change(connection, self._scope, message_id, content, metadata, token_count, is_preserved)

    @writes_in_thread
    async def delete(
        self, connection: Connection, session_id: Id, message_ids: Sequence[Id], *, purge: bool = False
    ) -> int:
        """Delete exactly these messages of a session, with their feedback, and return how many existed. Their positions stay
        empty, and ``restore`` restores them; with ``purge`` they cannot be restored, and messages deleted before are purged too.

        The messages may be on any branch, and are removed from every branch that shares them. The originals that compactions
        keep of them are removed too, so that no rollback restores them; a message that was compacted away is deleted as well.

        Raises:
            NotFound: no live session has this id.
        """
        params = self._batch_params(connection, session_id, message_ids)
        head = await lock_head(connection, params)
        purged = await deleted_messages.forget(connection, params) if flag(purge, "purge") else set()
        if not purge:
            await deleted_messages.keep(connection, params, compacted=bool(head.compactions))
        rows = await queries.delete.all(connection, params)
        await queries.delete_feedback.all(connection, params)
        deleted = {id_ for id_, _, _ in rows}
        if head.compactions:
            deleted |= await forget_originals(connection, params)
        if deleted:
            visible = [tokens for _, tokens, position in rows if views.shows(head.view, position)]
            await recount(connection, params, removed=len(visible), more_tokens=-sum(visible))
            await remove_deleted(connection, params)
        return len(deleted | purged)

    @writes_in_thread
    async def restore(self, connection: Connection, session_id: Id, message_ids: Sequence[Id]) -> int:
        """Restore deleted messages of a session, with their feedback, and return how many were restored. Each gets its old
        position, on every branch that showed it; a message that a compaction had removed returns to its archive.

        Raises:
            NotFound: no live session has this id.
            Conflict: one of them was appended again under its id.
        """
        params = self._batch_params(connection, session_id, message_ids)
        head = await lock_head(connection, params)
        async with connection.savepoint():
            restored, in_log = await deleted_messages.restore(connection, params)
        if restored:
            visible = [tokens for tokens, position in in_log if views.shows(head.view, position)]
            await recount(connection, params, removed=-len(visible), more_tokens=sum(visible))
            await requeue(connection, params, [*restored])
        return len(restored)

    @reads
    async def deleted(
        self,
        connection: Connection,
        session_id: Id,
        *,
        limit: int = 100,
        cursor: str | None = None,
        max_bytes: int | None = None,
    ) -> Page[DeletedMessage]:
        """Return a page of the deleted messages of a session that can be restored, in the order of their ids.

        With ``max_bytes``, a page ends once its contents have more bytes than that.

        Raises:
            NotFound: no live session has this id.
        """
        after = _FIRST if cursor is None else parse_id(decode_cursor(cursor, "deleted-messages", str)[0], "cursor")
        params = self._scope.params(session_id=parse_id(session_id, "session id"), after=after)
        await view_of(connection, params)
        messages, has_more = await deleted_messages.page(
            connection, params, rows_to_read(limit, self._scope.limits) - 1, max_bytes
        )
        return Page(messages, encode_cursor("deleted-messages", messages[-1].message.id) if has_more else None)

    async def search(
        self,
        query: str,
        *,
        session_id: Id | None = None,
        user: str | None = None,
        agent: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
        start_mark: str = "**",
        end_mark: str = "**",
    ) -> SearchPage:
        """Search for messages with all words of a query, in the current branches of live sessions.

        ``"quoted words"`` must be adjacent, ``-this`` must not occur, ``begin*`` is a prefix of a word; case
        and diacritics are ignored, and everything else is literal. Long messages that mention a word in passing
        rank last; messages of equal rank are sorted newest first. Each hit has a snippet with the marks
        around the matches; nothing else in the snippet is escaped.

        Messages are indexed in the background (``holdfast serve``, ``holdfast worker``), and a few by each search. A
        search also reads up to ``search_tail`` messages that are not indexed yet. If there are more, for example after a large
        import, the page is not ``complete``. A page of very long messages may have fewer hits than ``limit`` and
        still have a ``next``.

        Raises:
            InvalidInput: the query has no words.
            NotFound: no live session has this id.
        """
        search = Search(
            self._scope,
            query,
            session_id=session_id,
            user=user,
            agent=agent,
            limit=limit,
            cursor=cursor,
            start_mark=start_mark,
            end_mark=end_mark,
        )
        return await search.run(self._engine)

    async def _append(self, session_id: str, entries: Sequence[LogEntry]) -> builtins.list[Message]:
        """Append entries to a session's log, then compact the session if its policy requires it."""
        append = Append(
            self._scope.stored_tenant,
            parse_id(session_id, "session id"),
            entries,
            self._scope.clock.now_us(),
            is_heavy=sum([len(entry.content) for entry in entries]) > HEAVY_CHARS,
        )
        result = await self._engine.grouped(append_group, append)
        if result.compaction_due:
            await compact_if_attached(self._engine, self._scope, append.session_id)
        return result.messages

    def _range_params(self, session_id: str, after: int, before: int | None) -> dict[str, Any]:
        before = views.BLOCK if before is None else before
        for name, seq in (("after", after), ("before", before)):
            whole_number(seq, name, maximum=_MAX_SEQ)
        return self._scope.params(
            session_id=parse_id(session_id, "session id"),
            after=min(after, views.LAST),
            before=min(before, views.BLOCK),
        )

    def _batch_params(self, connection: Connection, session_id: str, message_ids: Sequence[str]) -> dict[str, Any]:
        ids = id_batch(message_ids, "message_ids", self._scope.limits)
        return self._scope.params_now(
            session_id=parse_id(session_id, "session id"), ids=id_list(ids, connection.dialect)
        )


class Messages(Blocking[AsyncMessages]):
    """The messages of one tenant's sessions."""

    append = blocking(AsyncMessages.append)
    append_many = blocking(AsyncMessages.append_many)
    get = blocking(AsyncMessages.get)
    last = blocking(AsyncMessages.last)
    list = blocking(AsyncMessages.list)
    context = blocking(AsyncMessages.context)
    count = blocking(AsyncMessages.count)
    update = blocking(AsyncMessages.update)
    delete = blocking(AsyncMessages.delete)
    restore = blocking(AsyncMessages.restore)
    deleted = blocking(AsyncMessages.deleted)
    search = blocking(AsyncMessages.search)
