"""Objects: large contents, each kept once, under the digest of what it is.

Whoever puts an object over HTTP holds it under a name of its own. Such names are apart from those under which checkpoints and
snapshots hold theirs, so nobody can let go of what those need.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.errors import NotFound
from holdfast.types import AsyncObjects

from ..operations import operation
from ..responses import Octets, etag_of
from ..schemas import Name
from ..state import Service
from ..store_routes import Count, route
from .conversation import T

_ALL = T + "/objects"
_HELD = "http/"
"""What stands before the name of a holder that came over HTTP."""


class NewObjects(Struct, frozen=True, forbid_unknown_fields=True):
    """Contents to keep."""

    contents: Annotated[list[bytes], Meta(min_length=1, description="Each as base64.")]
    holder: Annotated[Name, Meta(description="Who needs them, until they are released.")]


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    """What is no longer needed."""

    holder: Name
    digests: Annotated[list[str], Meta(description="Without them, all that the holder holds.")] | UnsetType = UNSET


class Digests(Struct, frozen=True):
    """Under which digests they lie, in the order in which they were sent."""

    items: list[str]


@operation("POST", _ALL, status=201)
async def put_objects(service: Service, *, tenant: str, body: NewObjects) -> Digests:
    """Keep these contents and hold them. Doing it again changes nothing."""
    return Digests(list(await service.tenant(tenant).objects.put(body.contents, holder=_HELD + body.holder)))


@operation("POST", _ALL + "/release")
async def release_objects(service: Service, *, tenant: str, body: Release) -> Count:
    """Let go of objects that were put over HTTP; how many those were. They go when nobody else holds them."""
    digests = None if body.digests is UNSET else body.digests
    return Count(await service.tenant(tenant).objects.release(_HELD + body.holder, digests=digests))


@operation("GET", _ALL + "/{digest}", raises=[NotFound], etag=etag_of)
async def get_object(service: Service, *, tenant: str, digest: str) -> Octets:
    """The bytes of one object."""
    (content,) = await service.tenant(tenant).objects.get([digest])
    return Octets(content, etag=digest.lower())


ROUTES = [
    route("GET", _ALL + "/usage", "objects", AsyncObjects.usage, "get_object_usage"),
    route("POST", _ALL + "/present", "objects", AsyncObjects.has, "look_for_objects", need="read"),
    route("GET", _ALL + "/verify", "objects", AsyncObjects.verify, "verify_objects", need="admin"),
    route("POST", _ALL + "/prune", "objects", AsyncObjects.prune, "prune_objects", need="admin"),
]
