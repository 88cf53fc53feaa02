"""The ``PushNotificationConfigStore`` of the A2A server."""

from __future__ import annotations

from collections.abc import Sequence

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.server.tasks import PushNotificationConfigStore
from a2a.server.tasks.push_notification_config_store import normalize_push_notification_config
from a2a.types.a2a_pb2 import TaskPushNotificationConfig
from google.protobuf.json_format import MessageToDict, ParseDict

from holdfast import AsyncTenantHandle, NewA2APushConfig, TenantHandle, column
from holdfast.encryption import Secret
from holdfast.types import A2APushConfig

from .loop_bridge import awaitable_store


class HoldfastPushNotificationConfigStore(PushNotificationConfigStore):
    """Push notification configurations of an A2A server.

    Configurations are encrypted if an encryption key is configured. Without one they are stored as plain text, with their
    credentials: protect the database accordingly.

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
        self._configs, self._owner = awaitable_store(where, tenant, "a2a_push_configs"), owner_resolver

    async def set_info(
        self, task_id: str, notification_config: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Save a configuration, replacing the caller's configuration with the same id. An empty id becomes the id of the task."""
        config = normalize_push_notification_config(task_id, notification_config)
        user = self._user(context)
        new = NewA2APushConfig(task_id=task_id, config=Secret(MessageToDict(config)), id=config.id, user=user)
        await self._configs.upsert(new)
        return config

    async def get_info(self, task_id: str, context: ServerCallContext) -> list[TaskPushNotificationConfig]:
        """Return the caller's configurations of a task."""
        own = [column("task_id").eq(task_id), column("user").eq(self._user(context))]
        return _configs(await self._configs.list(where=own))

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        """Return the configurations of a task, of all its users."""
        return _configs(await self._configs.list(where=[column("task_id").eq(task_id)]))

    async def delete_info(self, task_id: str, context: ServerCallContext, config_id: str | None = None) -> None:
        """Remove one of the caller's configurations of a task, or all of them."""
        await self._configs.clear(task_id, id=config_id, user=self._user(context))

    def _user(self, context: ServerCallContext) -> str:
        return self._owner(context) or ""


def _configs(rows: Sequence[A2APushConfig]) -> list[TaskPushNotificationConfig]:
    """Return the configurations, without those that were imported without their content."""
    contents = [row.config.reveal() for row in rows if row.config is not None]
    return [ParseDict(content, TaskPushNotificationConfig(), ignore_unknown_fields=True) for content in contents]
