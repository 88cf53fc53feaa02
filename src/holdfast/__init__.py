"""Holdfast: the durable state layer for AI agents."""

from .clock import Clock, FixedClock, SystemClock
from .core.filters import Filter, column, meta
from .core.paging import Page
from .engines.postgres.options import PoolOptions
from .handles import AsyncHoldfast, AsyncTenantHandle, Holdfast, TenantHandle
from .ids import IdSource, RandomIds, SeededIds
from .limits import Limits
from .stores.conversation.keys import CronKey, DirectKey, GroupKey, MainKey, SessionKey, SubagentKey, TeamKey
from .stores.conversation.message_log import Message
from .stores.conversation.messages import AsyncMessages, Messages, NewMessage
from .stores.conversation.sessions import AsyncSessions, Session, Sessions
from .stores.platform.tenants import AsyncTenants, Tenant, Tenants

__version__ = "0.1.0"

__all__ = [
    "AsyncHoldfast",
    "AsyncMessages",
    "AsyncSessions",
    "AsyncTenantHandle",
    "AsyncTenants",
    "Clock",
    "CronKey",
    "DirectKey",
    "Filter",
    "FixedClock",
    "GroupKey",
    "Holdfast",
    "IdSource",
    "Limits",
    "MainKey",
    "Message",
    "Messages",
    "NewMessage",
    "Page",
    "PoolOptions",
    "RandomIds",
    "SeededIds",
    "Session",
    "SessionKey",
    "Sessions",
    "SubagentKey",
    "SystemClock",
    "TeamKey",
    "Tenant",
    "TenantHandle",
    "Tenants",
    "column",
    "meta",
]
