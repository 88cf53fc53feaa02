"""Declared resources: what files or a Kubernetes cluster say should exist, and the rows that were made of it.

A resource has a *source*, the set of manifests that it belongs to. ``apply`` takes a whole source and brings the rows of
other stores to it, in one transaction: agents, model providers, models and MCP servers. A resource remembers which rows it
made. Only these are deleted with it; a row that existed before stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType, structs

from ...core import actor_context, text
from ...core import scope as scopes
from ...core.actor_context import ActorContext
from ...core.blocking import blocking
from ...core.crypto import Secret
from ...core.queries import Queries
from ...core.records import (
    AsyncSecretRecords,
    AsyncSoftRecords,
    Filterable,
    Key,
    Limited,
    Metadata,
    Searchable,
    SecretRecords,
    SoftRecords,
)
from ...core.records.comparison import changed_fields
from ...core.store import reads, within
from ...engines.protocol import Connection
from ...errors import AlreadyExists, NotFound
from ..objects.activity import Audited
from .plan import (
    AppliedChange,
    ApplyRequest,
    OwnRow,
    ResourcePlan,
    ResourceToApply,
    RowChange,
    check_resources,
    make_plan,
    own_rows,
)
from .targets import TARGETS, CurrentRows


class DeclaredResource(Struct, frozen=True):
    """A resource of a source. ``secrets.reveal()`` decrypts its secret values."""

    ref: Annotated[str, Key(), Limited("key_bytes", empty=False), Filterable(), Searchable()]
    """The kind, namespace and name, such as ``Agent/kagent/helper``."""
    kind: Annotated[str, Limited("name_bytes", empty=False), Filterable()]
    namespace: Annotated[str, Limited("name_bytes"), Filterable()]
    name: Annotated[str, Limited("name_bytes", empty=False), Filterable(), Searchable()]
    api_version: Annotated[str, Limited("name_bytes")]
    source: Annotated[str, Limited("key_bytes"), Filterable()]
    """The set of manifests that it belongs to."""
    applied_by: Annotated[str, Limited("name_bytes"), Filterable()]
    """The user or agent who declared it last; empty if no actor was named."""
    metadata: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
    """Its labels and annotations."""
    spec: Annotated[dict[str, Any], Limited("spec_bytes")]
    """The specification. Asterisks stand for the values in ``secrets``."""
    secrets: Secret[dict[str, str]] | None
    """The secret values of the specification, by their paths."""
    rows: Annotated[dict[str, Any], Limited("metadata_bytes")]
    """The rows of other stores that it brings about, by store and name: the id of each, and whether ``apply`` made it."""
    version: int
    created_at: datetime
    updated_at: datetime


class NewDeclaredResource(Struct, frozen=True):
    """A resource to declare."""

    ref: str
    kind: str
    name: str
    namespace: str = ""
    api_version: str = ""
    source: str = ""
    applied_by: str = ""
    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    secrets: Secret[dict[str, str]] | None = None
    rows: dict[str, Any] = {}


class DeclaredResourceChange(Struct, frozen=True):
    """A change of a declared resource. The rows that it brought about change with the next ``apply``."""

    api_version: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    applied_by: str | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    spec: dict[str, Any] | UnsetType = UNSET
    secrets: Secret[dict[str, str]] | UnsetType | None = UNSET
    rows: dict[str, Any] | UnsetType = UNSET


queries = Queries(__package__, "resources.sql")


class AsyncDeclaredResources(
    Audited,
    AsyncSecretRecords[DeclaredResource, NewDeclaredResource, DeclaredResourceChange],
    AsyncSoftRecords[DeclaredResource, NewDeclaredResource, DeclaredResourceChange],
):
    """The declared resources of one tenant. Deleting one by hand leaves its rows, which then belong to no resource."""

    table, noun, order = "declared_resources", "declared resource", ("ref",)

    async def apply(
        self,
        declarations: Sequence[ResourceToApply],
        *,
        source: str,
        prune: Sequence[str] = (),
        keep: Sequence[str] = (),
        take_over: bool = False,
        dry_run: bool = False,
    ) -> Sequence[AppliedChange]:
        """Bring the rows of other stores to these resources, in one transaction. What already matches is not written.

        A row that is named by a resource and exists already is changed, and is never deleted with the resource.

        Args:
            source: the name of the set of manifests that the resources belong to.
            prune: kinds whose resources of this source are deleted if they are missing here, with the rows that they made.
            keep: references of resources that are not deleted although they are missing here.
            take_over: also change resources that belong to another source, and make them part of this one.
            dry_run: only return what would be done.

        Returns:
            The change of each resource, in the order of ``declarations``, followed by the deleted ones.

        Raises:
            InvalidInput: two resources are the same row, or a value is not valid.
            LimitExceeded: there are more than ``batch_rows`` resources, or a value is over a limit.
            Conflict: a resource belongs to another source.
            MissingKey: a resource has secrets, and no encryption key is configured.
        """
        limits = self._scope.limits
        check_resources(declarations, prune=prune, keep=keep)
        limits.check("batch_rows", len(declarations), "declarations")
        request = ApplyRequest(
            declarations=declarations,
            source=scopes.name(source, "source", limits, limit="key_bytes"),
            prune=frozenset(prune),
            keep=frozenset(keep),
            take_over=take_over,
        )
        plans, _ = await self._engine.read(partial(self._planned, request=request))
        if not dry_run and any(plan.change.action != "unchanged" for plan in plans):
            acting = actor_context.now(self._scope)
            plans = await self._engine.write(partial(self._carry_out, acting=acting, request=request))
        return [plan.change for plan in plans]

    async def remove(self, refs: Sequence[str]) -> Sequence[AppliedChange]:
        """Delete resources of any source with the rows that they made, in one transaction. Missing ones are skipped.

        Raises:
            InvalidInput: a reference is not valid.
            LimitExceeded: there are more than ``batch_rows``.
        """
        check_resources([], refs=refs)
        self._scope.limits.check("batch_rows", len(refs), "refs")
        for ref in refs:
            self._at([ref])  # checks the type and the length
        request = ApplyRequest(source="", remove=frozenset(refs))
        acting = actor_context.now(self._scope)
        plans = await self._engine.write(partial(self._carry_out, acting=acting, request=request))
        return [plan.change for plan in plans]

    @reads
    async def namespaces(self, connection: Connection) -> Sequence[str]:
        """Return the namespaces that have resources, in their order."""
        return [text.unescape(row[0]) for row in await queries.namespaces.all(connection, self._scope.params())]

    def _stores(self) -> dict[str, Any]:
        return {target.name: target.kind(self._engine, self._scope) for target in TARGETS}

    async def _planned(self, connection: Connection, request: ApplyRequest) -> tuple[list[ResourcePlan], CurrentRows]:
        plans, rows = await make_plan(connection, self, self._stores(), request)
        for plan in plans:
            if plan.deletions:
                dependents = await self._dependents(connection, plan.deletions)
                plan.change = structs.replace(plan.change, dependents=dependents)
        return plans, rows

    async def _dependents(self, connection: Connection, deletions: Sequence[OwnRow]) -> dict[str, int]:
        """Count what refers to these rows."""
        counts: Counter[str] = Counter()
        for own in deletions:
            params = self._scope.params(id=own.id, name=text.escape(own.name[0]))
            for name, query in queries.by_name.items():
                store, _, noun = name.partition("_dependents_")
                if store == own.store:
                    row = await query.one(connection, params)
                    counts[noun] += 0 if row is None else int(row[0])
        counts["models"] -= sum(own.store == "models" for own in deletions)  # they belong to the resource itself
        return {noun: number for noun, number in counts.items() if number > 0}

    async def _carry_out(
        self, connection: Connection, acting: ActorContext, request: ApplyRequest
    ) -> list[ResourcePlan]:
        """Make the plan again in the transaction, and carry it out."""
        plans, rows = await self._planned(connection, request)
        stores = self._stores()
        changed = [plan for plan in plans if plan.change.action != "unchanged"]
        for plan in changed:
            if plan.current is None and plan.declaration is not None:
                await self._remember_rows(connection, plan)
        for target in TARGETS:
            for change in [change for plan in changed for change in plan.rows if change.target is target]:
                if change.must_be_written:
                    rows.put(target, await _put(connection, acting, stores[target.name], change, rows))
        for plan in changed:
            if plan.declaration is not None:
                new = self._resource(plan, plan.declaration, rows, request.source, acting)
                await within(self.upsert)(connection, acting, new)
            else:
                await within(self.delete)(connection, acting, plan.current.ref)
        for target in reversed(TARGETS):
            for own in [own for plan in changed for own in plan.deletions if own.store == target.name]:
                await _delete(connection, acting, stores[target.name], own.id)
        return plans

    def _resource(
        self, plan: ResourcePlan, item: ResourceToApply, rows: CurrentRows, source: str, acting: ActorContext
    ) -> NewDeclaredResource:
        own = {}
        for row in plan.rows:
            id = rows.get(row.target.name, row.name).id
            own_row = OwnRow(row.target.name, [*row.name], id, row.is_made, row.fields)
            own["/".join([own_row.store, *row.name])] = structs.asdict(own_row)
        return NewDeclaredResource(
            ref=item.ref,
            kind=item.kind,
            name=item.name,
            namespace=item.namespace,
            api_version=item.api_version,
            source=source,
            applied_by=acting.actor()[1],
            metadata=item.metadata,
            spec=item.spec,
            secrets=item.secrets,
            rows=own,
        )

    async def _remember_rows(self, connection: Connection, plan: ResourcePlan) -> None:
        """Add to the plan of a new resource which rows it had before it was deleted, so that these are restored."""
        assert plan.declaration is not None
        deleted = await self._one(connection, self.queries.lock_deleted, self._at([plan.declaration.ref]))
        owned = {} if deleted is None else {(own.store, tuple(own.name)): own for own in own_rows(deleted)}
        plan.rows = [structs.replace(row, known=owned.get((row.target.name, row.name))) for row in plan.rows]


async def _put(connection: Connection, acting: ActorContext, store: Any, change: RowChange, rows: CurrentRows) -> Any:
    """Create or restore a row, and change the fields that its resource sets and does not set any more."""
    current, new, own = rows.get(change.target.name, change.name), rows.linked(change.new), change.known
    if current is None and own is not None and hasattr(store, "restore"):
        current = await _try(connection, within(store.restore)(connection, acting, own.id))
    if current is None:
        return await within(store.upsert)(connection, acting, new)
    managed = {*change.fields, *(() if own is None else own.fields)}
    values = {name: after for name, (_, after) in changed_fields(store, new, current, managed).items()}
    return await within(store.update)(connection, acting, current.id, change=store.change_type(**values))


async def _delete(connection: Connection, acting: ActorContext, store: Any, id: str) -> None:
    await _try(connection, within(store.delete)(connection, acting, id))


async def _try(connection: Connection, work: Coroutine[Any, Any, Any]) -> Any:
    """Do something that another caller may have done, or made impossible, meanwhile; then return ``None``."""
    try:
        async with connection.savepoint():
            return await work
    except (NotFound, AlreadyExists):
        return None


class DeclaredResources(
    SecretRecords[DeclaredResource, NewDeclaredResource, DeclaredResourceChange],
    SoftRecords[DeclaredResource, NewDeclaredResource, DeclaredResourceChange],
):
    """The declared resources of one tenant. Deleting one by hand leaves its rows, which then belong to no resource."""

    apply = blocking(AsyncDeclaredResources.apply)
    remove = blocking(AsyncDeclaredResources.remove)
    namespaces = blocking(AsyncDeclaredResources.namespaces)
