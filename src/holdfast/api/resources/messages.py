"""Messages: one log per session. The position of a message in the log, ``seq``, never changes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from holdfast.types import Message

from ..idempotency import IdempotencyKey, chosen_id, retry_id
from ..operations import operation
from ..pagination import PAGE_ROWS, Cursor, Limit, Where, filters
from ..schemas import (
    DeletedMessagePage,
    MessageChange,
    MessageList,
    MessagePage,
    MessagesToAppend,
    MessagesToRestore,
    MessageToAppend,
    Removed,
    RestoredMessages,
    Uuid,
    present_fields,
)
from ..state import Service

_OF_SESSION = "/v1/tenants/{tenant}/sessions/{session_id}/messages"
_ONE = "/v1/tenants/{tenant}/messages/{message_id}"
_MAX_IDS = 500
"""The maximum number of ids in one URL, so that proxies accept it."""


def page_bytes(service: Service) -> int:
    """Return the bytes of contents to load for one response; the rest is for its other fields."""
    return service.limits.response_bytes * 3 // 4


@operation("GET", _OF_SESSION, raises=[NotFound])
async def list_messages(
    service: Service,
    *,
    tenant: str,
    session_id: Uuid,
    where: Where = None,
    after: Annotated[int, Meta(ge=0, description="Only messages after this position.")] = 0,
    before: Annotated[int | None, Meta(ge=0, description="Only messages before this position.")] = None,
    newest_first: Annotated[bool, Meta(description="Start at the end of the log.")] = False,
    limit: Limit = PAGE_ROWS,
    cursor: Cursor = None,
) -> MessagePage:
    """List the messages of a session in the order of the log, or from its end.

    A page with large messages has fewer than `limit`; `next` is the cursor of the next page.
    """
    page = await service.tenant(tenant).messages.list(
        session_id,
        where=filters(where, Message),
        after=after,
        before=before,
        newest_first=newest_first,
        limit=limit,
        cursor=cursor,
        max_bytes=page_bytes(service),
    )
    return MessagePage(page, page.next)


@operation("POST", _OF_SESSION, status=201, raises=[NotFound, Conflict])
async def append_messages(
    service: Service,
    *,
    tenant: str,
    session_id: Uuid,
    body: MessageToAppend | MessagesToAppend,
    idempotency_key: IdempotencyKey = None,
) -> Message | MessageList:
    """Append one message to a session's log, or several at consecutive positions. They are durable when the response is sent."""
    messages = service.tenant(tenant).messages
    if isinstance(body, MessagesToAppend):
        if idempotency_key is not None:
            raise InvalidInput(
                "an Idempotency-Key identifies one message: give each of several messages its own id",
                field="Idempotency-Key",
            )
        appended = MessageList(await messages.append_many(session_id, body.messages))
        service.notifier.publish(f"{tenant}/{session_id}")
        return appended
    id = chosen_id(service, body.id, idempotency_key)
    with retry_id(id):
        message = await messages.append(
            session_id,
            role=body.role,
            content=body.content,
            kind=body.kind,
            metadata=body.metadata,
            token_count=body.token_count,
            is_preserved=body.is_preserved,
            is_summary=body.is_summary,
            id=id,
        )
    service.notifier.publish(f"{tenant}/{session_id}")
    return message


@operation("DELETE", _OF_SESSION, raises=[NotFound])
async def delete_messages(
    service: Service,
    *,
    tenant: str,
    session_id: Uuid,
    id: Annotated[list[Uuid], Meta(min_length=1, max_length=_MAX_IDS, description="A message's id; may be repeated.")],
    purge: Annotated[
        bool, Meta(description="Delete permanently, including messages that were deleted before.")
    ] = False,
) -> Removed:
    """Delete these messages of a session. Their positions stay empty; `restore` undoes it unless they were purged."""
    return Removed(await service.tenant(tenant).messages.delete(session_id, id, purge=purge))


@operation("POST", _OF_SESSION + "/restore", raises=[NotFound, Conflict])
async def restore_messages(
    service: Service, *, tenant: str, session_id: Uuid, body: MessagesToRestore
) -> RestoredMessages:
    """Restore deleted messages and their feedback at their old positions."""
    return RestoredMessages(await service.tenant(tenant).messages.restore(session_id, body.ids))


@operation("GET", _OF_SESSION + "/deleted", raises=[NotFound])
async def list_deleted_messages(
    service: Service, *, tenant: str, session_id: Uuid, limit: Limit = PAGE_ROWS, cursor: Cursor = None
) -> DeletedMessagePage:
    """List the messages of a session that were deleted and can be restored. A page of large ones has fewer than `limit`."""
    page = await service.tenant(tenant).messages.deleted(
        session_id, limit=limit, cursor=cursor, max_bytes=page_bytes(service)
    )
    return DeletedMessagePage(page, page.next)


@operation("GET", _OF_SESSION + "/last", raises=[NotFound])
async def last_messages(
    service: Service, *, tenant: str, session_id: Uuid, count: Annotated[int, Meta(ge=1)] = 50
) -> MessageList:
    """List the last messages of a session, the oldest of them first, without reading the rest of the log."""
    page = await service.tenant(tenant).messages.list(
        session_id, newest_first=True, limit=count, max_bytes=page_bytes(service)
    )
    if page.next is not None and len(page) < count:
        raise LimitExceeded(
            f"the last {count:,} messages are over the limit response_bytes = {service.limits.response_bytes:,}: "
            f"request {len(page):,}, or page through the messages with newest_first",
            limit="response_bytes",
            maximum=service.limits.response_bytes,
        )
    return MessageList(page[::-1])


@operation("GET", _ONE, raises=[NotFound])
async def get_message(service: Service, *, tenant: str, message_id: Uuid) -> Message:
    """Get one message."""
    return await service.tenant(tenant).messages.get(message_id)


@operation("PATCH", _ONE, raises=[NotFound])
async def update_message(service: Service, *, tenant: str, message_id: Uuid, body: MessageChange) -> Message:
    """Change the fields of a message that are in the body. Its position and creation time stay unchanged."""
    changes = present_fields(body)
    if changes.get("content", msgspec.UNSET) is None:
        raise InvalidInput("content cannot be null", field="content")
    return await service.tenant(tenant).messages.update(message_id, **changes)
