"""Branches: other ways a conversation could have gone on.

A fork shares everything up to the message it starts after with the branch it came from; nothing is copied, however long the
history is (``views`` says how). A session shows one branch at a time, and appends go to the end of that one. ``rewind`` is a
fork that is switched to at once, so what came after is not lost: ``redo`` goes back to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from ...clock import MINUTE_US
from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
from ...core.queries import Queries
from ...core.rows import mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import Conflict, InvalidInput, NotFound
from ...ids import Id
from ...ids import parse as parse_id
from . import views
from .log_reading import count_view, view_of
from .views import View

Origin = Literal["start", "fork", "rewind"]


class Branch(Struct, frozen=True):
    """One way a session went. ``forked_after`` is the last message it shares with its parent."""

    session_id: Id
    number: int
    parent: int | None
    forked_after: int
    origin: Origin
    label: str
    created_at: datetime
    updated_at: datetime


class Head(Struct, frozen=True):
    """The branch a session shows now."""

    branch: int
    view: View
    next_place: int
    blocks: int

    @property
    def last_seq(self) -> int:
        """The number of the last message, or 0."""
        return views.seq_of(self.next_place) - 1


queries = Queries(__package__, "branches.sql", Branch)


class AsyncBranches(TenantStore):
    """The branches of one tenant's sessions."""

    @writes
    async def fork(
        self, connection: Connection, session_id: str, *, at: int | None = None, label: str | None = None
    ) -> Branch:
        """A new branch that starts after the message ``at``, or after the last one. The session goes on as it was.

        Raises:
            NotFound: there is no such live session.
            InvalidInput: there is no message ``at`` in the branch the session shows.
        """
        params = self._params(session_id)
        head = await lock_head(connection, params)
        return await self._fork(connection, params, head, at, origin="fork", label=label)

    @writes
    async def switch(self, connection: Connection, session_id: str, number: int) -> Branch:
        """Show another branch, and append to it from now on.

        Raises:
            NotFound: there is no such live session, or it has no such branch.
        """
        params = self._params(session_id)
        head = await lock_head(connection, params)
        await self._remember(connection, params, head)
        return await self._show(connection, params, number)

    @writes
    async def rewind(self, connection: Connection, session_id: str, *, to: int, label: str | None = None) -> Branch:
        """Go back to the message ``to``, or with 0 to the beginning, and go on from there on a branch of its own.

        What came after stays on the branch it is on; ``redo`` goes back to it.

        Raises:
            NotFound: there is no such live session.
            InvalidInput: there is no message ``to`` in the branch the session shows.
        """
        params = self._params(session_id)
        head = await lock_head(connection, params)
        branch = await self._fork(connection, params, head, to, origin="rewind", label=label)
        return await self._show(connection, params, branch.number)

    @writes
    async def redo(self, connection: Connection, session_id: str) -> Branch:
        """Undo the rewind that made the branch the session shows: back to the branch that was rewound.

        Raises:
            NotFound: there is no such live session.
            Conflict: the session does not show a branch that a rewind made.
        """
        params = self._params(session_id)
        head = await lock_head(connection, params)
        await self._remember(connection, params, head)
        row = await queries.find.one(connection, {**params, "number": head.branch})
        assert row is not None
        current = mapper(Branch, connection.dialect)([row[:-2]])[0]
        if current.origin != "rewind" or current.parent is None:
            raise Conflict("there is no rewind to redo: the session shows a branch that none made")
        return await self._show(connection, params, current.parent)

    @reads
    async def list(self, connection: Connection, session_id: str) -> Sequence[Branch]:
        """All branches of a session, in the order they were made; empty as long as it was never forked.

        Raises:
            NotFound: there is no such live session.
        """
        params = self._params(session_id)
        await view_of(connection, params)
        return mapper(Branch, connection.dialect)(await queries.list.all(connection, params))

    @reads
    async def current(self, connection: Connection, session_id: str) -> int:
        """The number of the branch the session shows; 0 is the one it began with.

        Raises:
            NotFound: there is no such live session.
        """
        return (await find_head(connection, self._params(session_id))).branch

    async def _fork(
        self,
        connection: Connection,
        params: dict[str, Any],
        head: Head,
        at: int | None,
        *,
        origin: Origin,
        label: str | None,
    ) -> Branch:
        seq = _message(at, head)
        number = await take_block(connection, params)
        await self._remember(connection, params, head)
        view = views.followed_by(views.until(head.view, seq), number, seq + 1)
        new = {
            "number": number,
            "parent": head.branch,
            "forked_after": seq,
            "origin": origin,
            "label": "" if label is None else scopes.name(label, "label", self._scope.limits),
            "view": views.dump(view),
            "next_seq": views.first_of(number) + seq + 1,
        }
        await queries.create.all(connection, {**params, **new})
        return await self._find(connection, params, number)

    async def _remember(self, connection: Connection, params: dict[str, Any], head: Head) -> None:
        now = {"number": head.branch, "view": views.dump(head.view), "next_seq": head.next_place}
        await queries.remember.all(connection, {**params, **now})

    async def _show(self, connection: Connection, params: dict[str, Any], number: int) -> Branch:
        row = await queries.find.one(connection, {**params, "number": _number(number)})
        if row is None:
            raise NotFound(f"session {params['session_id']} has no branch {number}")
        view = views.load(row[-2])
        # Counted anew, so that nothing done to shared messages meanwhile can be missed.
        count, tokens = await count_view(connection, params, view)
        shown = {"number": number, "view": row[-2], "next_seq": row[-1], "message_count": count, "tokens": tokens}
        await queries.show.all(connection, {**params, **shown})
        return mapper(Branch, connection.dialect)([row[:-2]])[0]

    async def _find(self, connection: Connection, params: dict[str, Any], number: int) -> Branch:
        row = await queries.find.one(connection, {**params, "number": number})
        assert row is not None
        return mapper(Branch, connection.dialect)([row[:-2]])[0]

    def _params(self, session_id: str) -> dict[str, Any]:
        now = self._scope.clock.now_us()
        session = parse_id(session_id, "session id")
        return self._scope.params(session_id=session, now_at=now, now_minute=now // MINUTE_US)


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


async def take_block(connection: Connection, params: dict[str, Any]) -> int:
    """A block of the session's log that nothing has been written to; for other stores too."""
    row = await queries.take_block.one(connection, params)
    assert row is not None
    return int(row[0])


async def shared_places(connection: Connection, params: dict[str, Any], branch: int) -> Sequence[View]:
    """What the other branches of a session show; for stores that would take messages out of the log."""
    return [views.load(row[0]) for row in await queries.others.all(connection, {**params, "number": branch})]


def _head(row: Row | None, params: dict[str, Any]) -> Head:
    if row is None:
        raise NotFound(f"there is no session {params['session_id']} here")
    return Head(row[0], views.load(row[1]), row[2], row[3])


def _message(seq: int | None, head: Head) -> int:
    if seq is None:
        return head.last_seq
    if not isinstance(seq, int) or isinstance(seq, bool) or not 0 <= seq <= head.last_seq:
        raise InvalidInput(f"the session has messages up to {head.last_seq}; {seq!r} is not one of them, nor 0")
    return seq


def _number(number: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**22:
        raise InvalidInput(f"a branch is a whole number from 0 on, not {number!r}")
    return number
