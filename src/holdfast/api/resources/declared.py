"""Declared resources, and applying manifests."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.declared import applying, values
from holdfast.declared.documents import Document, Place
from holdfast.declared.resources import DEFAULT_NAMESPACE, read_resources
from holdfast.declared.schemas import KINDS
from holdfast.errors import Conflict
from holdfast.types import AppliedChange, AsyncDeclaredResources

from ..operations import operation
from ..record_routes import records
from ..schemas import Name
from ..state import Service
from ..store_routes import route
from .conversation import T

_D = T + "/declared-resources"


class Manifests(Struct, frozen=True, forbid_unknown_fields=True):
    """Manifests of kagent's custom resources to apply."""

    source: Annotated[
        Name, Meta(description="The name of the set of manifests; `prune` deletes only resources of this set.")
    ]
    manifests: Annotated[
        list[dict[str, Any]], Meta(description="Objects with `apiVersion`, `kind`, `metadata`, `spec`.")
    ]
    values: Annotated[
        dict[str, dict[str, str]],
        Meta(description="The keys of the Secrets and ConfigMaps that they refer to, as `Secret/<namespace>/<name>`."),
    ] = {}
    namespace: Annotated[Name, Meta(description="The namespace of manifests that name none.")] = DEFAULT_NAMESPACE
    prune: Annotated[bool, Meta(description="Delete the resources of this source that are missing here.")] = False
    take_over: Annotated[bool, Meta(description="Also change resources that belong to another source.")] = False
    dry_run: Annotated[bool, Meta(description="Only return what would be done.")] = False


class AppliedChanges(Struct, frozen=True):
    """The change of each resource, and of those that were deleted."""

    changes: list[AppliedChange]


@operation("POST", _D + "/apply", raises=[Conflict])
async def apply_manifests(service: Service, *, tenant: str, body: Manifests) -> AppliedChanges:
    """Bring agents, providers, models and MCP servers to manifests, all in one transaction."""
    handle = service.tenant(tenant)
    given = values.values_of(lambda kind, namespace, name: body.values.get(f"{kind}/{namespace}/{name}"))
    documents = [Document(Place("manifests", number), value) for number, value in enumerate(body.manifests, 1)]
    changes = await handle.declared.apply(
        await applying.complete(handle, read_resources(documents, body.namespace), given),
        source=body.source,
        prune=[*KINDS] if body.prune else [],
        take_over=body.take_over,
        dry_run=body.dry_run,
    )
    return AppliedChanges([*changes])


ROUTES = [
    *records(_D, "declared", AsyncDeclaredResources, key="ref"),
    route("POST", _D + "/remove", "declared", AsyncDeclaredResources.remove, "remove_declared_resources"),
    route(
        "GET",
        T + "/declared-namespaces",
        "declared",
        AsyncDeclaredResources.namespaces,
        "list_declared_namespaces",
        area="declared-resources",
    ),
]
