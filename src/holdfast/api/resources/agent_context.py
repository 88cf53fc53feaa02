"""Routes of what agents keep for their users: context files, profiles, overrides, and messages over all sessions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.errors import LimitExceeded
from holdfast.types import AsyncAgentOverrides, AsyncContextFiles, AsyncProfiles, Message

from ..operations import operation
from ..pagination import PAGE_ROWS, Cursor, Limit, Where, filters
from ..record_routes import records
from ..schemas import MessageList, MessagePage
from ..state import Service
from ..store_routes import Timestamp, route
from .conversation import T
from .messages import page_bytes

_A = T + "/agents/{agent}"
_FILES = _A + "/context-files"
_FILE = _FILES + "/{file_name}"


@operation("GET", _A + "/messages", area="messages")
async def list_agent_messages(
    service: Service,
    *,
    tenant: str,
    agent: str,
    since: Annotated[Timestamp | None, Meta(description="Only messages from this time on.")] = None,
    where: Where = None,
    limit: Limit = PAGE_ROWS,
    cursor: Cursor = None,
) -> MessagePage:
    """List the messages of an agent over all of its sessions, the newest first. Those of one session are in the order of its log.

    A page with large messages has fewer than `limit`; `next` is the cursor of the next page.
    """
    page = await service.tenant(tenant).agent_messages.list(
        agent,
        since=since,
        where=filters(where, Message),
        limit=limit,
        cursor=cursor,
        max_bytes=page_bytes(service),
    )
    return MessagePage(page, page.next)


@operation("GET", _A + "/messages/last", area="messages")
async def last_agent_messages(
    service: Service, *, tenant: str, agent: str, count: Annotated[int, Meta(ge=1)] = 50
) -> MessageList:
    """List the last messages of an agent over all of its sessions, the oldest of them first."""
    page = await service.tenant(tenant).agent_messages.list(agent, limit=count, max_bytes=page_bytes(service))
    if page.next is not None and len(page) < count:
        raise LimitExceeded(
            f"the last {count:,} messages are over the limit response_bytes = {service.limits.response_bytes:,}: "
            f"request {len(page):,}, or page through the messages",
            limit="response_bytes",
            maximum=service.limits.response_bytes,
        )
    return MessageList(page[::-1])


ROUTES = [
    route("GET", _FILES, "context_files", AsyncContextFiles.list, "list_context_files", area="agents"),
    route("POST", _FILES + "/seed", "context_files", AsyncContextFiles.seed, "seed_context_files", area="agents"),
    route("GET", _FILE, "context_files", AsyncContextFiles.get, "get_context_file", area="agents"),
    route("PUT", _FILE, "context_files", AsyncContextFiles.set, "set_context_file", area="agents"),
    route("DELETE", _FILE, "context_files", AsyncContextFiles.delete, "delete_context_file", area="agents"),
    route(
        "POST",
        _FILE + "/propagate",
        "context_files",
        AsyncContextFiles.propagate,
        "propagate_context_file",
        area="agents",
    ),
    *records(T + "/profiles", "profiles", AsyncProfiles, area="agents"),
    route("GET", _A + "/users", "profiles", AsyncProfiles.users, "list_agent_users", area="agents"),
    route(
        "POST",
        _A + "/users/{user}/visit",
        "profiles",
        AsyncProfiles.get_or_create,
        "get_or_create_profile",
        area="agents",
    ),
    *records(T + "/agent-overrides", "agent_overrides", AsyncAgentOverrides, area="agents"),
]
