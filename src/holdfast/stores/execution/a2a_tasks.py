"""Tasks of the A2A protocol: what an agent was asked, how far it is, and what came of it.

An A2A server saves a task again and again while it grows: with every message of its history and every part of its artifacts, the
whole task. Here each of those elements lies by itself and is written once; a save writes what is new or changed, and a *frame*:
the task without them. What comes back is what was saved, as JSON has it, in the order of its keys too. The store reads
nothing into a task: it knows its lists called ``history`` and ``artifacts``, and the lists called ``parts`` in the latter.

Tasks of one ``user`` are not seen by another, nor is it seen that they are there: each user has ids of their own. Deleting hides
a task with its push configurations and frees its id; ``restore`` undoes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Annotated, Any

from msgspec import Struct

from ...clock import MINUTE_US, to_us
from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.filters import id_list
from ...core.objects import SHORT_BYTES, digest_of
from ...core.paging import Page, after_clause, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.rows import Column, mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection
from ...errors import AlreadyExists, Conflict, InvalidInput, NotFound
from ...ids import Id

WHOLE = -1
"""The part of an element that is the element itself."""
Place = tuple[str, int, int]
"""Where an element lies: in which list, at which place of it, and which part of that it is."""


class A2ATask(Struct, frozen=True):
    """A task as it was saved last."""

    id: str
    context_id: str
    user: str
    state: str
    state_at: datetime
    task: dict[str, Any]
    created_at: datetime
    updated_at: datetime


class TaskFrame(Struct, frozen=True):
    """A task without its elements; where a list of them stood is how many there are."""

    number: Annotated[Id, Column("id")]
    id: Annotated[str, Column("task_id")]
    context_id: str
    user: Annotated[str, Column("user_id")]
    state: str
    state_at: datetime
    frame: dict[str, Any]
    created_at: datetime
    updated_at: datetime


queries = Queries(__package__, "a2a_tasks.sql", TaskFrame)


class AsyncA2ATasks(TenantStore):
    """The A2A tasks of one tenant. Those of one ``user`` are not seen by another."""

    @writes
    async def save(
        self,
        connection: Connection,
        task_id: str,
        task: Mapping[str, Any],
        *,
        context_id: str = "",
        state: str = "",
        state_at: datetime | None = None,
        user: str | None = None,
    ) -> None:
        """Save a task in place of what it was before. What has not changed is not written again.

        Lists are in the order of ``state_at``, which is now unless the caller says otherwise.

        The user's live session whose key is the ``context_id``, if there is one, counts as used.

        Raises:
            InvalidInput: its ``history`` or ``artifacts`` are neither a list nor nothing.
            InvalidText: it is not JSON.
            LimitExceeded: one of its elements, or what is left of it, is over ``content_bytes``.
        """
        limits, now = self._scope.limits, self._scope.clock.now_us()
        frame, elements = taken_apart(task)
        params = self._at(task_id, user) | {
            "id": self._scope.ids.new(),
            "context_id": scopes.free_text(context_id, "context id", limits, limit="key_bytes"),
            "state": scopes.free_text(state, "state", limits, limit="name_bytes"),
            "state_at": now if state_at is None else _moment(state_at, "state_at"),
            "frame": self._json(frame, "task"),
            "now_at": now,
            "now_minute": now // MINUTE_US,
        }
        bodies = {place: self._json(body, "an element of a task") for place, body in elements.items()}
        limits.check("batch_rows", len(bodies), "elements of a task")
        await register_tenant(connection, params)
        row = await queries.save.one(connection, params)
        assert row is not None
        await _write(connection, {**params, "id": row[0]}, bodies)
        if params["context_id"]:
            await queries.touch_session.all(connection, params)

    @reads
    async def find(self, connection: Connection, task_id: str, *, user: str | None = None) -> A2ATask | None:
        """One task, or ``None``."""
        rows = mapper(TaskFrame, connection.dialect)(await queries.find.all(connection, self._at(task_id, user)))
        return (await self._whole(connection, rows))[0] if rows else None

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        context_id: str | None = None,
        state: str | None = None,
        since: datetime | None = None,
        user: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[A2ATask]:
        """Tasks, the one whose state is newest first; all, or those of a context, in a state, whose state is not older than a
        moment. With ``limit``, a page.

        Raises:
            InvalidFilter: the cursor is not of this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(user_id=self._user(user), limit=rows_to_read(limit, limits))
        clause = self._narrowed(context_id, state, since, params) + after_clause(
            cursor, "a2a_tasks", {"state_at": "time", "task_id": "text"}, params, connection.dialect
        )
        index = "a2a_tasks_by_recency" if context_id is None else "a2a_tasks_by_context"
        rows = await queries.list.all(connection, params, clause, index)
        frames = page(mapper(TaskFrame, connection.dialect)(rows), limit, limits, "tasks", _cursor)
        return Page(await self._whole(connection, frames), frames.next)

    @reads
    async def count(
        self,
        connection: Connection,
        *,
        context_id: str | None = None,
        state: str | None = None,
        since: datetime | None = None,
        user: str | None = None,
    ) -> int:
        """How many tasks a list would have."""
        params = self._scope.params(user_id=self._user(user))
        row = await queries.count.one(connection, params, self._narrowed(context_id, state, since, params))
        return int(row[0]) if row else 0

    @writes
    async def delete(self, connection: Connection, task_id: str, *, user: str | None = None) -> bool:
        """Hide a task with its push configurations; whether it was there. Its id is free at once; ``restore`` undoes it."""
        params = self._at(task_id, user) | {"now_at": self._scope.clock.now_us()}
        row = await queries.delete.one(connection, params)
        if row is None:
            return False
        await queries.delete_configs.all(connection, {**params, "deleted_with": row[0]})
        return True

    @writes
    async def restore(self, connection: Connection, task_id: str, *, user: str | None = None) -> A2ATask:
        """Bring the task that was deleted last under this id back as it was, with its push configurations.

        Raises:
            NotFound: none was deleted.
            Conflict: there is another task with this id by now.
        """
        params = self._at(task_id, user)
        deleted = await queries.last_deleted.one(connection, params)
        if deleted is None:
            raise NotFound(f"there is no deleted task {task_id!r} here")
        params |= {"id": deleted[0], "deleted_with": deleted[1]}
        try:
            async with connection.savepoint():
                row = await queries.restore.one(connection, params)
                await queries.restore_configs.all(connection, params)
        except AlreadyExists:
            raise Conflict(f"there is another task {task_id!r} by now; delete it first") from None
        if row is None:
            raise Conflict(f"task {task_id!r} was changed meanwhile; try again")
        return (await self._whole(connection, mapper(TaskFrame, connection.dialect)([row])))[0]

    @writes
    async def purge(self, connection: Connection, task_id: str, *, user: str | None = None) -> int:
        """Remove the task and all deleted ones with this id, with their push configurations, for good; how many those were."""
        params = self._at(task_id, user)
        await queries.purge_items.all(connection, params)
        await queries.purge_configs.all(connection, params)
        return len(await queries.purge.all(connection, params))

    async def _whole(self, connection: Connection, frames: Sequence[TaskFrame]) -> Sequence[A2ATask]:
        if not frames:
            return []
        ids = id_list([each.number for each in frames], connection.dialect)
        rows = await queries.items_of_many.all(connection, self._scope.params(ids=ids))
        found = {number: [row[1:] for row in items] for number, items in groupby(rows, key=lambda row: str(row[0]))}
        return [_task(each, found.get(each.number, [])) for each in frames]

    def _at(self, task_id: str, user: str | None) -> dict[str, Any]:
        name = scopes.name(task_id, "task id", self._scope.limits)
        return self._scope.params(task_id=name, user_id=self._user(user))

    def _user(self, user: str | None) -> str:
        return "" if user is None else scopes.name(user, "user", self._scope.limits)

    def _json(self, value: object, what: str) -> str:
        stored = text.dump(value, depth=self._scope.limits.json_depth)
        self._scope.limits.check("content_bytes", text.size(stored), what)
        return stored

    def _narrowed(
        self, context_id: str | None, state: str | None, since: datetime | None, params: dict[str, Any]
    ) -> str:
        clause, limits = "", self._scope.limits
        if context_id is not None:
            params["context_id"] = scopes.free_text(context_id, "context id", limits, limit="key_bytes")
            clause += "\n  AND context_id = :context_id"
        if state is not None:
            params["state"] = scopes.free_text(state, "state", limits, limit="name_bytes")
            clause += "\n  AND state = :state"
        if since is not None:
            params["since_at"] = _moment(since, "since")
            clause += "\n  AND state_at >= :since_at"
        return clause


