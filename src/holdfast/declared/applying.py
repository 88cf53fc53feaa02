"""Applying resources to a tenant, in synchronous programs and under asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast import AsyncTenantHandle, Filter, TenantHandle, column
from holdfast.errors import InvalidManifest
from holdfast.limits import Limits
from holdfast.types import AppliedChange, DeclaredResource, ResourceToApply

from .resources import Resource
from .rows import Models, declaration, model_refs, models_of
from .schemas import KINDS
from .values import Values


def apply(
    tenant: TenantHandle,
    resources: Sequence[Resource],
    values: Values,
    *,
    source: str,
    prune: bool = False,
    take_over: bool = False,
    dry_run: bool = False,
) -> Sequence[AppliedChange]:
    """Bring the rows of a tenant to these resources, in one transaction.

    Args:
        prune: delete the resources of this source that are missing here.

    Raises:
        InvalidManifest: a resource refers to something that does not exist; nothing was changed.
        InvalidInput: a value is not valid, or two resources are the same row; nothing was changed.
        Conflict: a resource belongs to another source; nothing was changed.
    """
    ready = _all(*declarations(resources, values, known_models(tenant, resources)))
    kinds = [*KINDS] if prune else []
    return tenant.declared.apply(ready, source=source, prune=kinds, take_over=take_over, dry_run=dry_run)


async def complete(tenant: AsyncTenantHandle, resources: Sequence[Resource], values: Values) -> list[ResourceToApply]:
    """Return the resources with their rows, under asyncio.

    Raises:
        InvalidManifest: a resource refers to something that does not exist.
    """
    rows = [row for where in _unknown(resources, tenant.limits) for row in await tenant.declared.list(where=where)]
    return _all(*declarations(resources, values, _models(resources, rows)))


def declarations(
    resources: Sequence[Resource], values: Values, models: Models
) -> tuple[list[ResourceToApply], dict[str, InvalidManifest]]:
    """Return the resources with their rows, and the errors of those that refer to what does not exist, by reference."""
    ready, errors = [], {}
    for resource in resources:
        try:
            ready.append(declaration(resource, values, models))
        except InvalidManifest as error:
            errors[resource.ref] = error
    return ready, errors


def known_models(tenant: TenantHandle, resources: Sequence[Resource]) -> Models:
    """Return the models of these resources, and of those that were declared before and to which these refer."""
    rows = [row for where in _unknown(resources, tenant.limits) for row in tenant.declared.list(where=where)]
    return _models(resources, rows)


def _unknown(resources: Sequence[Resource], limits: Limits) -> list[list[Filter]]:
    """Return filters for the ``ModelConfig`` resources that these refer to and do not include."""
    missing = sorted({*model_refs(resources)} - {*models_of(resources)})
    size = limits.filter_values
    return [[column("ref").is_in(missing[start : start + size])] for start in range(0, len(missing), size)]


def _models(resources: Sequence[Resource], rows: Iterable[DeclaredResource]) -> Models:
    return {**{row.ref: str(row.spec["model"]) for row in rows}, **models_of(resources)}


def _all(ready: list[ResourceToApply], errors: dict[str, InvalidManifest]) -> list[ResourceToApply]:
    for error in errors.values():
        raise error
    return ready
