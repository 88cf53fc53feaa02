"""The plan of an ``apply``: what must be written so that the rows match the resources. It only reads.

Everything is read in pages and compared in memory, so a set of resources that changes nothing costs a few statements for
a thousand resources.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from ...core.crypto import MASK, Secret
from ...core.filters import column
from ...core.records.comparison import changed_fields, given_fields
from ...engines.protocol import Connection
from ...errors import Conflict, InvalidInput
from .differences import FieldChange, differences, secret_differences
from .targets import TARGETS, CurrentRows, Name, NewRow, Store, Target, read_all, read_rows, read_where, target_of


class ResourceToApply(Struct, frozen=True, kw_only=True):
    """A resource with the rows that it shall bring about."""

    kind: str
    name: str
    namespace: str = ""
    api_version: str = ""
    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    secrets: Secret[dict[str, str]] | None = None
    """The secret values of the specification, by their paths."""
    rows: Sequence[NewRow] = ()

    @property
    def ref(self) -> str:
        """The name of the resource among all resources of the tenant."""
        return "/".join(part for part in (self.kind, self.namespace, self.name) if part)


class AppliedChange(Struct, frozen=True, kw_only=True):
    """What ``apply`` did with a resource, or would do."""

    ref: str
    action: Literal["created", "adopted", "changed", "unchanged", "pruned"]
    """``adopted``: it is new, and a row of it existed before."""
    fields: Sequence[FieldChange] = ()
    """What changed. Secrets are shown as asterisks."""
    kept: Sequence[str] = ()
    """Rows of a pruned resource that stay, because they existed before it."""
    dependents: Mapping[str, int] = {}
    """What refers to the deleted rows, such as ``sessions``, with its number."""


class OwnRow(Struct, frozen=True):
    """A row that a resource brings about."""

    store: str
    name: list[str]
    id: str
    is_made: bool
    """Whether ``apply`` made it. A row that existed before is never deleted."""
    fields: list[str] = []
    """The fields that the resource sets. All others keep what they were given by hand."""


class RowChange(Struct, frozen=True):
    """A row of a resource, and how it differs from the current one."""

    target: Target
    name: Name
    new: NewRow
    is_made: bool
    fields: list[str]
    """The fields that the resource sets."""
    known: OwnRow | None
    """The row as the resource remembers it."""
    must_be_written: bool


class ResourcePlan(Struct, kw_only=True):
    """What must be done for one resource."""

    declaration: ResourceToApply | None
    """``None`` for a resource that is deleted."""
    current: Any
    """The declared resource, or ``None``."""
    change: AppliedChange
    rows: list[RowChange] = []
    deletions: list[OwnRow] = []
    """Rows that do not belong to the resource any more."""


class ApplyRequest(Struct, frozen=True, kw_only=True):
    """The arguments of ``apply`` and ``remove``."""

    source: str
    declarations: Sequence[ResourceToApply] = ()
    prune: Collection[str] = ()
    keep: Collection[str] = ()
    take_over: bool = False
    remove: Collection[str] = ()
    """References of resources to delete, whatever their source is."""


async def make_plan(
    connection: Connection, declared: Store, stores: Mapping[str, Store], request: ApplyRequest
) -> tuple[list[ResourcePlan], CurrentRows]:
    """Return what must be done, in the order of the declarations, and the current rows.

    Raises:
        InvalidInput: two resources have the same name, or bring about the same row; or a row is not valid.
        Conflict: a resource belongs to another source.
    """
    named = _named_rows(request.declarations)
    current = {row.ref: row for row in await _current(connection, declared, request)}
    owned = {ref: own_rows(row) for ref, row in current.items()}
    names = {*named, *((own.store, tuple(own.name)) for rows in owned.values() for own in rows)}
    rows = await read_rows(connection, stores, names)
    refs = {item.ref for item in request.declarations}
    pruned = [
        row for ref, row in sorted(current.items()) if ref not in {*refs, *request.keep} and _is_pruned(row, request)
    ]
    handed_over = {(own.store, tuple(own.name)): own for row in pruned for own in owned[row.ref]}
    plans = [
        _plan(item, current.get(item.ref), owned.get(item.ref, []), handed_over, rows, stores, request)
        for item in request.declarations
    ]
    plans += [_deletion(row, owned[row.ref], rows) for row in pruned]
    staying = {ref for ref in current if ref not in refs} - {row.ref for row in pruned}
    needed = named | {(own.store, tuple(own.name)) for ref in staying for own in owned[ref]}
    for plan in plans:
        plan.deletions = [own for own in plan.deletions if (own.store, tuple(own.name)) not in needed]
    return plans, rows


def own_rows(resource: Any) -> list[OwnRow]:
    """Return the rows of a declared resource. An entry that was written by hand and names no row is left out."""
    rows = []
    for item in resource.rows.values():
        try:
            row = msgspec.convert(item, OwnRow)
        except msgspec.ValidationError:
            continue
        if any(row.store == target.name and len(row.name) == len(target.fields) for target in TARGETS):
            rows.append(row)
    return rows


def check_resources(declarations: Sequence[ResourceToApply], **names: Sequence[str]) -> None:
    """Check the types of the arguments.

    Raises:
        InvalidInput: an argument has another type.
    """
    for argument, values in {"declarations": declarations, **names}.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InvalidInput(f"{argument} must be a list, not {type(values).__name__}", field=argument)
    for item in declarations:
        if not isinstance(item, ResourceToApply):
            raise InvalidInput(f"declarations are ResourceToApply, not {type(item).__name__}", field="declarations")
        texts = (item.kind, item.name, item.namespace)
        if not all(isinstance(text, str) for text in texts):
            raise InvalidInput("kind, name and namespace of a resource must be strings", field="declarations")
        for new in item.rows:
            if not any(isinstance(new, target.new) for target in TARGETS):
                raise InvalidInput(f"{item.ref}: a row cannot be a {type(new).__name__}", field="rows")
            target = target_of(new)
            if not all(isinstance(name, str) for name in target.name_of(new)):
                needed = " and ".join(target.fields)
                raise InvalidInput(f"{item.ref}: a row of {target.name} needs {needed}", field="rows")
        secrets = {} if item.secrets is None else item.secrets.reveal() if isinstance(item.secrets, Secret) else None
        if not isinstance(secrets, Mapping) or not all(isinstance(part, str) for part in secrets.values()):
            raise InvalidInput(
                f"{item.ref}: secrets must be a Secret that holds a dictionary of strings", field="secrets"
            )


def _named_rows(declarations: Sequence[ResourceToApply]) -> set[tuple[str, Name]]:
    owners: dict[tuple[str, Name], str] = {}
    for item in declarations:
        for new in item.rows:
            target = target_of(new)
            name = (target.name, target.name_of(new))
            other = owners.setdefault(name, item.ref)
            if other != item.ref:
                raise InvalidInput(
                    f"{other} and {item.ref} would be the same row of {target.name}, {'/'.join(name[1])!r}: rename one",
                    field="declarations",
                )
    refs = [item.ref for item in declarations]
    if len({*refs}) < len(refs):
        twice = next(ref for ref in refs if refs.count(ref) > 1)
        raise InvalidInput(f"{twice} is declared twice", field="declarations")
    return {*owners}


async def _current(connection: Connection, declared: Store, request: ApplyRequest) -> list[Any]:
    """Read the resources of the request, and all others of its source if it prunes."""
    rows: list[Any] = []
    if request.prune:
        rows = await read_all(connection, declared, [column("source").eq(request.source)])
    missing = {item.ref for item in request.declarations} - {row.ref for row in rows} | {*request.remove}
    return rows + await read_where(connection, declared, "ref", missing)


def _is_pruned(row: Any, request: ApplyRequest) -> bool:
    return row.ref in request.remove or (row.source == request.source and row.kind in request.prune)


def _plan(
    item: ResourceToApply,
    current: Any,
    owned: Sequence[OwnRow],
    handed_over: Mapping[tuple[str, Name], OwnRow],
    rows: CurrentRows,
    stores: Mapping[str, Store],
    request: ApplyRequest,
) -> ResourcePlan:
    if current is not None and current.source != request.source and not request.take_over:
        raise Conflict(
            f"{item.ref} belongs to the source {current.source!r}: apply it there, or take it over (--take-over)",
            reason="source",
        )
    owned_by_name = {**handed_over, **{(own.store, tuple(own.name)): own for own in owned}}
    plan = ResourcePlan(declaration=item, current=current, change=AppliedChange(ref=item.ref, action="unchanged"))
    drift: list[FieldChange] = []
    for new in item.rows:
        target = target_of(new)
        name = target.name_of(new)
        row, own = rows.get(target.name, name), owned_by_name.get((target.name, name))
        fields_given = given_fields(stores[target.name], new)
        managed = {*fields_given, *([] if own is None else own.fields)}
        linked = rows.linked(new)
        changes = {} if linked is None else _checked_fields(item, stores[target.name], linked, row, managed)
        is_made = row is None if own is None else own.is_made
        must_be_written = row is None or bool(changes)
        plan.rows.append(RowChange(target, name, new, is_made, fields_given, own, must_be_written))
        drift += [] if row is None else _shown(target.name, changes)
    names = {(row.target.name, row.name) for row in plan.rows}
    plan.deletions = [own for own in owned if (own.store, tuple(own.name)) not in names and own.is_made]
    fields = [] if current is None else _declared_changes(current, item)
    was_adopted = any(not row.is_made for row in plan.rows)
    plan.change = structs.replace(
        plan.change,
        action=_action(
            current, plan, was_adopted, bool(fields) or (current is not None and current.source != request.source)
        ),
        fields=fields or drift,
    )
    return plan


def _checked_fields(
    item: ResourceToApply, store: Store, new: Struct, row: Any, managed: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    """Return the fields that would change. An error names the resource."""
    try:
        return changed_fields(store, new, row, managed)
    except InvalidInput as error:
        error.args = (f"{item.ref}: {error}",)
        raise


def _action(current: Any, plan: ResourcePlan, was_adopted: bool, is_changed: bool) -> Any:
    if current is None:
        return "adopted" if was_adopted else "created"
    must_be_written = any(row.must_be_written for row in plan.rows)
    return "changed" if is_changed or must_be_written or plan.deletions else "unchanged"


def _declared_changes(current: Any, item: ResourceToApply) -> list[FieldChange]:
    """Return what differs between a declared resource and a declaration."""
    before, after = ({} if one.secrets is None else one.secrets.reveal() for one in (current, item))
    return [
        *differences(current.api_version, item.api_version, "apiVersion"),
        *differences(current.metadata, item.metadata, "metadata"),
        *differences(current.spec, item.spec, "spec"),
        *secret_differences(before, after, "spec"),
    ]


def _shown(store: str, changes: Mapping[str, tuple[Any, Any]]) -> list[FieldChange]:
    """Return the changes of a row that do not follow from a change of its resource."""
    return [
        change
        for name, (before, after) in changes.items()
        for change in (
            [FieldChange(f"{store}.{name}", *[None if value is None else MASK for value in (before, after)])]
            if isinstance(before, Secret) or isinstance(after, Secret)
            else differences(before, after, f"{store}.{name}")
        )
    ]


def _deletion(row: Any, owned: Sequence[OwnRow], rows: CurrentRows) -> ResourcePlan:
    live = [own for own in owned if rows.get(own.store, own.name) is not None]
    kept = [f"{own.store} {'/'.join(own.name)}" for own in live if not own.is_made]
    change = AppliedChange(ref=row.ref, action="pruned", kept=kept)
    return ResourcePlan(declaration=None, current=row, change=change, deletions=[own for own in live if own.is_made])
