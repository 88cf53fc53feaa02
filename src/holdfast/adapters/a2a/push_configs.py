"""The ``PushNotificationConfigStore`` of the A2A server."""

from __future__ import annotations

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.server.tasks import PushNotificationConfigStore
from a2a.server.tasks.push_notification_config_store import normalize_push_notification_config
from a2a.types.a2a_pb2 import TaskPushNotificationConfig
from google.protobuf.json_format import MessageToDict, ParseDict

from holdfast import A2APushConfig, AsyncTenantHandle


class HoldfastPushNotificationConfigStore(PushNotificationConfigStore):
    """Whom an A2A server tells that a task went on.

    What a configuration says of how to prove who is calling is stored as it is: whoever can read the database can call.

    Args:
        tenant: whose they are: ``AsyncHoldfast(...).tenant("acme")``.
        owner_resolver: which user of the tenant a call speaks for; as in the SDK's own stores.
    """

    def __init__(self, tenant: AsyncTenantHandle, *, owner_resolver: OwnerResolver = resolve_user_scope) -> None:
        self._configs, self._owner = tenant.a2a_push_configs, owner_resolver

    async def set_info(
        self, task_id: str, notification_config: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Keep a configuration, in place of the caller's one with its id; without an id, that is the task's."""
        config = normalize_push_notification_config(task_id, notification_config)
        saved = await self._configs.save(task_id, MessageToDict(config), id=config.id, user=self._user(context))
        return _config(saved)

    async def get_info(self, task_id: str, context: ServerCallContext) -> list[TaskPushNotificationConfig]:
        """The caller's configurations of a task."""
        return [_config(each) for each in await self._configs.list(task_id, user=self._user(context))]

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        """The configurations of a task, whoever made them."""
        return [_config(each) for each in await self._configs.of_everybody(task_id)]

    async def delete_info(self, task_id: str, context: ServerCallContext, config_id: str | None = None) -> None:
        """Remove one of the caller's configurations of a task, or all of them."""
        await self._configs.delete(task_id, id=config_id, user=self._user(context))

    def _user(self, context: ServerCallContext) -> str | None:
        return self._owner(context) or None


def _config(stored: A2APushConfig) -> TaskPushNotificationConfig:
    return ParseDict(stored.config, TaskPushNotificationConfig(), ignore_unknown_fields=True)
