"""Grants: a principal may use a resource, with attributes such as a role or a pinned version.

The table has one row for each pair of resource and principal. Its primary key is ``(tenant_id, resource, principal)``, and an
index on ``(tenant_id, principal, resource)`` serves the list by principal. Granting again replaces the attributes.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from ..engines.protocol import Connection
from ..errors import InvalidInput
from .blocking import Blocking, blocking
from .paging import Page, rows_to_read
from .scope import Scope
from .store import TenantStore, reads, writes
from .tables import R, TypedTable

N = TypeVar("N", bound=Struct)


class GrantTable(TypedTable[R]):
    """One table of grants.

    Args:
        resource, principal: the fields that identify a grant. ``created_at`` and ``updated_at``, where the row type has them, are
            set by the store; all other fields are attributes.
    """

    template = """
-- name: grant
INSERT INTO {table} (tenant_id, {columns}) VALUES (:tenant_id, {values})
ON CONFLICT (tenant_id, {resource}, {principal}) DO UPDATE SET {changes}
RETURNING {returned};

-- name: find
SELECT {returned} FROM {table}
WHERE tenant_id = :tenant_id AND {resource} = :{resource} AND {principal} = :{principal}{visible};

-- name: revoke
DELETE FROM {table}
WHERE tenant_id = :tenant_id AND {resource} = :{resource} AND {principal} = :{principal}
RETURNING 1;

-- name: list_by_resource
SELECT {returned} FROM {table}
WHERE tenant_id = :tenant_id AND {resource} = :{resource}{visible}/*where*/
ORDER BY {principal}
LIMIT :limit;

-- name: list_by_principal
SELECT {returned} FROM {table}
WHERE tenant_id = :tenant_id AND {principal} = :{principal}{visible}/*where*/
ORDER BY {resource}
LIMIT :limit;
"""

    def __init__(
        self, name: str, row: type[R], *, resource: str, principal: str, noun: str = "grant", condition: str = ""
    ) -> None:
        super().__init__(name, row, noun=noun, condition=condition)
        fixed = (resource, principal, "created_at")
        # A grant without attributes sets the principal to itself, because RETURNING only returns rows that were updated.
        changed = [self.column(field) for field in self.fields if field not in fixed] or [self.column(principal)]
        self.resource, self.principal = resource, principal
        self.parts |= {
            "resource": self.column(resource),
            "principal": self.column(principal),
            "changes": ", ".join(f"{column} = excluded.{column}" for column in changed),
        }

    async def grant(self, connection: Connection, scope: Scope, new: Struct) -> R:
        """Grant a resource to a principal, or replace the attributes of the grant.

        Raises:
            InvalidInput: a value is not valid.
        """
        now = scope.clock.now_us()
        stamps = {field: now for field in ("created_at", "updated_at") if field in self.fields}
        row = await self.one(connection, "grant", scope.params(**self.params(asdict(new), scope.limits), **stamps))
        assert row is not None  # an upsert always returns its row
        return row

    async def find(self, connection: Connection, scope: Scope, resource: str, principal: str) -> R | None:
        """Return the grant of a resource to a principal, or ``None``."""
        return await self.one(connection, "find", self._pair(scope, resource, principal))

    async def revoke(self, connection: Connection, scope: Scope, resource: str, principal: str) -> bool:
        """Remove a grant; return whether it existed."""
        rows = await self.by_name["revoke"].all(connection, self._pair(scope, resource, principal))
        return bool(rows)

    async def list(
        self,
        connection: Connection,
        scope: Scope,
        *,
        resource: str | None = None,
        principal: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[R]:
        """List the grants of a resource by principal, or those to a principal by resource. With ``limit``, a page.

        Raises:
            InvalidInput: neither side or both sides were given.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        if (resource is None) == (principal is None):
            raise InvalidInput(
                f"grants are listed for one {self.resource} or one {self.principal}: give exactly one of the two",
                field="resource",
            )
        side, order = (self.resource, self.principal) if principal is None else (self.principal, self.resource)
        params = scope.params(limit=rows_to_read(limit, scope.limits))
        params |= self.params({side: resource if principal is None else principal}, scope.limits)
        clause = self.after(cursor, [order], params)
        query = self.by_name["list_by_resource" if principal is None else "list_by_principal"]
        rows = self.rows(connection, await query.all(connection, params, clause))
        return self.page(rows, limit, scope.limits, [order])

    def _pair(self, scope: Scope, resource: str, principal: str) -> dict[str, Any]:
        return scope.params(**self.params({self.resource: resource, self.principal: principal}, scope.limits))


class AsyncGrants(TenantStore, Generic[R, N]):
    """Base of stores that keep grants; a subclass sets the table."""

    grants: ClassVar[GrantTable[Any]]

    @writes
    async def grant(self, connection: Connection, new: N) -> R:
        """Grant a resource to a principal, or replace the attributes of the grant."""
        row: R = await self.grants.grant(connection, self._scope, new)
        return row

    @writes
    async def revoke(self, connection: Connection, resource: str, principal: str) -> bool:
        """Remove a grant; return whether it existed."""
        return await self.grants.revoke(connection, self._scope, resource, principal)

    @reads
    async def find(self, connection: Connection, resource: str, principal: str) -> R | None:
        """Return the grant of a resource to a principal, or ``None``."""
        row: R | None = await self.grants.find(connection, self._scope, resource, principal)
        return row

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        resource: str | None = None,
        principal: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[R]:
        """List the grants of a resource by principal, or those to a principal by resource. With ``limit``, a page.

        Raises:
            InvalidInput: neither side or both sides were given.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        return await self.grants.list(
            connection, self._scope, resource=resource, principal=principal, limit=limit, cursor=cursor
        )


class Grants(Blocking[AsyncGrants[R, N]], Generic[R, N]):
    """Base of stores that keep grants, for synchronous programs."""

    grant = blocking(AsyncGrants[R, N].grant)
    revoke = blocking(AsyncGrants[R, N].revoke)
    find = blocking(AsyncGrants[R, N].find)
    list = blocking(AsyncGrants[R, N].list)
