"""A2A tasks, which are saved as whole documents, and their push notification configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast import NewA2APushConfig, column
from holdfast.encryption import Secret
from holdfast.errors import InvalidInput, NotFound
from holdfast.types import A2APushConfig, A2ATask

from . import redaction
from .guest_access import guest_access
from .request import KagentRequest, route, success

_VERSIONS = ("0.3", "1.0")
_TASK = msgspec.json.Decoder(dict[str, Any])
_CONFIGS = "/api/tasks/{task_id}/pushNotificationConfigs"


@route("POST", "/api/tasks")
async def save_task(request: KagentRequest) -> Response:
    """Save a task, replacing the previous version. Its session need not exist."""
    _check_version(request)
    task = request.body(_TASK)
    id, context, status = task.get("id"), task.get("contextId"), task.get("status")
    if not isinstance(id, str) or not isinstance(context, str | None):
        raise InvalidInput("the id and contextId of a task must be text", field="id")
    state = status.get("state") if isinstance(status, Mapping) else None
    await request.tenant.a2a_tasks.save(
        id, task, context_id=context or "", state=state if isinstance(state, str) else "", user=request.user
    )
    return success(task, "Successfully created task", 201)


@route("GET", "/api/tasks/{task_id}")
async def get_task(request: KagentRequest) -> Response:
    """Get the last saved version of a task; secrets are hidden from guests."""
    _check_version(request)
    guest = await guest_access(request, writing=False)
    user = request.user if guest is None else guest.user
    saved = await request.tenant.a2a_tasks.find(request.names["task_id"], user=user)
    if saved is None or (guest is not None and saved.context_id != guest.session_key):
        raise NotFound("Task not found", noun="task", key=request.names["task_id"])
    task = saved.task if guest is None else redaction.task_for_guests(saved.task)
    return success(task, "Successfully retrieved task")


@route("DELETE", "/api/tasks/{task_id}")
async def delete_task(request: KagentRequest) -> Response:
    """Delete a task. If it does not exist, nothing happens."""
    await request.tenant.a2a_tasks.delete(request.names["task_id"], user=request.user)
    return Response(None, 204)


@route("POST", "/api/tasks/{task_id}/restore")
async def restore_task(request: KagentRequest) -> Response:
    """Restore the last deleted task with this id."""
    restored = await request.tenant.a2a_tasks.restore(request.names["task_id"], user=request.user)
    return success(restored.task, "Task restored successfully")


@route("GET", "/api/sessions/{session_id}/tasks")
async def list_tasks(request: KagentRequest) -> Response:
    """List the tasks of a session, the oldest first; secrets are hidden from guests."""
    _check_version(request)
    guest = await guest_access(request, writing=False)
    user = request.user if guest is None else guest.user
    saved = await request.tenant.a2a_tasks.list(context_id=request.names["session_id"], user=user)
    oldest_first: list[A2ATask] = sorted(saved, key=lambda task: (task.created_at, task.id))
    tasks = [task.task if guest is None else redaction.task_for_guests(task.task) for task in oldest_first]
    return success(tasks, "Successfully retrieved session tasks")


@route("POST", _CONFIGS)
async def save_push_config(request: KagentRequest) -> Response:
    """Save a push notification configuration, replacing the one with the same id."""
    config = request.body(_TASK)
    id = config.get("id")
    if id is not None and not isinstance(id, str):
        raise InvalidInput("the id of a push notification configuration must be text", field="id")
    task = request.names["task_id"]
    new = NewA2APushConfig(task_id=task, config=Secret(config), id=id or task, user=request.user)
    saved = await request.tenant.a2a_push_configs.upsert(new)
    return success(_content(saved), "Successfully saved push notification configuration", 201)


@route("GET", _CONFIGS)
async def list_push_configs(request: KagentRequest) -> Response:
    """List the push notification configurations of a task."""
    own = [column("task_id").eq(request.names["task_id"]), column("user").eq(request.user)]
    saved = await request.tenant.a2a_push_configs.list(where=own)
    return success([_content(config) for config in saved], "Successfully listed push notification configurations")


@route("GET", _CONFIGS + "/{config_id}")
async def get_push_config(request: KagentRequest) -> Response:
    """Get one push notification configuration."""
    task, id = request.names["task_id"], request.names["config_id"]
    saved = await request.tenant.a2a_push_configs.find(task, id, request.user)
    if saved is None:
        raise NotFound("Push notification configuration not found", noun="push config", key=id)
    return success(_content(saved), "Successfully retrieved push notification configuration")


@route("DELETE", _CONFIGS + "/{config_id}")
async def delete_push_config(request: KagentRequest) -> Response:
    """Delete a push notification configuration."""
    await request.tenant.a2a_push_configs.clear(
        request.names["task_id"], id=request.names["config_id"], user=request.user
    )
    return Response(None, 204)


def _content(saved: A2APushConfig) -> dict[str, Any]:
    """Return a configuration as its owner sent it; after an import, only its id."""
    return {**({} if saved.config is None else saved.config.reveal()), "id": saved.id}


def _check_version(request: KagentRequest) -> None:
    if request.version not in _VERSIONS:
        raise InvalidInput(
            f"A2A-Version must be one of {', '.join(_VERSIONS)}, not {request.version!r}", field="A2A-Version"
        )
