"""The ``TaskStore`` of the A2A server.

A server saves the whole task at every change; Holdfast stores each message and each part of an artifact once. A task belongs to
the user that the SDK's ``owner_resolver`` returns, and is invisible to other users. A deleted task can be restored with
``tenant.a2a_tasks.restore``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.server.tasks import TaskStore
from a2a.types.a2a_pb2 import ListTasksRequest, ListTasksResponse, Task, TaskState
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.timestamp_pb2 import Timestamp

from holdfast import AsyncTenantHandle, TenantHandle
from holdfast.errors import InvalidFilter
from holdfast.types import A2ATask

from .loop_bridge import awaitable_store

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
"""The time of tasks whose agent provides no timestamp of their state: they are at the end of a list."""


class HoldfastTaskStore(TaskStore):
    """Tasks of an A2A server, durable when ``save`` returns.

    Args:
        where: an asynchronous handle, ``AsyncHoldfast(...).tenant("acme")``, for one event loop; or an address or a synchronous
            handle, ``Holdfast(...).tenant("acme")``, for any number of event loops.
        tenant: the tenant, if ``where`` is an address.
        owner_resolver: returns the user of a call, as in the stores of the SDK.
    """

    def __init__(
        self,
        where: str | TenantHandle | AsyncTenantHandle,
        *,
        tenant: str = "default",
        owner_resolver: OwnerResolver = resolve_user_scope,
    ) -> None:
        self._tasks, self._owner = awaitable_store(where, tenant, "a2a_tasks"), owner_resolver

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Save a task, replacing its previous content."""
        has_time = task.HasField("status") and task.status.HasField("timestamp")
        await self._tasks.save(
            task.id,
            MessageToDict(task),
            context_id=task.context_id,
            state=TaskState.Name(task.status.state),
            state_at=_moment(task.status.timestamp) if has_time else _NEVER,
            user=self._user(context),
        )

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return the caller's task with this id, or ``None``."""
        if not task_id:
            return None
        row = await self._tasks.find(task_id, user=self._user(context))
        return None if row is None else _task(row)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks, the most recent state first.

        Raises:
            InvalidParamsError: the page token does not belong to this list.
        """
        filters: dict[str, Any] = {
            "context_id": params.context_id or None,
            "state": TaskState.Name(params.status) if params.status else None,
            "since": _moment(params.status_timestamp_after) if params.HasField("status_timestamp_after") else None,
            "user": self._user(context),
        }
        size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        try:
            page = await self._tasks.list(**filters, limit=size, cursor=params.page_token or None)
        except InvalidFilter as error:
            raise InvalidParamsError(f"Invalid page token: {params.page_token}") from error
        return ListTasksResponse(
            tasks=[_task(row) for row in page],
            next_page_token=page.next,
            total_size=await self._tasks.count(**filters),
            page_size=size,
        )

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete the caller's task with this id, restorably. Deleting a missing task is not an error."""
        await self._tasks.delete(task_id, user=self._user(context))

    def _user(self, context: ServerCallContext) -> str | None:
        return self._owner(context) or None


def _task(row: A2ATask) -> Task:
    return ParseDict(row.task, Task(), ignore_unknown_fields=True)


def _moment(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)
