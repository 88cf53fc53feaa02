"""Tenants. A tenant is registered automatically with its first session; these operations list and manage tenants."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.errors import AlreadyExists, Conflict, NotFound
from holdfast.types import Tenant

from ..operations import operation
from ..pagination import PAGE_ROWS, Cursor, Limit
from ..schemas import NewTenant, TenantChange, TenantPage, present_fields
from ..state import Service


@operation("GET", "/v1/tenants", need="root")
async def list_tenants(service: Service, *, limit: Limit = PAGE_ROWS, cursor: Cursor = None) -> TenantPage:
    """List all tenants, ordered by name."""
    page = await service.holdfast.tenants.list(limit=limit, cursor=cursor)
    return TenantPage(page, page.next)


@operation("POST", "/v1/tenants", status=201, raises=[AlreadyExists], need="root")
async def create_tenant(service: Service, *, body: NewTenant) -> Tenant:
    """Register a tenant before it writes anything."""
    fields = present_fields(body)
    return await service.holdfast.tenants.create(fields.pop("id"), **fields)


@operation("GET", "/v1/tenants/{tenant}", raises=[NotFound])
async def get_tenant(service: Service, *, tenant: str) -> Tenant:
    """Get one tenant."""
    return await service.holdfast.tenants.get(tenant)


@operation("PATCH", "/v1/tenants/{tenant}", raises=[NotFound], need="admin")
async def update_tenant(service: Service, *, tenant: str, body: TenantChange) -> Tenant:
    """Replace a tenant's metadata."""
    return await service.holdfast.tenants.update(tenant, metadata=body.metadata)


@operation("DELETE", "/v1/tenants/{tenant}", status=204, raises=[NotFound, Conflict], need="root")
async def delete_tenant(
    service: Service,
    *,
    tenant: str,
    cascade: Annotated[bool, Meta(description="Also remove everything that belongs to it.")] = False,
) -> None:
    """Remove a tenant. One that still has sessions is refused unless `cascade` is true."""
    await service.holdfast.tenants.delete(tenant, cascade=cascade)
