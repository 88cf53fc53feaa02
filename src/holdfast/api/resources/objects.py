"""Objects: large contents, each stored once under its digest.

A client holds the objects that it puts under a name that it chooses. These names are separate from those of checkpoints and
snapshots, so no client can release objects that those need.
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
_HTTP_HOLDER = "http/"
"""The prefix of the names of holders over HTTP."""


class NewObjects(Struct, frozen=True, forbid_unknown_fields=True):
    """Contents to store."""

    contents: Annotated[list[bytes], Meta(min_length=1, description="Each as base64.")]
    holder: Annotated[Name, Meta(description="The holder, which keeps them stored until it releases them.")]


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    """Objects to release."""

    holder: Name
    digests: Annotated[list[str], Meta(description="If omitted, all objects of the holder.")] | UnsetType = UNSET


class Digests(Struct, frozen=True):
    """The digests of the stored contents, in the order of the request."""

    items: list[str]


@operation("POST", _ALL, status=201)
async def put_objects(service: Service, *, tenant: str, body: NewObjects) -> Digests:
    """Store these contents and hold them. Repeating the request changes nothing."""
    return Digests(list(await service.tenant(tenant).objects.put(body.contents, holder=_HTTP_HOLDER + body.holder)))


@operation("POST", _ALL + "/release")
async def release_objects(service: Service, *, tenant: str, body: Release) -> Count:
    """Release objects that were stored over HTTP, and return their number. Objects without a holder are removed later."""
    digests = None if body.digests is UNSET else body.digests
    return Count(await service.tenant(tenant).objects.release(_HTTP_HOLDER + body.holder, digests=digests))


@operation("GET", _ALL + "/{digest}", raises=[NotFound], etag=etag_of)
async def get_object(service: Service, *, tenant: str, digest: str) -> Octets:
    """Get the bytes of one object."""
    (content,) = await service.tenant(tenant).objects.get([digest])
    return Octets(content, etag=digest.lower())


ROUTES = [
    route("GET", _ALL + "/usage", "objects", AsyncObjects.usage, "get_object_usage"),
    route("POST", _ALL + "/present", "objects", AsyncObjects.has, "look_for_objects", need="read"),
    route("GET", _ALL + "/verify", "objects", AsyncObjects.verify, "verify_objects", need="admin"),
    route("POST", _ALL + "/prune", "objects", AsyncObjects.prune, "prune_objects", need="admin"),
]
