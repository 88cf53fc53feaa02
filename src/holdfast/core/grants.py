"""Grants: a principal may use a resource, with attributes such as a role or a pinned version.

There is one row for each pair of resource and principal; the table's primary key is ``(tenant_id, resource, principal)``, and an
index on ``(tenant_id, principal, resource)`` serves the list from the other side. Granting again replaces the attributes.
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
from .tables import R, Table

N = TypeVar("N", bound=Struct)


class GrantTable(Table[R]):
    """One table of grants.

    Args:
        resource, principal: the fields that identify a grant. ``created_at`` and ``updated_at``, where the row type has them, are
            filled in; all other fields are attributes.
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
        # Without attributes the principal is set to itself, because only a row that is updated is returned.
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
            InvalidInput: a value is not acceptable.
        """
        now = scope.clock.now_us()
        stamps = {field: now for field in ("created_at", "updated_at") if field in self.fields}
        row = await self.one(connection, "grant", scope.params(**self.params(asdict(new), scope.limits), **stamps))
        assert row is not None  # an upsert always returns its row
        return row

    async def find(self, connection: Connection, scope: Scope, resource: str, principal: str) -> R | None:
        """The grant of a resource to a principal, or ``None``."""
        return await self.one(connection, "find", self._pair(scope, resource, principal))

    async def revoke(self, connection: Connection, scope: Scope, resource: str, principal: str) -> bool:
        """Remove a grant; whether there was one."""
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
        """The grants of a resource, by principal, or those to a principal, by resource. With ``limit``, a page.

        Raises:
            InvalidInput: neither or both sides are given.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        if (resource is None) == (principal is None):
            raise InvalidInput(
                f"list the grants of one {self.resource} or of one {self.principal}: give exactly one of them"
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
    """Grants as a store: subclasses name the table."""

    grants: ClassVar[GrantTable[Any]]

    @writes
    async def grant(self, connection: Connection, new: N) -> R:
        """Grant a resource to a principal, or replace the attributes of the grant."""
        row: R = await self.grants.grant(connection, self._scope, new)
        return row

    @writes
    async def revoke(self, connection: Connection, resource: str, principal: str) -> bool:
        """Remove a grant; whether there was one."""
        return await self.grants.revoke(connection, self._scope, resource, principal)

    @reads
    async def find(self, connection: Connection, resource: str, principal: str) -> R | None:
        """The grant of a resource to a principal, or ``None``."""
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
        """The grants of a resource, by principal, or those to a principal, by resource. With ``limit``, a page.

        Raises:
            InvalidInput: neither or both sides are given.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        return await self.grants.list(
            connection, self._scope, resource=resource, principal=principal, limit=limit, cursor=cursor
        )


class Grants(Blocking[AsyncGrants[R, N]], Generic[R, N]):
    """Grants as a store, for synchronous programs."""

    grant = blocking(AsyncGrants[R, N].grant)
    revoke = blocking(AsyncGrants[R, N].revoke)
    find = blocking(AsyncGrants[R, N].find)
    list = blocking(AsyncGrants[R, N].list)
