"""The ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import cache

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from . import openapi
from .access import Access, AccessOptions
from .guard import Guard
from .kagent import KagentPaths
from .limits import ServerLimits
from .resources import OPERATIONS
from .routing import Nowhere, Paths
from .service import Service
from .wire import encode


def application(
    database: str,
    *,
    limits: ServerLimits | None = None,
    local_only: bool = True,
    access: AccessOptions | None = None,
    admin_key: str | None = None,
    packs: str | None = None,
) -> ASGIApp:
    """Holdfast over HTTP, for any ASGI server that runs the lifespan; the database is open while it does.

    Args:
        database: what ``Holdfast`` takes: a path, ``sqlite:///path`` or ``postgresql://...``.
        limits: what one request may carry.
        local_only: answer only requests that are addressed to this machine by a name that cannot mean another.
        access: who is let in without a key.
        admin_key: the key that may do everything (``holdfast.new_api_key`` draws one). Only its digest is kept.
        packs: where large objects lie, as ``Holdfast`` takes it.
    """
    service = Service(database, limits or ServerLimits(), admin_key=admin_key, packs=packs)
    return build(service, local_only=local_only, access=access)


def build(service: Service, *, local_only: bool, access: AccessOptions | None = None) -> ASGIApp:
    """The application around a service."""
    letting_in = Access(service, access or AccessOptions(), service.denials, clock=service.clock)
    service.access = letting_in
    service.document = _document
    router = Router(redirect_slashes=False, default=Nowhere(service.limits), lifespan=service.lifespan)
    directed = _Directed(Paths(service, OPERATIONS), KagentPaths(service), router)
    return Guard(directed, letting_in, service.limits, local_only=local_only)


@cache
def _document() -> bytes:
    """The document as it is sent: as objects it would take several times the room. Most servers are never asked for it."""
    return encode(openapi.document(OPERATIONS))


class _Directed:
    """Hands a request to whoever answers it; everything else, starting and stopping among it, is Starlette's.

    A router of Starlette's does the same and more for each request, which takes as long as a tenth of an append.
    """

    def __init__(self, paths: Paths, kagent: KagentPaths, others: ASGIApp) -> None:
        self._paths, self._kagent, self._others = paths, kagent, others

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            endpoint = self._paths.find(scope)
            if endpoint is not None:
                return endpoint(scope, receive, send)
            if self._kagent.is_ours(scope):
                return self._kagent.handle(scope, receive, send)
        return self._others(scope, receive, send)
