"""A2A: tasks and push notification configurations of the ``a2a-sdk`` server, kept here."""

from holdfast.extras import needs

with needs("a2a"):
    from .push_configs import HoldfastPushNotificationConfigStore
    from .tasks import HoldfastTaskStore

__all__ = ["HoldfastPushNotificationConfigStore", "HoldfastTaskStore"]
