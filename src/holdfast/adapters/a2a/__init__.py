"""Stores for the ``a2a-sdk`` server: tasks and push notification configurations."""

from holdfast.extras import needs

with needs("a2a"):
    from .push_configs import HoldfastPushNotificationConfigStore
    from .tasks import HoldfastTaskStore

__all__ = ["HoldfastPushNotificationConfigStore", "HoldfastTaskStore"]
