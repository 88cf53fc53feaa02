"""Tasks of the A2A protocol: the request to an agent, its progress and its results.

An A2A server saves the whole task again and again while it grows, with every message of its history and every part of its
artifacts. The store writes each of those elements once, as a row of its own: a save writes the new and changed elements, and a
*frame*: the task without its elements. A read returns the task as it was saved, as JSON and with its keys in the same order.
The store does not interpret a task: it knows only its lists ``history`` and ``artifacts``, and the list ``parts`` of an artifact.

Tasks belong to a ``user`` and are invisible to other users, and each user has a separate space of ids. Deleting hides a task with
its push configurations and frees its id; ``restore`` undoes it.
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
"""The part number of an element without its parts."""
ElementKey = tuple[str, int, int]
"""The key of an element: the list's name, the index in that list, and the part of that element."""


class A2ATask(Struct, frozen=True):
    """A task as it was last saved."""

    id: str
    context_id: str
    user: str
    state: str
    state_at: datetime
    task: dict[str, Any]
    created_at: datetime
    updated_at: datetime


class TaskFrame(Struct, frozen=True):
    """A task without its elements; each of their lists is replaced by its length."""

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
    """The A2A tasks of one tenant. The tasks of a ``user`` are invisible to other users."""

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
        """Create or replace a task. Unchanged elements are not written again.

        Lists are ordered by ``state_at``, which defaults to the current time.

        If the user has a live session whose key is the ``context_id``, it counts as used.

        Raises:
            InvalidInput: ``history``, ``artifacts`` or the parts of an artifact are not a list.
            InvalidText: the task is not JSON.
            LimitExceeded: its frame or an element is over ``content_bytes``, or it has more than ``batch_rows`` elements.
        """
        limits, now = self._scope.limits, self._scope.clock.now_us()
        frame, elements = split_task(task)
        params = self._at(task_id, user) | {
            "id": self._scope.ids.new(),
            "context_id": scopes.free_text(context_id, "context id", limits, limit="key_bytes"),
            "state": scopes.free_text(state, "state", limits, limit="name_bytes"),
            "state_at": now if state_at is None else _time_us(state_at, "state_at"),
            "frame": self._json(frame, "task"),
            "now_at": now,
            "now_minute": now // MINUTE_US,
        }
        bodies = {key: self._json(body, "an element of a task") for key, body in elements.items()}
        limits.check("batch_rows", len(bodies), "elements of a task")
        await register_tenant(connection, params)
        row = await queries.save.one(connection, params)
        assert row is not None
        await _write_elements(connection, {**params, "id": row[0]}, bodies)
        if params["context_id"]:
            await queries.touch_session.all(connection, params)

    @reads
    async def find(self, connection: Connection, task_id: str, *, user: str | None = None) -> A2ATask | None:
        """Return one task, or ``None``."""
        rows = mapper(TaskFrame, connection.dialect)(await queries.find.all(connection, self._at(task_id, user)))
        return (await self._load(connection, rows))[0] if rows else None

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
        """List tasks, the newest ``state_at`` first: all, or those of a context, in a state, or not older than ``since``.

        With ``limit``, one page.

        Raises:
            InvalidFilter: the cursor is not from this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(user_id=self._user(user), limit=rows_to_read(limit, limits))
        clause = self._conditions(context_id, state, since, params) + after_clause(
            cursor, "a2a_tasks", {"state_at": "time", "task_id": "text"}, params, connection.dialect
        )
        index = "a2a_tasks_by_recency" if context_id is None else "a2a_tasks_by_context"
        rows = await queries.list.all(connection, params, clause, index)
        frames = page(mapper(TaskFrame, connection.dialect)(rows), limit, limits, "tasks", _cursor)
        return Page(await self._load(connection, frames), frames.next)

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
        """Count the tasks that ``list`` would return."""
        params = self._scope.params(user_id=self._user(user))
        row = await queries.count.one(connection, params, self._conditions(context_id, state, since, params))
        return int(row[0]) if row else 0

    @writes
    async def delete(self, connection: Connection, task_id: str, *, user: str | None = None) -> bool:
        """Hide a task with its push configurations, and return whether it existed. Its id is free then; ``restore`` undoes it."""
        params = self._at(task_id, user) | {"now_at": self._scope.clock.now_us()}
        row = await queries.delete.one(connection, params)
        if row is None:
            return False
        await queries.delete_configs.all(connection, {**params, "deleted_with": row[0]})
        return True

    @writes
    async def restore(self, connection: Connection, task_id: str, *, user: str | None = None) -> A2ATask:
        """Restore the task that was last deleted under this id, with its push configurations.

        Raises:
            NotFound: no task with this id was deleted.
            Conflict: another task has this id now.
        """
        params = self._at(task_id, user)
        deleted = await queries.last_deleted.one(connection, params)
        if deleted is None:
            raise NotFound(f"no deleted task {task_id!r} exists", noun="task", key=task_id)
        params |= {"id": deleted[0], "deleted_with": deleted[1]}
        try:
            async with connection.savepoint():
                row = await queries.restore.one(connection, params)
                await queries.restore_configs.all(connection, params)
        except AlreadyExists:
            raise Conflict(f"another task {task_id!r} exists now; delete it first", reason="id_taken") from None
        if row is None:
            raise Conflict(f"task {task_id!r} was changed concurrently; try again", reason="changed")
        return (await self._load(connection, mapper(TaskFrame, connection.dialect)([row])))[0]

    @writes
    async def purge(self, connection: Connection, task_id: str, *, user: str | None = None) -> int:
        """Permanently remove the task and all deleted ones with this id, with their push configurations; return how many."""
        params = self._at(task_id, user)
        await queries.purge_items.all(connection, params)
        await queries.purge_configs.all(connection, params)
        return len(await queries.purge.all(connection, params))

    async def _load(self, connection: Connection, frames: Sequence[TaskFrame]) -> Sequence[A2ATask]:
        """Read the elements of the tasks and return the whole tasks."""
        if not frames:
            return []
        ids = id_list([frame.number for frame in frames], connection.dialect)
        rows = await queries.items_of_many.all(connection, self._scope.params(ids=ids))
        items_by_task = {task: [row[1:] for row in items] for task, items in groupby(rows, key=lambda row: str(row[0]))}
        return [_task(frame, items_by_task.get(frame.number, [])) for frame in frames]

    def _at(self, task_id: str, user: str | None) -> dict[str, Any]:
        name = scopes.name(task_id, "task id", self._scope.limits)
        return self._scope.params(task_id=name, user_id=self._user(user))

    def _user(self, user: str | None) -> str:
        return "" if user is None else scopes.name(user, "user", self._scope.limits)

    def _json(self, value: object, label: str) -> str:
        encoded = text.dump(value, depth=self._scope.limits.json_depth)
        self._scope.limits.check("content_bytes", text.size(encoded), label)
        return encoded

    def _conditions(
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
            params["since_at"] = _time_us(since, "since")
            clause += "\n  AND state_at >= :since_at"
        return clause


class A2ATasks(Blocking[AsyncA2ATasks]):
    """The A2A tasks of one tenant. The tasks of a ``user`` are invisible to other users."""

    save = blocking(AsyncA2ATasks.save)
    find = blocking(AsyncA2ATasks.find)
    list = blocking(AsyncA2ATasks.list)
    count = blocking(AsyncA2ATasks.count)
    delete = blocking(AsyncA2ATasks.delete)
    restore = blocking(AsyncA2ATasks.restore)
    purge = blocking(AsyncA2ATasks.purge)


def split_task(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[ElementKey, Any]]:
    """Split a task into its frame and its elements.

    Raises:
        InvalidInput: it is not a dictionary, or one of its lists is not a list.
    """
    if not isinstance(task, Mapping) or not all(isinstance(key, str) for key in task):
        raise InvalidInput("a task must be a dictionary with string keys", field="task")
    frame = dict(task)
    elements: dict[ElementKey, Any] = {}
    for name in ("history", "artifacts"):
        items = frame.get(name)
        if items is None:
            continue
        if not isinstance(items, (list, tuple)):
            raise InvalidInput(f"the {name} of a task must be a list, not {type(items).__name__}", field=name)
        frame[name] = len(items)
        for index, element in enumerate(items):
            elements.update(_split_element(name, index, element))
    return frame, elements


def _split_element(name: str, index: int, element: Any) -> Iterator[tuple[ElementKey, Any]]:
    """Yield an element; for an artifact, which grows part by part, yield its parts separately."""
    parts = element.get("parts") if name == "artifacts" and isinstance(element, Mapping) else None
    if parts is None:
        yield (name, index, WHOLE), element
        return
    if not isinstance(parts, (list, tuple)):
        raise InvalidInput(f"the parts of an artifact must be a list, not {type(parts).__name__}", field="parts")
    yield (name, index, WHOLE), {**element, "parts": len(parts)}
    for number, part in enumerate(parts):
        yield (name, index, number), part


def join_task(frame: Mapping[str, Any], elements: Sequence[tuple[str, int, int, Any]]) -> dict[str, Any]:
    """Return the task of a frame and its elements, which must be in order."""
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


async def _write_elements(connection: Connection, params: dict[str, Any], bodies: Mapping[ElementKey, str]) -> None:
    """Write the new and changed elements of a task, and remove those that it no longer has."""
    digests = {key: digest_of(body.encode(), SHORT_BYTES) for key, body in bodies.items()}
    rows = await queries.digests.all(connection, params)
    old_digests = {(row[0], row[1], row[2]): bytes(row[3]) for row in rows}
    changed = dict(digests.items() - old_digests.items())
    if changed:
        await queries.put_item.many(
            connection,
            [{**params, **_key_params(key), "digest": digests[key], "body": bodies[key]} for key in changed],
        )
    removed = [key for key in old_digests if key not in digests]
    if removed:
        await queries.delete_item.many(connection, [{**params, **_key_params(key)} for key in removed])


def _key_params(key: ElementKey) -> dict[str, Any]:
    return {"list": key[0], "place": key[1], "part": key[2]}


def _task(frame: TaskFrame, rows: Sequence[Sequence[Any]]) -> A2ATask:
    bodies = text.load_many([row[3] for row in rows])
    elements = [(row[0], row[1], row[2], body) for row, body in zip(rows, bodies, strict=True)]
    return A2ATask(
        frame.id,
        frame.context_id,
        frame.user,
        frame.state,
        frame.state_at,
        join_task(frame.frame, elements),
        frame.created_at,
        frame.updated_at,
    )


def _time_us(value: object, field: str) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{field} must be a datetime with a time zone, not {value!r}", field=field)
    return to_us(value)


def _cursor(frame: TaskFrame) -> str:
    return encode_cursor("a2a_tasks", to_us(frame.state_at), frame.id)
