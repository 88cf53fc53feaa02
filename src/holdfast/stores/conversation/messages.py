"""Messages: one log per session, for every framework.

Each message has a place in its session's log, ``seq``: 1, 2, 3 and so on without a gap, given at the append. Order is always by
``seq`` and never by time. A ``message`` has a role and content blocks; entries of other kinds (``adk.event``,
``openai.item`` ...) keep the framework's JSON as it is.

Every append has an id. Repeating an append with the same id and the same content returns the first result; the same id with
other content is ``Conflict``. So a caller whose answer was lost can simply ask again.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from ...core.blocking import Blocking, blocking
from ...core.checks import id_batch, list_of, whole_number
from ...core.filters import Filter, Filterable, id_list
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.store import TenantStore, reads, writes, writes_heavily
from ...engines.offload import compute
from ...engines.protocol import Connection
from ...errors import InvalidInput
from ...ids import Id
from ...ids import parse as parse_id
from ...offload import INLINE_CHARS, is_large
from . import deleted_messages, views
from .branches import lock_head
from .compaction.automatic import compact_if_attached
from .compaction.rollback import forget_originals
from .context import Budget, Context, build_context
from .deleted_messages import DeletedMessage
from .log_reading import count_log, fitting, read_log, view_of
from .message_changes import change, find, queries, recount
from .message_log import HEAVY_CHARS, Append, Entry, Message, append_group
from .new_entries import flag, new_entries, new_entry
from .search.index import remove_deleted, requeue
from .search.search import Search, SearchPage
from .tokens import TokenCounter, counter_of

_MAX_SEQ = 2**63 - 1
_FIRST = "00000000-0000-0000-0000-000000000000"


class NewMessage(Struct, frozen=True, kw_only=True):
    """A message to append; the fields are those of ``append``."""

    role: str | None = None
    content: Any
    kind: str = "message"
    metadata: Mapping[str, Any] | None = None
    token_count: int | None = None
    is_preserved: bool = False
    is_summary: bool = False
    id: str | None = None


FILTERS = Filterable(
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
        """Add one message at the end of a session's log; durable when this returns.

        ``content`` is text or a list of content blocks; for other kinds, any JSON value. Without a ``token_count`` the content
        is counted by the Holdfast's ``count_tokens``, or else estimated from its size.

        Raises:
            NotFound: there is no such live session.
            Conflict: there is a message with this id and other content.
            InvalidInput: the role, the content or another argument is not acceptable.
        """
        values = (role, content, kind, metadata, token_count, is_preserved, is_summary, id)
        if is_large(content):
            entry = await compute(self._engine, lambda _: new_entry(self._scope, *values), chars=INLINE_CHARS)
        else:
            entry = new_entry(self._scope, *values)
        return (await self._append(session_id, [entry]))[0]

    async def append_many(self, session_id: Id, messages: Sequence[NewMessage]) -> list[Message]:
        """Add several messages, all or none of them, at consecutive places.

        Raises:
            NotFound: there is no such live session.
            Conflict: there is a message with one of the ids and other content, or only some of them are there.
            LimitExceeded: there are more than ``batch_rows``.
        """
        list_of(NewMessage, messages, "messages")
        self._scope.limits.check("batch_rows", len(messages), "messages")
        if not messages:
            return []
        if is_large([each.content for each in messages]):
            entries = await compute(
                self._engine, partial(new_entries, self._scope, [*map(astuple, messages)]), chars=INLINE_CHARS
            )
        else:
            entries = [new_entry(self._scope, *astuple(each)) for each in messages]
        if len({entry.id for entry in entries}) < len(entries):
            raise InvalidInput("two messages of one call have the same id")
        return await self._append(session_id, entries)

    @reads
    async def get(self, connection: Connection, message_id: Id) -> Message:
        """One message, on whatever branch it is.

        Raises:
            NotFound: there is none in a live session.
        """
        return await find(connection, self._scope, message_id)

    @reads
    async def last(self, connection: Connection, session_id: Id, count: int = 50) -> Sequence[Message]:
        """The last messages of a session, oldest of them first; the rest of the log is not touched.

        Raises:
            NotFound: there is no such live session.
        """
        params = self._stretch(session_id, 0, None)
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
        """The messages of a session in the order of the log, or from its end with ``newest_first``.

        ``after`` and ``before`` are places in the log, not included. With ``limit``, a page; its ``next`` is the cursor of
        the one after, and each page costs the same wherever it starts. With ``max_bytes`` as well, a page ends before its
        contents have more bytes than that together, but holds one message at least; no more than that is loaded.

        Raises:
            NotFound: there is no such live session.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        listing = "messages-newest" if newest_first else "messages"
        if cursor is not None:
            (place,) = decode_cursor(cursor, listing, int)
            after, before = (after, place) if newest_first else (place, before)
        params = self._stretch(session_id, after, before)
        params["limit"] = rows_to_read(limit, limits)
        clause = FILTERS.compile(where, params, connection.dialect, limits)
        if limit is not None and max_bytes is not None:
            limit = min(limit, await fitting(connection, params, clause, max_bytes, newest_first=newest_first))
            params["limit"] = limit + 1
        found = await read_log(connection, params, clause, newest_first=newest_first, engine=self._engine)
        return page(found, limit, limits, "messages", lambda last: encode_cursor(listing, last.seq))

    @reads
    async def context(
        self, connection: Connection, session_id: Id, *, max_tokens: int, count_tokens: TokenCounter | None = None
    ) -> Context:
        """What to send to the model: system messages, what is preserved, the latest summary, and as many of the newest messages
        as fit into ``max_tokens``, with tool calls and their results whole. The rest of the log is not touched.

        A result whose call is not there is left out; a call whose result is not there gets one that says so, which is stored
        nowhere. ``count_tokens`` counts messages that came without a token count; without it, as everywhere, that of the
        Holdfast. It is called while the log is read, so it must only count.

        Raises:
            NotFound: there is no such live session.
            LimitExceeded: what must be there has more tokens than ``max_tokens``.
        """
        budget = Budget(max_tokens, counter_of(self._scope, count_tokens))
        params = self._scope.params(session_id=parse_id(session_id, "session id"))
        return await build_context(connection, self._scope, params, budget)

    @reads
    async def count(self, connection: Connection, session_id: Id, *, where: Sequence[Filter] = ()) -> int:
        """How many messages of a session match.

        Raises:
            NotFound: there is no such live session.
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
        """Change what is given; the message keeps its place and the time it was made.

        Branches that share the message all show it changed. A new content without a ``token_count`` is counted as an append
        would count it.

        Raises:
            NotFound: there is no such message in a live session.
        """
        return await change(connection, self._scope, message_id, content, metadata, token_count, is_preserved)

    @writes_heavily
    async def delete(
        self, connection: Connection, session_id: Id, message_ids: Sequence[Id], *, purge: bool = False
    ) -> int:
        """Delete exactly these messages of a session, with their feedback, and say how many there were. Their places stay empty,
        and ``restore`` brings them back; with ``purge`` nothing does, and messages that were deleted before are removed too.

        They may be on any branch, and are gone from every branch that shares them. What compactions keep of them goes too, so
        that no rollback brings them back; a message that was compacted away is deleted as well.

        Raises:
            NotFound: there is no such live session.
        """
        params = self._several(connection, session_id, message_ids)
        head = await lock_head(connection, params)
        purged = await deleted_messages.forget(connection, params) if flag(purge, "purge") else set()
        if not purge:
            await deleted_messages.keep(connection, params, compacted=bool(head.compactions))
        rows = await queries.delete.all(connection, params)
        await queries.delete_feedback.all(connection, params)
        gone = {id_ for id_, _, _ in rows}
        if head.compactions:
            gone |= await forget_originals(connection, params)
        if gone:
            shown = [tokens for _, tokens, place in rows if views.shows(head.view, place)]
            await recount(connection, params, removed=len(shown), more_tokens=-sum(shown))
            await remove_deleted(connection, params)
        return len(gone | purged)

    @writes_heavily
    async def restore(self, connection: Connection, session_id: Id, message_ids: Sequence[Id]) -> int:
        """Bring deleted messages of a session back, with their feedback, and say how many there were. Each is at its old place,
        on every branch that showed it; one that a compaction had taken out is in its archive again.

        Raises:
            NotFound: there is no such live session.
            Conflict: one of them was appended again under its id.
        """
        params = self._several(connection, session_id, message_ids)
        head = await lock_head(connection, params)
        async with connection.savepoint():
            back, there = await deleted_messages.bring_back(connection, params)
        if back:
            shown = [tokens for tokens, place in there if views.shows(head.view, place)]
            await recount(connection, params, removed=-len(shown), more_tokens=sum(shown))
            await requeue(connection, params, [*back])
        return len(back)

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
        """A page of the messages of a session that were deleted and can be restored, in the order of their ids.

        With ``max_bytes``, a page ends once its contents have more bytes than that together.

        Raises:
            NotFound: there is no such live session.
        """
        after = _FIRST if cursor is None else parse_id(decode_cursor(cursor, "deleted-messages", str)[0], "cursor")
        params = self._scope.params(session_id=parse_id(session_id, "session id"), after=after)
        await view_of(connection, params)
        found, has_more = await deleted_messages.page(
            connection, params, rows_to_read(limit, self._scope.limits) - 1, max_bytes
        )
        return Page(found, encode_cursor("deleted-messages", found[-1].message.id) if has_more else None)

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
        """Messages with all words of a query, in what live sessions show now.

        ``"quoted words"`` stand next to each other, ``-this`` must not be there, ``begin*`` is the beginning of a word; case
        and diacritics do not matter, and everything else is taken literally. Long messages that mention a word in passing
        come after all others; among equals the newest is first. Each hit has a snippet, in which the marks stand
        around what was found; nothing else in it is escaped.

        Messages are indexed in the background (``holdfast serve``, ``holdfast worker``), and a small piece by each search. A
        search also reads up to ``search_tail`` messages that are not indexed yet. If there are more of them, as after a large
        import, the page says that it is not ``complete``. A page of very long messages may have fewer hits than ``limit`` and
        still have a ``next``.

        Raises:
            InvalidInput: there is no word in the query.
            NotFound: there is no such live session.
        """
        wanted = Search(
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
        return await wanted.run(self._engine)

    async def _append(self, session_id: str, entries: Sequence[Entry]) -> builtins.list[Message]:
        """Write entries at the end of a session's log, then compact the session if its policy wants that now."""
        append = Append(
            self._scope.stored_tenant,
            parse_id(session_id, "session id"),
            entries,
            self._scope.clock.now_us(),
            is_heavy=sum([len(entry.content) for entry in entries]) > HEAVY_CHARS,
        )
        done = await self._engine.grouped(append_group, append)
        if done.compaction_due:
            await compact_if_attached(self._engine, self._scope, append.session_id)
        return done.messages

    def _stretch(self, session_id: str, after: int, before: int | None) -> dict[str, Any]:
        before = views.BLOCK if before is None else before
        for place in (after, before):
            whole_number(place, "a place in the log", most=_MAX_SEQ)
        return self._scope.params(
            session_id=parse_id(session_id, "session id"),
            after=min(after, views.LAST),
            before=min(before, views.BLOCK),
        )

    def _several(self, connection: Connection, session_id: str, message_ids: Sequence[str]) -> dict[str, Any]:
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