class A2ATasks(Blocking[AsyncA2ATasks]):
    """The A2A tasks of one tenant. Those of one ``user`` are not seen by another."""

    save = blocking(AsyncA2ATasks.save)
    find = blocking(AsyncA2ATasks.find)
    list = blocking(AsyncA2ATasks.list)
    count = blocking(AsyncA2ATasks.count)
    delete = blocking(AsyncA2ATasks.delete)
    restore = blocking(AsyncA2ATasks.restore)
    purge = blocking(AsyncA2ATasks.purge)


def taken_apart(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[Place, Any]]:
    """The frame of a task, and its elements by where they lie.

    Raises:
        InvalidInput: it is not a dictionary, or one of its lists is none.
    """
    if not isinstance(task, Mapping) or not all(isinstance(key, str) for key in task):
        raise InvalidInput("a task is a dictionary with string keys")
    frame = dict(task)
    elements: dict[Place, Any] = {}
    for name in ("history", "artifacts"):
        found = frame.get(name)
        if found is None:
            continue
        if not isinstance(found, (list, tuple)):
            raise InvalidInput(f"the {name} of a task is a list, not {type(found).__name__}")
        frame[name] = len(found)
        for place, element in enumerate(found):
            elements.update(_parts(name, place, element))
    return frame, elements


