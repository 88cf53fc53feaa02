"""Applying resources to a tenant: the one place where this package reads and writes rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast import TenantHandle, column
from holdfast.errors import InvalidManifest
from holdfast.types import AppliedChange, Declaration

from .resources import Resource
from .rows import Models, declaration, model_refs, models_of
from .schemas import KINDS
from .values import Values


def declarations(
    tenant: TenantHandle, resources: Sequence[Resource], values: Values
) -> tuple[list[Declaration], dict[str, InvalidManifest]]:
    """Return the resources with their rows, and the errors of those that refer to what does not exist, by reference."""
    models = _models(tenant, resources)
    found, errors = [], {}
    for resource in resources:
        try:
            found.append(declaration(resource, values, models))
        except InvalidManifest as error:
            errors[resource.ref] = error
    return found, errors


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

    Raises:
        InvalidManifest: a resource refers to something that does not exist; nothing was changed.
        InvalidInput: a value is not valid, or two resources are the same row; nothing was changed.
        Conflict: a resource belongs to another source; nothing was changed.
    """
    found, errors = declarations(tenant, resources, values)
    for error in errors.values():
        raise error
    kinds: Collection[str] = KINDS if prune else ()
    return tenant.declared.apply(found, source=source, prune=kinds, take_over=take_over, dry_run=dry_run)


def _models(tenant: TenantHandle, resources: Sequence[Resource]) -> Models:
    """Return the models of these resources, and of those declared before to which these refer."""
    models = dict(models_of(resources))
    missing = sorted({*model_refs(resources)} - {*models})
    for start in range(0, len(missing), tenant.limits.filter_values):
        chunk = missing[start : start + tenant.limits.filter_values]
        for row in tenant.declared.list(where=[column("ref").is_in(chunk)]):
            models[row.ref] = row.spec["model"]
    return models
