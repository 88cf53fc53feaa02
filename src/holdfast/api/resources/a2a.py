"""A2A tasks, and whom to tell about them.

A push notification configuration holds what its receiver asks for: a token, credentials. They are kept for whoever tells the
receiver, and are in no answer here.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from holdfast import NewA2APushConfig, column
from holdfast.types import A2APushConfig, AsyncA2APushConfigs, AsyncA2ATasks

from ..operations import operation
from ..redaction import without_secrets
from ..schemas import Metadata, Name, given
from ..state import Service
from ..store_routes import route
from .conversation import T

_TASKS = T + "/a2a/tasks"
_ONE = _TASKS + "/{task_id}"
_CONFIGS = _ONE + "/push-configs"

User = Annotated[str | None, Meta(description="Whose they are.")]


class NewPushConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Whom to tell about a task."""

    config: Metadata
    id: (
        Annotated[Name, Meta(description="Which of the task's it is; without it, the one named like the task.")]
        | UnsetType
    ) = UNSET
    user: Name | UnsetType = UNSET


class PushConfigList(Struct, frozen=True):
    """Whom to tell about a task, the first that was made first, without what is secret in it."""

    items: list[A2APushConfig]


@operation("POST", _CONFIGS)
async def save_push_config(service: Service, *, tenant: str, task_id: str, body: NewPushConfig) -> A2APushConfig:
    """Keep a configuration, in place of the one with its id. Secrets in it are kept, and not in the answer."""
    new = NewA2APushConfig(task_id=task_id, **given(body))
    return _shown(await service.tenant(tenant).a2a_push_configs.upsert(new))


@operation("GET", _CONFIGS)
async def list_push_configs(service: Service, *, tenant: str, task_id: str, user: User = None) -> PushConfigList:
    """The configurations of a task that one user made, without what is secret in them."""
    own = [column("task_id").eq(task_id), column("user").eq(user or "")]
    found = await service.tenant(tenant).a2a_push_configs.list(where=own)
    return PushConfigList([_shown(each) for each in found])


@operation("GET", _ONE + "/all-push-configs", need="admin")
async def list_all_push_configs(service: Service, *, tenant: str, task_id: str) -> PushConfigList:
    """The configurations of a task, whoever made them, without what is secret in them."""
    found = await service.tenant(tenant).a2a_push_configs.list(where=[column("task_id").eq(task_id)])
    return PushConfigList([_shown(each) for each in found])


def _shown(config: A2APushConfig) -> A2APushConfig:
    return replace(config, config=without_secrets(config.config))


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