def _parts(name: str, place: int, element: Any) -> Iterator[tuple[Place, Any]]:
    """An element, and apart from it the parts that it consists of, if it is an artifact: it grows by them."""
    parts = element.get("parts") if name == "artifacts" and isinstance(element, Mapping) else None
    if parts is None:
        yield (name, place, WHOLE), element
        return
    if not isinstance(parts, (list, tuple)):
        raise InvalidInput(f"the parts of an artifact are a list, not {type(parts).__name__}")
    yield (name, place, WHOLE), {**element, "parts": len(parts)}
    for number, part in enumerate(parts):
        yield (name, place, number), part


def put_together(frame: Mapping[str, Any], elements: Sequence[tuple[str, int, int, Any]]) -> dict[str, Any]:
    """The task again; its elements come in order."""
    task = dict(frame)
    for name in ("history", "artifacts"):
        if task.get(name) is not None:
            task[name] = []
    for name, _, part, body in elements:
        if part != WHOLE:
            task[name][-1]["parts"].append(body)
            continue
        task[name].append(body)
        if name == "artifacts" and isinstance(body, dict) and body.get("parts") is not None:
            body["parts"] = []
    return task


async def _write(connection: Connection, params: dict[str, Any], bodies: Mapping[Place, str]) -> None:
    """Write the elements that differ from what is there, and remove those that are no longer."""
    digests = {place: digest_of(body.encode(), SHORT_BYTES) for place, body in bodies.items()}
    rows = await queries.digests.all(connection, params)
    there = {(row[0], row[1], row[2]): bytes(row[3]) for row in rows}
    changed = dict(digests.items() - there.items())
    if changed:
        await queries.put_item.many(
            connection,
            [{**params, **_place(each), "digest": digests[each], "body": bodies[each]} for each in changed],
        )
    gone = [place for place in there if place not in digests]
    if gone:
        await queries.delete_item.many(connection, [{**params, **_place(each)} for each in gone])


def _place(place: Place) -> dict[str, Any]:
    return {"list": place[0], "place": place[1], "part": place[2]}


def _task(frame: TaskFrame, rows: Sequence[Sequence[Any]]) -> A2ATask:
    bodies = text.load_many([row[3] for row in rows])
    elements = [(row[0], row[1], row[2], body) for row, body in zip(rows, bodies, strict=True)]
    return A2ATask(
        frame.id,
        frame.context_id,
        frame.user,
        frame.state,
        frame.state_at,
        put_together(frame.frame, elements),
        frame.created_at,
        frame.updated_at,
    )


def _moment(value: object, what: str) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{what} is a datetime with a time zone")
    return to_us(value)


def _cursor(frame: TaskFrame) -> str:
    return encode_cursor("a2a_tasks", to_us(frame.state_at), frame.id)
