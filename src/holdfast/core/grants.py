"""Grants: a principal may use a resource, with attributes such as a role or a pinned version.

A table has one row for each pair of resource and principal. Its primary key is ``(tenant_id, resource, principal)``, and the
index ``<table>_by_<principal>`` on ``(tenant_id, principal, resource)`` serves the list by principal. Granting again replaces
the attributes.

Fields marked ``References(...)`` name records that must exist when the grant is made. With a condition of live records, a grant
is invisible while such a record is not live, and returns with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import asdict

from ..engines.protocol import Connection
from ..errors import InvalidInput
from .actor_context import ActorContext
from .blocking import Blocking, blocking
from .paging import Page, rows_to_read
from .queries import Query, parse
from .records.fields import References
from .records.references import check_references, live_condition, reference_queries
from .records.values import is_same, with_article
from .registration import register_tenant
from .scope import Scope
from .store import TenantStore, reads, writes_with_actor
from .tables import R, TypedTable

N = TypeVar("N", bound=Struct)
STAMPS = ("created_at", "updated_at")
"""Fields that are set to the time of the grant; ``created_at`` keeps the time of the first one."""


class GrantTable(TypedTable[R]):
    """One table of grants.

    The store sets ``created_at`` and ``updated_at``, where the row type has them, and ``granted_by``, if the caller does not set
    it: to the actor. All other fields except the resource and the principal are attributes.

    Args:
        new: the type of grants to make; by default the row type.
        resource, principal: the fields that identify a grant.
        kept: attributes that ``extend`` leaves as they are in a grant that exists.
    """

    template = """
-- name: grant
INSERT INTO {table} (tenant_id, {columns}) VALUES (:tenant_id, {values})
ON CONFLICT (tenant_id, {resource}, {principal}) DO UPDATE SET {changes}
RETURNING {returned};

-- name: extend
INSERT INTO {table} (tenant_id, {columns}) VALUES (:tenant_id, {values})
ON CONFLICT (tenant_id, {resource}, {principal}) DO UPDATE SET {extended}
RETURNING {returned};

-- name: find
SELECT {returned} FROM {table}
WHERE tenant_id = :tenant_id AND {resource} = :{resource} AND {principal} = :{principal}{visible};

-- name: revoke
DELETE FROM {table}
WHERE tenant_id = :tenant_id AND {resource} = :{resource} AND {principal} = :{principal}
RETURNING {returned};

-- name: list_by_resource
SELECT {returned} FROM {table}
WHERE tenant_id = :tenant_id AND {resource} = :{resource}{visible}/*where*/
ORDER BY {principal}
LIMIT :limit;

