"""API keys: who is let in. The key itself is in the answer that makes it and never again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast import new_api_key
from holdfast.errors import NotFound
from holdfast.types import ApiKey

from ..operations import check_scopes, operation
from ..pagination import PAGE_ROWS, Cursor, Limit
from ..schemas import Name, Uuid, given
from ..state import Service

_OF_TENANT = "/v1/tenants/{tenant}/keys"
_OF_ALL = "/v1/keys"


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to draw."""

    name: Annotated[Name, Meta(description="What it is for.")]
    scopes: (
        Annotated[
            list[str],
            Meta(min_length=1, description="`read`, `write`, the same of a kind of thing (`runs:read`), or `admin`."),
        ]
        | UnsetType
    ) = UNSET
    expires_at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET


class DrawnKey(Struct, frozen=True):
    """A new key. It is shown here and nowhere else: only its digest is kept."""

    key: str
    kept: ApiKey


class KeyPage(Struct, frozen=True):
    """Keys, the oldest first, without what makes them keys."""

    items: list[ApiKey]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null at the end.")]


async def _drawn(service: Service, tenant: str, body: NewKey) -> DrawnKey:
    if body.scopes is not UNSET:
        check_scopes(body.scopes)
    key = new_api_key()
    return DrawnKey(key, await service.holdfast.api_keys.create(key, tenant=tenant, **given(body)))


@operation("GET", _OF_TENANT, need="admin")
async def list_keys(service: Service, *, tenant: str, limit: Limit = PAGE_ROWS, cursor: Cursor = None) -> KeyPage:
    """The keys of a tenant, revoked ones included."""
    page = await service.holdfast.api_keys.list(tenant=tenant, limit=limit, cursor=cursor)
    return KeyPage(page, page.next)


@operation("POST", _OF_TENANT, status=201, need="admin")
async def create_key(service: Service, *, tenant: str, body: NewKey) -> DrawnKey:
    """Draw a key for a tenant. The answer is the only place it is ever shown."""
    return await _drawn(service, tenant, body)


@operation("GET", _OF_TENANT + "/{key_id}", need="admin", raises=[NotFound])
async def get_key(service: Service, *, tenant: str, key_id: Uuid) -> ApiKey:
    """One key of a tenant."""
    return await service.holdfast.api_keys.get(key_id, tenant=tenant)


@operation("POST", _OF_TENANT + "/{key_id}/revoke", need="admin", raises=[NotFound])
async def revoke_key(service: Service, *, tenant: str, key_id: Uuid) -> ApiKey:
    """Let nobody in with this key any more. It takes effect within a second."""
    return await service.holdfast.api_keys.revoke(key_id, tenant=tenant)


@operation("GET", _OF_ALL, need="root")
async def list_all_keys(service: Service, *, limit: Limit = PAGE_ROWS, cursor: Cursor = None) -> KeyPage:
    """The keys of all tenants, and those that are good for all of them."""
    page = await service.holdfast.api_keys.list(limit=limit, cursor=cursor)
    return KeyPage(page, page.next)


@operation("POST", _OF_ALL, status=201, need="root")
async def create_server_key(service: Service, *, body: NewKey) -> DrawnKey:
    """Draw a key that is good for all tenants."""
    return await _drawn(service, "", body)


@operation("POST", _OF_ALL + "/{key_id}/revoke", need="root", raises=[NotFound])
async def revoke_any_key(service: Service, *, key_id: Uuid) -> ApiKey:
    """Let nobody in with this key any more, whosever it is."""
    return await service.holdfast.api_keys.revoke(key_id)
