"""Branches: alternative continuations of a conversation.

A fork shares everything up to the message it starts after with the branch it was forked from; nothing is copied, however long the
history is (see ``views``). A session shows one branch at a time, and appends go to the end of that branch. ``rewind`` forks and
switches to the fork, so later messages are not lost: ``redo`` switches back to them.

A message that branches share is one message: changing or deleting it affects all of them. The id of a message is unique in its
session across branches, so an append that is repeated after a switch returns the first result, with the branch it is on.
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
    """One branch of a session. Numbers rise from 0, the first branch, but may have gaps.

    ``parent`` is the branch it was forked from, and ``forked_after`` the ``seq`` of the last message they share.
    """

    session_id: Id
    number: int
    parent: int | None
    forked_after: int
    origin: Origin
    label: str
    created_at: datetime


class BranchHead(Struct, frozen=True):
    """The branch that a session shows now."""

    branch: int
    view: View
    next_position: int
    blocks: int
    compactions: int = 0

    @property
    def last_seq(self) -> int:
        """The ``seq`` of the last message, or 0."""
        return views.seq_of(self.next_position) - 1


queries = Queries(__package__, "branches.sql", Branch)


class AsyncBranches(TenantStore):
    """The branches of one tenant's sessions."""

    @writes
    async def fork(
        self, connection: Connection, session_id: Id, *, at: int | None = None, label: str | None = None
    ) -> Branch:
        """Create a branch that starts after the message ``at``, or after the last one. The session keeps showing its branch.

        Takes the same time for a long history as for a short one.

        Raises:
            NotFound: no live session has this id.
            InvalidInput: ``at`` is neither the number of a message that the session shows, nor 0.
            Conflict: a summary that comes after ``at`` stands for messages before it.
        """
        params = self._params(session_id, label)
        return await self._fork(connection, params, await lock_head(connection, params), at, "fork")

    @writes
    async def switch(self, connection: Connection, session_id: Id, number: int) -> Branch:
        """Show another branch; appends go to it from now on.

        Raises:
            NotFound: no live session has this id, or the session has no such branch.
        """
        params = self._params(session_id)
        head = await lock_head(connection, params)
        return await self._switch_to(connection, params, head, _whole_number(number))

    @writes
    async def rewind(self, connection: Connection, session_id: Id, *, to: int, label: str | None = None) -> Branch:
        """Go back to the message ``to``, or to the beginning with 0, and continue from there on a new branch.

        Later messages stay on their branch; ``redo`` switches back to it.

        Raises:
            NotFound: no live session has this id.
            InvalidInput: ``to`` is neither the number of a message that the session shows, nor 0.
            Conflict: a summary that comes after ``to`` stands for messages before it.
        """
        params = self._params(session_id, label)
        head = await lock_head(connection, params)
        branch = await self._fork(connection, params, head, _whole_number(to), "rewind")
        return await self._switch_to(connection, params, head, branch.number)

    @writes
    async def redo(self, connection: Connection, session_id: Id) -> Branch:
        """Undo the rewind that made the current branch: switch back to the end of the branch that was rewound.

        Messages appended since the rewind stay on their branch.

        Raises:
            NotFound: no live session has this id.
            Conflict: the current branch was not made by a rewind.
        """
        params = self._params(session_id)
        head = await lock_head(connection, params)
        current = await self._find(connection, params, head.branch)
        if current.origin != "rewind" or current.parent is None:
            raise Conflict(
                "cannot redo: the current branch was not made by a rewind; see branches.list", reason="nothing_to_redo"
            )
        return await self._switch_to(connection, params, head, current.parent)

    @reads
    async def list(
        self, connection: Connection, session_id: Id, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[Branch]:
        """List the branches of a session in the order in which they were made, starting with the first branch.

        With ``limit``, a page; its ``next`` is the cursor of the next page.

        Raises:
            NotFound: no live session has this id.
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
        """Return the number of the branch that the session shows; 0 is the first branch.

        Raises:
            NotFound: no live session has this id.
        """
        return (await find_head(connection, self._params(session_id))).branch

    async def _fork(
        self, connection: Connection, params: dict[str, Any], head: BranchHead, at: int | None, origin: Origin
    ) -> Branch:
        seq = head.last_seq if at is None else await self._check_fork_point(connection, params, head, at)
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

    async def _check_fork_point(
        self, connection: Connection, params: dict[str, Any], head: BranchHead, seq: int
    ) -> int:
        """Check that a message can be forked after, and return its number.

        A message that was compacted away has no position in the history any more. One that was preserved among compacted messages
        may have its earlier history in a summary that comes after it.
        """
        if _whole_number(seq) in (0, head.last_seq):
            return seq
        position = views.position_of(head.view, seq)
        if position is None or await queries.message.one(connection, {**params, "place": position}) is None:
            raise InvalidInput(
                f"the session shows no message {seq}: use the seq of a message in messages.list, or 0 for the beginning",
                field="seq",
            )
        if head.compactions:
            await self._check_summaries(connection, params, head, seq)
        return seq

    async def _check_summaries(
        self, connection: Connection, params: dict[str, Any], head: BranchHead, seq: int
    ) -> None:
        for event_id, position in await queries.summarised_later.all(connection, {**params, "at": seq}):
            if views.shows(head.view, position):
                raise Conflict(
                    f"messages before message {seq} were compacted into a summary that comes after it:"
                    f" roll back compaction {event_id} first",
                    reason="compacted",
                )

    async def _switch_to(self, connection: Connection, params: dict[str, Any], head: BranchHead, number: int) -> Branch:
        """Save the state of the current branch, and show another one."""
        if number == head.branch:
            return await self._find(connection, params, number)
        await queries.remember.all(connection, params)
        row = await queries.find.one(connection, {**params, "number": number})
        if row is None:
            raise NotFound(f"session {params['session_id']} has no branch {number}", noun="branch", key=str(number))
        # Counted again, so that concurrent changes of shared messages are included.
        count, tokens = await count_view(connection, params, views.load(row[-2]))
        changes = {"number": number, "view": row[-2], "next_seq": row[-1], "message_count": count, "tokens": tokens}
        await queries.show.all(connection, {**params, **changes})
        return _branches(connection, [row[:-2]])[0]

    async def _find(self, connection: Connection, params: dict[str, Any], number: int) -> Branch:
        """Return a branch that exists; only the first branch may have no row yet."""
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


async def lock_head(connection: Connection, params: dict[str, Any]) -> BranchHead:
    """Return the current branch of a live session, locked until the transaction ends; also used by other stores.

    Raises:
        NotFound: no live session has this id.
    """
    return _head(await queries.lock.one(connection, params), params)


async def find_head(connection: Connection, params: dict[str, Any]) -> BranchHead:
    """``lock_head`` without the lock."""
    return _head(await queries.head.one(connection, params), params)


async def rewind_to(
    connection: Connection,
    branches: AsyncBranches,
    session_id: str,
    *,
    after: int | None = None,
    before: int | None = None,
) -> tuple[int, int]:
    """Continue a session after the message at one position, or before that at another; also used by other stores.

    Returns the old and the new branch; the same branch twice if no message came later, or if no position was given.

    Raises:
        NotFound: no live session has this id.
        Conflict: the session no longer shows that position, or the message before it.
    """
    params = branches._params(session_id)
    head = await lock_head(connection, params)
    position = before if after is None else after
    if position is None:
        return head.branch, head.branch
    seq = views.seq_of(position) - (after is None)
    if views.position_of(head.view, views.seq_of(position)) != position:
        raise Conflict(
            "the session shows another branch than the one of that step: switch to that branch first",
            reason="other_branch",
        )
    if seq == head.last_seq:
        return head.branch, head.branch
    try:
        branch = await branches._fork(connection, params, head, seq, "rewind")
    except InvalidInput as error:
        raise Conflict(
            f"{error}; if the message was compacted away, roll back that compaction first", reason="compacted"
        ) from error
    await branches._switch_to(connection, params, head, branch.number)
    return head.branch, branch.number


async def switch_branch(connection: Connection, branches: AsyncBranches, session_id: str, number: int) -> None:
    """Show another branch of a session; also used by other stores.

    Raises:
        NotFound: no live session has this id, or the session has no such branch.
    """
    params = branches._params(session_id)
    await branches._switch_to(connection, params, await lock_head(connection, params), number)


async def take_block(connection: Connection, params: dict[str, Any]) -> int:
    """Return an unused block of the session's log; also used by other stores.

    Raises:
        LimitExceeded: the session has used all of its blocks.
    """
    row = await queries.take_block.one(connection, params)
    assert row is not None
    if row[0] >= views.MAX_BLOCKS:
        raise LimitExceeded(
            f"a session can have {views.MAX_BLOCKS:,} branches and compactions; continue in another session",
            maximum=views.MAX_BLOCKS,
        )
    return int(row[0])


async def other_views(connection: Connection, params: dict[str, Any], branch: int) -> Sequence[View]:
    """Return the views of the other branches; for stores that are about to remove messages from the log."""
    return [views.load(row[0]) for row in await queries.others.all(connection, {**params, "number": branch})]


def _head(row: Row | None, params: dict[str, Any]) -> BranchHead:
    if row is None:
        raise _missing(params)
    return BranchHead(row[0], views.load(row[1]), row[2], row[3], row[4])


def _missing(params: dict[str, Any]) -> NotFound:
    return NotFound(f"session {params['session_id']} does not exist", noun="session", key=params["session_id"])


def _branches(connection: Connection, rows: Sequence[Row]) -> list[Branch]:
    return mapper(Branch, connection.dialect)(rows)


def _whole_number(number: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InvalidInput(f"messages and branches have whole numbers from 0 on, not {number!r}", field="number")
    return min(number, views.LAST)