-- name: list_by_principal
SELECT {returned} FROM {table}/*index*/
WHERE tenant_id = :tenant_id AND {principal} = :{principal}{visible}/*where*/
ORDER BY {resource}
LIMIT :limit;
"""

    def __init__(
        self,
        name: str,
        row: type[R],
        new: type[Struct] | None = None,
        *,
        resource: str,
        principal: str,
        noun: str = "grant",
        nouns: str | None = None,
        condition: str = "",
        kept: Sequence[str] = (),
    ) -> None:
        super().__init__(name, row, noun=noun, nouns=nouns, condition=condition)
        self.resource, self.principal, self.new, self.kept = resource, principal, new or row, kept
        self.references = tuple(field for field in self.fields.values() if field.marker(References))
        self.attributes = [field for field in self.fields if field not in (resource, principal, *STAMPS)]
        self._check_new()
        changed = [*self.attributes, *(["updated_at"] if "updated_at" in self.fields else [])]
        conditions = [condition, *(live_condition(name, field) for field in self.references)]
        self.parts |= {
            "resource": self.column(resource),
            "principal": self.column(principal),
            "changes": self._assignments(changed),
            "extended": self._assignments([field for field in changed if field not in kept]),
            "visible": "".join(f"\n  AND {condition}" for condition in conditions if condition),
        }

    @cached_property
    def by_name(self) -> dict[str, Query]:
        queries = reference_queries(self.references)
        references = "".join(f"\n-- name: {name}\n{sql};\n" for name, sql in queries.items())
        return parse(self.template.format_map(self.parts) + references, self.row)

    async def grant(
        self,
        connection: Connection,
        scope: Scope,
        new: Struct,
        acting: ActorContext | None = None,
        *,
        extend: bool = False,
    ) -> R:
        """Grant a resource to a principal, or replace the attributes of the grant, without checking references.

        Args:
            extend: leave the ``kept`` attributes of a grant that exists as they are.

        Raises:
            InvalidInput: a value is not valid.
        """
        now = scope.clock.now_us()
        stamps = {field: now for field in STAMPS if field in self.fields}
        params = self.params(self.values(new, acting or ActorContext()), scope.limits)
        row = await self.one(connection, "extend" if extend else "grant", scope.params(**params, **stamps))
        assert row is not None  # an upsert always returns its row
        return row

    def values(self, new: Struct, acting: ActorContext) -> dict[str, Any]:
        """Return the fields of a grant to make, by name."""
        if not isinstance(new, self.new):
            expected = with_article(self.new.__name__)
            raise InvalidInput(
                f"{with_article(self.noun)} is made from {expected}, not from {type(new).__name__}", field="new"
            )
        values = asdict(new)
        if "granted_by" in self.fields and values.get("granted_by", UNSET) is UNSET:
            values["granted_by"] = acting.actor()[1]
        return values

    async def find(self, connection: Connection, scope: Scope, resource: str, principal: str) -> R | None:
        """Return the grant of a resource to a principal, or ``None``."""
        return await self.one(connection, "find", self._pair(scope, resource, principal))

    async def revoke(self, connection: Connection, scope: Scope, resource: str, principal: str) -> R | None:
        """Remove a grant; return it, or ``None`` if it did not exist."""
        return await self.one(connection, "revoke", self._pair(scope, resource, principal))

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
                f"{self.nouns} are listed for one {self.resource} or one {self.principal}: give exactly one of the two",
                field="resource",
            )
        side, order = (self.resource, self.principal) if principal is None else (self.principal, self.resource)
        params = scope.params(limit=rows_to_read(limit, scope.limits))
        params |= self.params({side: resource if principal is None else principal}, scope.limits)
        clause = self.after(cursor, [order], params)
        query = self.by_name["list_by_resource" if principal is None else "list_by_principal"]
        # Without the index, SQLite reads all grants of the tenant in the order of the primary key.
        rows = await query.all(connection, params, clause, f"{self.name}_by_{self.principal}")
        return self.page(self.rows(connection, rows), limit, scope.limits, [order])

    def _pair(self, scope: Scope, resource: str, principal: str) -> dict[str, Any]:
        return scope.params(**self.params({self.resource: resource, self.principal: principal}, scope.limits))

    def _assignments(self, fields: Sequence[str]) -> str:
        # A grant without attributes sets the principal to itself, because RETURNING only returns rows that were updated.
        columns = [self.column(field) for field in fields] or [self.column(self.principal)]
        return ", ".join(f"{column} = excluded.{column}" for column in columns)

    def _check_new(self) -> None:
        given, managed = {*self.new.__struct_fields__}, {*STAMPS, "granted_by"}
        wrong = given - {*self.fields} | {*self.fields} - given - managed
        if wrong:
            raise TypeError(f"{self.new.__name__} and {self.row.__name__} differ in {', '.join(sorted(wrong))}")


class AsyncGrants(TenantStore, Generic[R, N]):
    """Base of stores that keep grants; a subclass names its tables.

    A store may have grants to several kinds of principals, each in a table of its own: ``agent`` and ``user``, for example. The
    kind is the name of the table's principal field, and the type of a new grant says to which kind it belongs.
    """

    grants: ClassVar[Sequence[GrantTable[Any]]]

    @writes_with_actor
    async def grant(self, connection: Connection, acting: ActorContext, new: N) -> R:
        """Grant a resource to a principal, or replace the attributes of the grant. If nothing differs, nothing is written.

        Raises:
            NotFound: the resource or the principal does not exist.
        """
        return await self._grant(connection, acting, new)

    @writes_with_actor
    async def revoke(
        self, connection: Connection, acting: ActorContext, resource: str, principal: str, *, kind: str | None = None
    ) -> bool:
        """Remove a grant; return whether it existed.

        Args:
            kind: the kind of principal, if the store has several.
        """
        return await self._revoke(connection, acting, resource, principal, kind=kind)

    @reads
    async def find(self, connection: Connection, resource: str, principal: str, *, kind: str | None = None) -> R | None:
        """Return the grant of a resource to a principal, or ``None``.

        Args:
            kind: the kind of principal, if the store has several.
        """
        row: R | None = await self._table(kind).find(connection, self._scope, resource, principal)
        return row

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        resource: str | None = None,
        principal: str | None = None,
        kind: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[R]:
        """List the grants of a resource by principal, or those to a principal by resource. With ``limit``, a page.

        Args:
            kind: the kind of principal, if the store has several.

        Raises:
            InvalidInput: neither side or both sides were given.
            InvalidFilter: the cursor does not belong to this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        return await self._table(kind).list(
            connection, self._scope, resource=resource, principal=principal, limit=limit, cursor=cursor
        )

    async def _grant(self, connection: Connection, acting: ActorContext, new: N, *, extend: bool = False) -> R:
        """``grant`` as a part of another call's transaction; with ``extend``, the table's ``kept`` attributes stay."""
        table = self._table_of(new)
        params = self._scope.params(**table.params(table.values(new, acting), self._scope.limits))
        await register_tenant(connection, params | {"now_at": self._scope.clock.now_us()})
        await check_references(connection, table.by_name, table.references, params, table.noun)
        row: R | None = await table.one(connection, "find", params)
        changed: Sequence[str] = []
        if row is not None:
            names = [name for name in table.attributes if not (extend and name in table.kept)]
            fields = [table.fields[name] for name in names]
            changed = [field.name for field in fields if not is_same(field, params[table.parameter(field.name)], row)]
            if not changed:
                return row
        granted: R = await table.grant(connection, self._scope, new, acting, extend=extend)
        await self._on_change(connection, acting, "granted", granted, changed)
        return granted

    async def _revoke(
        self, connection: Connection, acting: ActorContext, resource: str, principal: str, *, kind: str | None = None
    ) -> bool:
        """``revoke`` as a part of another call's transaction."""
        row: R | None = await self._table(kind).revoke(connection, self._scope, resource, principal)
        if row is not None:
            await self._on_change(connection, acting, "revoked", row, ())
        return row is not None

    async def _on_change(
        self, connection: Connection, acting: ActorContext, action: str, row: R, fields: Sequence[str]
    ) -> None:
        """Called in the transaction of every change of a grant: one that was granted or revoked.

        Args:
            fields: the attributes that differ from those of the grant that was replaced.
        """

    def _subject(self, row: R) -> tuple[str, Sequence[str]]:
        """Return the noun, the resource and the principal of a grant, for the activity log."""
        table = next(table for table in self.grants if table.row is type(row))
        return table.noun, [getattr(row, table.resource), getattr(row, table.principal)]

    def _table(self, kind: str | None) -> GrantTable[Any]:
        if kind is None and len(self.grants) == 1:
            return self.grants[0]
        table = next((table for table in self.grants if table.principal == kind), None)
        if table is None:
            kinds = " or ".join(table.principal for table in self.grants)
            raise InvalidInput(f"kind must be {kinds}, not {kind!r:.60}", field="kind")
        return table

    def _table_of(self, new: N) -> GrantTable[Any]:
        table = next((table for table in self.grants if isinstance(new, table.new)), None)
        if table is None:
            expected = " or ".join(with_article(table.new.__name__) for table in self.grants)
            raise InvalidInput(f"a grant is made from {expected}, not from {type(new).__name__}", field="new")
        return table


class Grants(Blocking[AsyncGrants[R, N]], Generic[R, N]):
    """Base of stores that keep grants, for synchronous programs."""

    grant = blocking(AsyncGrants[R, N].grant)
    revoke = blocking(AsyncGrants[R, N].revoke)
    find = blocking(AsyncGrants[R, N].find)
    list = blocking(AsyncGrants[R, N].list)
