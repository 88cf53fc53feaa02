"""Holdfast: the durable state layer for AI agents."""

from .clock import Clock, FixedClock, SystemClock
from .core.filters import Filter, column, meta
from .core.paging import Page
from .engines.postgres.options import PoolOptions
from .handles import AsyncHoldfast, AsyncTenantHandle, Holdfast, TenantHandle
from .ids import IdSource, RandomIds, SeededIds
from .limits import Limits
from .stores.conversation.contacts import AsyncContacts, Contact, Contacts
from .stores.conversation.feedback import AsyncFeedbacks, Feedback, Feedbacks
from .stores.conversation.keys import CronKey, DirectKey, GroupKey, MainKey, SessionKey, SubagentKey, TeamKey
from .stores.conversation.message_log import Message
from .stores.conversation.messages import AsyncMessages, Messages, NewMessage
from .stores.conversation.pending_messages import (
    AsyncPendingMessages,
    NewPendingMessage,
    PendingGroup,
    PendingMessage,
    PendingMessages,
)
from .stores.conversation.search import Hit
from .stores.conversation.sessions import AsyncSessions, Session, Sessions
from .stores.platform.tenants import AsyncTenants, Tenant, Tenants

__version__ = "0.1.0"

__all__ = [
    "AsyncContacts",
    "AsyncFeedbacks",
    "AsyncHoldfast",
    "AsyncMessages",
    "AsyncPendingMessages",
    "AsyncSessions",
    "AsyncTenantHandle",
    "AsyncTenants",
    "Clock",
    "Contact",
    "Contacts",
    "CronKey",
    "DirectKey",
    "Feedback",
    "Feedbacks",
    "Filter",
    "FixedClock",
    "GroupKey",
    "Hit",
    "Holdfast",
    "IdSource",
    "Limits",
    "MainKey",
    "Message",
    "Messages",
    "NewMessage",
    "NewPendingMessage",
    "Page",
    "PendingGroup",
    "PendingMessage",
    "PendingMessages",
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
