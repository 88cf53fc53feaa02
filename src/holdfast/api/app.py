"""The ASGI application."""

from __future__ import annotations

from functools import cache

import starlette.routing
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from . import kagent, openapi, problems
from .auth import Access, AccessOptions
from .handler import operation_routes
from .limits import ServerLimits
from .origin_check import OriginCheck
from .resources import OPERATIONS
from .routing import Router
from .schemas import encode
from .state import Service


def application(
    database: str,
    *,
    limits: ServerLimits | None = None,
    local_only: bool = True,
    access: AccessOptions | None = None,
    admin_key: str | None = None,
    packs: str | None = None,
) -> ASGIApp:
    """Return the ASGI application. The server must run its lifespan, which opens and closes the database.

    Args:
        database: as for ``Holdfast``: a path, ``sqlite:///path`` or ``postgresql://...``.
        limits: limits on the size and duration of requests.
        local_only: accept only requests whose ``Host`` is a loopback address or ``localhost``.
        access: which callers need no key.
        admin_key: a key with all permissions (``holdfast.new_api_key`` generates one). Only its digest is stored.
        packs: the location of the packs of large objects, as for ``Holdfast``.
    """
    service = Service(database, limits or ServerLimits(), admin_key=admin_key, packs=packs)
    return build(service, local_only=local_only, access=access)


def build(service: Service, *, local_only: bool, access: AccessOptions | None = None) -> ASGIApp:
    """Return the ASGI application of a service."""
    service.access = Access(service, access or AccessOptions(), service.audit, clock=service.clock)
    service.document = _document

    def error_response(error: Exception, path: str) -> Response:
        answer = kagent.error_response if kagent.is_kagent_path(path) else problems.answer
        return answer(error, service.limits)

    routes = [*operation_routes(service, OPERATIONS), *kagent.routes(service)]
    router = Router(service, routes, error_response)
    guard = OriginCheck(router, service.access, service.limits, local_only=local_only)
    lifespan = starlette.routing.Router(lifespan=service.lifespan)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (guard if scope["type"] == "http" else lifespan)(scope, receive, send)

    return app


@cache
def _document() -> bytes:
    """Return the encoded OpenAPI document. Its bytes are cached, which takes a fraction of the memory of the objects; it is built
    on the first request, because most servers never get one."""
    return encode(openapi.document(OPERATIONS))
