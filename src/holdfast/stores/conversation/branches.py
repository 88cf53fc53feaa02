"""Branches: other ways a conversation could have gone on.

A fork shares everything up to the message it starts after with the branch it came from; nothing is copied, however long the
history is (``views`` says how). A session shows one branch at a time, and appends go to the end of that one. ``rewind`` is a
fork that is switched to at once, so what came after is not lost: ``redo`` goes back to it.

A message that branches share is one message: who changes or deletes it does so for all of them. A message has one id in its
session whatever the branch, so an append that is repeated after a switch returns the first result, on the branch it is on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from ...clock import MINUTE_US
from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.rows import mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import Conflict, InvalidInput, LimitExceeded, NotFound
from ...ids import Id
from ...ids import parse as parse_id
from . import views
from .log_reading import count_view
from .views import View

Origin = Literal["start", "fork", "rewind"]


class Branch(Struct, frozen=True):
    """One way a session went. Numbers rise from 0, the branch it began with, but not always by one.

    ``parent`` is the branch it was forked from, and ``forked_after`` the number of the last message they share.
    """

    session_id: Id
    number: int
    parent: int | None
    forked_after: int
    origin: Origin
    label: str
    created_at: datetime


class Head(Struct, frozen=True):
    """The branch a session shows now."""

    branch: int
    view: View
    next_place: int
    blocks: int
    compactions: int = 0

    @property
    def last_seq(self) -> int:
        """The number of the last message, or 0."""
        return views.seq_of(self.next_place) - 1


queries = Queries(__package__, "branches.sql", Branch)


class AsyncBranches(TenantStore):
    """The branches of one tenant's sessions."""

    @writes
    async def fork(
        self, connection: Connection, session_id: Id, *, at: int | None = None, label: str | None = None
    ) -> Branch:
        """A new branch that starts after the message ``at``, or after the last one. The session goes on as it was.

        Takes as long for a long history as for a short one.

        Raises:
            NotFound: there is no such live session.
            InvalidInput: ``at`` is not the number of a message that the session shows, nor 0.
            Conflict: a summary that comes after ``at`` stands for something before it.
        """
        params = self._params(session_id, label)
        return await self._fork(connection, params, await lock_head(connection, params), at, "fork")

    @writes
    async def switch(self, connection: Connection, session_id: Id, number: int) -> Branch:
        """Show another branch, and append to it from now on.

        Raises:
            NotFound: there is no such live session, or it has no such branch.
        """
        params = self._params(session_id)
        head = await lock_head(connection, params)
        return await self._show(connection, params, head, _number(number))

    @writes
    async def rewind(self, connection: Connection, session_id: Id, *, to: int, label: str | None = None) -> Branch:
        """Go back to the message ``to``, or with 0 to the beginning, and go on from there on a branch of its own.

        What came after stays on the branch it is on; ``redo`` goes back to it.

        Raises:
            NotFound: there is no such live session.
            InvalidInput: ``to`` is not the number of a message that the session shows, nor 0.
            Conflict: a summary that comes after ``to`` stands for something before it.
        """
        params = self._params(session_id, label)
        head = await lock_head(connection, params)
        branch = await self._fork(connection, params, head, _number(to), "rewind")
        return await self._show(connection, params, head, branch.number)

    @writes
    async def redo(self, connection: Connection, session_id: Id) -> Branch:
        """Undo the rewind that made the branch the session shows: back to the branch that was rewound, to its end.

        What was appended since the rewind stays on the branch it is on.

        Raises:
            NotFound: there is no such live session.
            Conflict: the session does not show a branch that a rewind made.
        """
        params = self._params(session_id)
        head = await lock_head(connection, params)
        current = await self._find(connection, params, head.branch)
        if current.origin != "rewind" or current.parent is None:
            raise Conflict("there is no rewind to redo: the session shows a branch that none made; see branches.list")
        return await self._show(connection, params, head, current.parent)

    @reads
    async def list(
        self, connection: Connection, session_id: Id, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[Branch]:
        """The branches of a session in the order they were made, from the one it began with on.

        With ``limit``, a page; its ``next`` is the cursor of the one after.

        Raises:
            NotFound: there is no such live session.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        after = -1 if cursor is None else decode_cursor(cursor, "branches", int)[0]
        params = {**self._params(session_id), "after": after, "limit": rows_to_read(limit, limits)}
        rows = await queries.list.all(connection, params)
        if not rows:
            first = await self._first(connection, params)
            return Page([first] if cursor is None else [])
        branches = _branches(connection, rows)
        return page(branches, limit, limits, "branches", lambda last: encode_cursor("branches", last.number))

    @reads
    async def current(self, connection: Connection, session_id: Id) -> int:
        """The number of the branch the session shows; 0 is the one it began with.

        Raises:
            NotFound: there is no such live session.
        """
        return (await find_head(connection, self._params(session_id))).branch

    async def _fork(
        self, connection: Connection, params: dict[str, Any], head: Head, at: int | None, origin: Origin
    ) -> Branch:
        seq = head.last_seq if at is None else await self._message(connection, params, head, at)
        number = await take_block(connection, params)
        view = views.followed_by(views.until(head.view, seq), number, seq + 1)
        new = {
            "number": number,
            "parent": head.branch,
            "forked_after": seq,
            "origin": origin,
            "view": views.dump(view),
            "next_seq": views.first_of(number) + seq + 1,
        }
        await queries.remember.all(connection, params)
        return _branches(connection, await queries.create.all(connection, {**params, **new}))[0]

    async def _message(self, connection: Connection, params: dict[str, Any], head: Head, seq: int) -> int:
        """The number of a message that is there, with all that came before it: one that was compacted away has no before and
        after any more, and one that was kept in the middle of what was compacted has its before in a summary after it."""
        if _number(seq) in (0, head.last_seq):
            return seq
        place = views.place_of(head.view, seq)
        if place is None or await queries.message.one(connection, {**params, "place": place}) is None:
            raise InvalidInput(
                f"the session shows no message {seq}: take the number of one in messages.list, or 0 for the beginning"
            )
        if head.compactions:
            await self._check_summaries(connection, params, head, seq)
        return seq

    async def _check_summaries(self, connection: Connection, params: dict[str, Any], head: Head, seq: int) -> None:
        for event_id, place in await queries.summarised_later.all(connection, {**params, "at": seq}):
            if views.shows(head.view, place):
                raise Conflict(
                    f"what came before message {seq} was compacted away, and the summary comes after it:"
                    f" roll that compaction back first: {event_id}"
                )

    async def _show(self, connection: Connection, params: dict[str, Any], head: Head, number: int) -> Branch:
        """Leave the branch that is shown, as it is now, for another one."""
        if number == head.branch:
            return await self._find(connection, params, number)
        await queries.remember.all(connection, params)
        row = await queries.find.one(connection, {**params, "number": number})
        if row is None:
            raise NotFound(f"session {params['session_id']} has no branch {number}")
        # Counted anew, so that nothing done to shared messages meanwhile can be missed.
        count, tokens = await count_view(connection, params, views.load(row[-2]))
        shown = {"number": number, "view": row[-2], "next_seq": row[-1], "message_count": count, "tokens": tokens}
        await queries.show.all(connection, {**params, **shown})
        return _branches(connection, [row[:-2]])[0]

    async def _find(self, connection: Connection, params: dict[str, Any], number: int) -> Branch:
        """A branch that is there; only the first may have no row yet."""
        row = await queries.find.one(connection, {**params, "number": number})
        return await self._first(connection, params) if row is None else _branches(connection, [row[:-2]])[0]

    async def _first(self, connection: Connection, params: dict[str, Any]) -> Branch:
        row = await queries.first.one(connection, params)
        if row is None:
            raise _missing(params)
        return _branches(connection, [row])[0]

    def _params(self, session_id: str, label: str | None = None) -> dict[str, Any]:
        now = self._scope.clock.now_us()
        return self._scope.params(
            session_id=parse_id(session_id, "session id"),
            label="" if label is None else scopes.name(label, "label", self._scope.limits),
            now_at=now,
            now_minute=now // MINUTE_US,
        )


class Branches(Blocking[AsyncBranches]):
    """The branches of one tenant's sessions."""

    fork = blocking(AsyncBranches.fork)
    switch = blocking(AsyncBranches.switch)
    rewind = blocking(AsyncBranches.rewind)
    redo = blocking(AsyncBranches.redo)
    list = blocking(AsyncBranches.list)
    current = blocking(AsyncBranches.current)


async def lock_head(connection: Connection, params: dict[str, Any]) -> Head:
    """The branch a live session shows, held until the transaction ends; for other stores too.

    Raises:
        NotFound: there is no such live session.
    """
    return _head(await queries.lock.one(connection, params), params)


async def find_head(connection: Connection, params: dict[str, Any]) -> Head:
    """The same, without holding it."""
    return _head(await queries.head.one(connection, params), params)


async def rewind_to(
    connection: Connection,
    branches: AsyncBranches,
    session_id: str,
    *,
    after: int | None = None,
    before: int | None = None,
) -> tuple[int, int]:
    """Have a session go on after the message at one place, or before that at another; for other stores too.

    Answers with the branches it showed and shows; the same where nothing came after, or neither place is given.

    Raises:
        NotFound: there is no such live session.
        Conflict: the session no longer shows that place, or what stands before it.
    """
    params = branches._params(session_id)
    head = await lock_head(connection, params)
    place = before if after is None else after
    if place is None:
        return head.branch, head.branch
    seq = views.seq_of(place) - (after is None)
    if views.place_of(head.view, views.seq_of(place)) != place:
        raise Conflict("the session shows another branch than the one that step was on: switch to it first")
    if seq == head.last_seq:
        return head.branch, head.branch
    try:
        branch = await branches._fork(connection, params, head, seq, "rewind")
    except InvalidInput as error:
        raise Conflict(f"{error}; if it was compacted away, roll that back first") from error
    await branches._show(connection, params, head, branch.number)
    return head.branch, branch.number


async def show_branch(connection: Connection, branches: AsyncBranches, session_id: str, number: int) -> None:
    """Have a session show a branch; for other stores too.

    Raises:
        NotFound: there is no such live session, or it has no such branch.
    """
    params = branches._params(session_id)
    await branches._show(connection, params, await lock_head(connection, params), number)


async def take_block(connection: Connection, params: dict[str, Any]) -> int:
    """A block of the session's log that nothing has been written to; for other stores too.

    Raises:
        LimitExceeded: the session has no more.
    """
    row = await queries.take_block.one(connection, params)
    assert row is not None
    if row[0] >= views.MAX_BLOCKS:
        raise LimitExceeded(f"a session has room for {views.MAX_BLOCKS:,} branches and compactions; fork another one")
    return int(row[0])


async def shared_places(connection: Connection, params: dict[str, Any], branch: int) -> Sequence[View]:
    """What the other branches of a session show; for stores that would take messages out of the log."""
    return [views.load(row[0]) for row in await queries.others.all(connection, {**params, "number": branch})]


def _head(row: Row | None, params: dict[str, Any]) -> Head:
    if row is None:
        raise _missing(params)
    return Head(row[0], views.load(row[1]), row[2], row[3], row[4])


def _missing(params: dict[str, Any]) -> NotFound:
    return NotFound(f"there is no session {params['session_id']} here")


def _branches(connection: Connection, rows: Sequence[Row]) -> list[Branch]:
    return mapper(Branch, connection.dialect)(rows)


def _number(number: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InvalidInput(f"messages and branches have whole numbers from 0 on, not {number!r}")
    return min(number, views.LAST)
