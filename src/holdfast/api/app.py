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
    """The document as it is sent: as objects it would take several times the room. Most servers are never asked for it."""
    return encode(openapi.document(OPERATIONS))
