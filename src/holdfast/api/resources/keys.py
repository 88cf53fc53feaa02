"""API keys. A key is part of the response that creates it, and of no other."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast import new_api_key
from holdfast.errors import NotFound
from holdfast.types import ApiKey

from ..operations import check_scopes, operation
from ..pagination import PAGE_ROWS, Cursor, Limit
from ..schemas import Name, Uuid, present_fields
from ..state import Service

_OF_TENANT = "/v1/tenants/{tenant}/keys"
_OF_ALL = "/v1/keys"


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """An API key to create."""

    name: Annotated[Name, Meta(description="Its purpose.")]
    scopes: (
        Annotated[
            list[str],
            Meta(min_length=1, description="`read`, `write`, either for one area (`runs:read`), or `admin`."),
        ]
        | UnsetType
    ) = UNSET
    expires_at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET


class CreatedKey(Struct, frozen=True):
    """A new key. It is not shown again: only its digest is stored."""

    key: str
    kept: ApiKey


class KeyPage(Struct, frozen=True):
    """A page of keys, the oldest first, without the keys themselves."""

    items: list[ApiKey]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null on the last page.")]


async def _create(service: Service, tenant: str, body: NewKey) -> CreatedKey:
    if body.scopes is not UNSET:
        check_scopes(body.scopes)
    key = new_api_key()
    return CreatedKey(key, await service.holdfast.api_keys.create(key, tenant=tenant, **present_fields(body)))


@operation("GET", _OF_TENANT, need="admin")
async def list_keys(service: Service, *, tenant: str, limit: Limit = PAGE_ROWS, cursor: Cursor = None) -> KeyPage:
    """List the keys of a tenant, including revoked ones."""
    page = await service.holdfast.api_keys.list(tenant=tenant, limit=limit, cursor=cursor)
    return KeyPage(page, page.next)


@operation("POST", _OF_TENANT, status=201, need="admin")
async def create_key(service: Service, *, tenant: str, body: NewKey) -> CreatedKey:
    """Create a key for a tenant. The key is only shown in this response."""
    return await _create(service, tenant, body)


@operation("GET", _OF_TENANT + "/{key_id}", need="admin", raises=[NotFound])
async def get_key(service: Service, *, tenant: str, key_id: Uuid) -> ApiKey:
    """Get one key of a tenant."""
    return await service.holdfast.api_keys.get(key_id, tenant=tenant)


@operation("POST", _OF_TENANT + "/{key_id}/revoke", need="admin", raises=[NotFound])
async def revoke_key(service: Service, *, tenant: str, key_id: Uuid) -> ApiKey:
    """Revoke a key of a tenant. This takes effect within a second."""
    return await service.holdfast.api_keys.revoke(key_id, tenant=tenant)


@operation("GET", _OF_ALL, need="root")
async def list_all_keys(service: Service, *, limit: Limit = PAGE_ROWS, cursor: Cursor = None) -> KeyPage:
    """List the keys of all tenants, and those that are valid for all tenants."""
    page = await service.holdfast.api_keys.list(limit=limit, cursor=cursor)
    return KeyPage(page, page.next)


@operation("POST", _OF_ALL, status=201, need="root")
async def create_server_key(service: Service, *, body: NewKey) -> CreatedKey:
    """Create a key that is valid for all tenants."""
    return await _create(service, "", body)


@operation("POST", _OF_ALL + "/{key_id}/revoke", need="root", raises=[NotFound])
async def revoke_any_key(service: Service, *, key_id: Uuid) -> ApiKey:
    """Revoke any key, regardless of its tenant."""
    return await service.holdfast.api_keys.revoke(key_id)
