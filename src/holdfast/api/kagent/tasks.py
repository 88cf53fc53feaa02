"""A2A tasks, whole documents that are saved again and again, and whom to tell about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast import NewA2APushConfig, column
from holdfast.errors import InvalidInput, NotFound
from holdfast.types import A2ATask

from . import redaction
from .guest_access import visit
from .request import Ask, enveloped, route

_VERSIONS = ("0.3", "1.0")
_TASK = msgspec.json.Decoder(dict[str, Any])
_CONFIGS = "/api/tasks/{task_id}/pushNotificationConfigs"


@route("POST", "/api/tasks")
async def save_task(ask: Ask) -> Response:
    """Save a task in place of what it was before. Its session need not exist."""
    _check_version(ask)
    task = ask.body(_TASK)
    id, context, status = task.get("id"), task.get("contextId"), task.get("status")
    if not isinstance(id, str) or not isinstance(context, str | None):
        raise InvalidInput("a task has an id and a contextId, both of them text")
    state = status.get("state") if isinstance(status, Mapping) else None
    await ask.tenant.a2a_tasks.save(
        id, task, context_id=context or "", state=state if isinstance(state, str) else "", user=ask.user
    )
    return enveloped(task, "Successfully created task", 201)


@route("GET", "/api/tasks/{task_id}")
async def get_task(ask: Ask) -> Response:
    """A task as it was saved last; a guest sees no secrets."""
    _check_version(ask)
    guest = await visit(ask, writing=False)
    found = await ask.tenant.a2a_tasks.find(ask.names["task_id"], user=ask.user if guest is None else guest.user)
    if found is None or (guest is not None and found.context_id != guest.session_key):
        raise NotFound("Task not found")
    task = found.task if guest is None else redaction.showable_task(found.task)
    return enveloped(task, "Successfully retrieved task")


@route("DELETE", "/api/tasks/{task_id}")
async def delete_task(ask: Ask) -> Response:
    """Hide a task; one that is not there is gone already."""
    await ask.tenant.a2a_tasks.delete(ask.names["task_id"], user=ask.user)
    return Response(None, 204)


@route("POST", "/api/tasks/{task_id}/restore")
async def restore_task(ask: Ask) -> Response:
    """Bring the task that was deleted last under this id back."""
    found = await ask.tenant.a2a_tasks.restore(ask.names["task_id"], user=ask.user)
    return enveloped(found.task, "Task restored successfully")


@route("GET", "/api/sessions/{session_id}/tasks")
async def list_tasks(ask: Ask) -> Response:
    """The tasks of a session, the oldest first; a guest sees no secrets."""
    _check_version(ask)
    guest = await visit(ask, writing=False)
    found = await ask.tenant.a2a_tasks.list(
        context_id=ask.names["session_id"], user=ask.user if guest is None else guest.user
    )
    oldest_first: list[A2ATask] = sorted(found, key=lambda each: (each.created_at, each.id))
    tasks = [each.task if guest is None else redaction.showable_task(each.task) for each in oldest_first]
    return enveloped(tasks, "Successfully retrieved session tasks")


@route("POST", _CONFIGS)
async def save_push_config(ask: Ask) -> Response:
    """Whom to tell about a task, in place of the configuration with its id."""
    config = ask.body(_TASK)
    id = config.get("id")
    if id is not None and not isinstance(id, str):
        raise InvalidInput("the id of a push notification configuration is text")
    task = ask.names["task_id"]
    new = NewA2APushConfig(task_id=task, config=config, id=id or task, user=ask.user)
    saved = await ask.tenant.a2a_push_configs.upsert(new)
    return enveloped({**saved.config, "id": saved.id}, "Successfully saved push notification configuration", 201)


@route("GET", _CONFIGS)
async def list_push_configs(ask: Ask) -> Response:
    """Whom to tell about a task."""
    own = [column("task_id").eq(ask.names["task_id"]), column("user").eq(ask.user)]
    found = await ask.tenant.a2a_push_configs.list(where=own)
    configs = [{**each.config, "id": each.id} for each in found]
    return enveloped(configs, "Successfully listed push notification configurations")


@route("GET", _CONFIGS + "/{config_id}")
async def get_push_config(ask: Ask) -> Response:
    """One of them."""
    found = await ask.tenant.a2a_push_configs.find(ask.names["task_id"], ask.names["config_id"], ask.user)
    if found is None:
        raise NotFound("Push notification configuration not found")
    return enveloped({**found.config, "id": found.id}, "Successfully retrieved push notification configuration")


@route("DELETE", _CONFIGS + "/{config_id}")
async def delete_push_config(ask: Ask) -> Response:
    """Tell one of them no longer."""
    await ask.tenant.a2a_push_configs.clear(ask.names["task_id"], id=ask.names["config_id"], user=ask.user)
    return Response(None, 204)


def _check_version(ask: Ask) -> None:
    if ask.version not in _VERSIONS:
        raise InvalidInput(f"A2A-Version is one of {', '.join(_VERSIONS)}, not {ask.version!r}")
