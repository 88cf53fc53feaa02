"""A2A tasks and their push notification configurations.

A configuration contains secrets for its receiver, such as a token or credentials. They are stored for the process that sends the
notifications, and are never part of a response.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast import NewA2APushConfig, column
from holdfast.encryption import Secret
from holdfast.types import A2APushConfig, AsyncA2APushConfigs, AsyncA2ATasks

from ..operations import operation
from ..redaction import without_secrets
from ..schemas import Metadata, Name, present_fields
from ..state import Service
from ..store_routes import route
from .conversation import T

_TASKS = T + "/a2a/tasks"
_ONE = _TASKS + "/{task_id}"
_CONFIGS = _ONE + "/push-configs"

User = Annotated[str | None, Meta(description="The user who created them.")]


class NewPushConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A push notification configuration of a task."""

    config: Metadata
    id: (
        Annotated[Name, Meta(description="Its id among the task's configurations; defaults to the task's id.")]
        | UnsetType
    ) = UNSET
    user: Name | UnsetType = UNSET


class PushConfig(Struct, frozen=True):
    """A configuration without its secrets. `config` is null after an import."""

    task_id: str
    id: str
    user: str
    config: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime


class PushConfigList(Struct, frozen=True):
    """The configurations of a task, the oldest first, without secrets."""

    items: list[PushConfig]


@operation("POST", _CONFIGS)
async def save_push_config(service: Service, *, tenant: str, task_id: str, body: NewPushConfig) -> PushConfig:
    """Save a configuration, replacing the one with the same id. Secrets are stored but not returned."""
    new = NewA2APushConfig(task_id=task_id, **present_fields(body) | {"config": Secret(body.config)})
    return _redact(await service.tenant(tenant).a2a_push_configs.upsert(new))


@operation("GET", _CONFIGS)
async def list_push_configs(service: Service, *, tenant: str, task_id: str, user: User = None) -> PushConfigList:
    """List the configurations of a task that one user created, without secrets."""
    own = [column("task_id").eq(task_id), column("user").eq(user or "")]
    configs = await service.tenant(tenant).a2a_push_configs.list(where=own)
    return PushConfigList([_redact(config) for config in configs])


@operation("GET", _ONE + "/all-push-configs", need="admin")
async def list_all_push_configs(service: Service, *, tenant: str, task_id: str) -> PushConfigList:
    """List the configurations of a task by all users, without secrets."""
    configs = await service.tenant(tenant).a2a_push_configs.list(where=[column("task_id").eq(task_id)])
    return PushConfigList([_redact(config) for config in configs])


def _redact(saved: A2APushConfig) -> PushConfig:
    config = None if saved.config is None else without_secrets(saved.config.reveal())
    return PushConfig(saved.task_id, saved.id, saved.user, config, saved.created_at, saved.updated_at)


ROUTES = [
    route("GET", _TASKS, "a2a_tasks", AsyncA2ATasks.list, "list_a2a_tasks"),
    route("GET", T + "/a2a/task-count", "a2a_tasks", AsyncA2ATasks.count, "count_a2a_tasks", area="tasks"),
    route("GET", _ONE, "a2a_tasks", AsyncA2ATasks.find, "find_a2a_task"),
    route("PUT", _ONE, "a2a_tasks", AsyncA2ATasks.save, "save_a2a_task"),
    route("DELETE", _ONE, "a2a_tasks", AsyncA2ATasks.delete, "delete_a2a_task"),
    route("POST", _ONE + "/restore", "a2a_tasks", AsyncA2ATasks.restore, "restore_a2a_task"),
    route("POST", _ONE + "/purge", "a2a_tasks", AsyncA2ATasks.purge, "purge_a2a_task"),
    route("DELETE", _CONFIGS, "a2a_push_configs", AsyncA2APushConfigs.clear, "delete_push_configs"),
]
