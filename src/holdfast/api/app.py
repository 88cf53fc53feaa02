"""The ASGI application."""

from __future__ import annotations

from starlette.routing import Router
from starlette.types import ASGIApp

from . import openapi
from .guard import Guard
from .limits import ServerLimits
from .resources import OPERATIONS
from .routing import Nowhere, Paths
from .service import Service


def application(database: str, *, limits: ServerLimits | None = None, local_only: bool = True) -> ASGIApp:
    """Holdfast over HTTP, for any ASGI server that runs the lifespan; the database is open while it does.

    Args:
        database: what ``Holdfast`` takes: a path, ``sqlite:///path`` or ``postgresql://...``.
        limits: what one request may carry.
        local_only: answer only requests that are addressed to this machine by a name that cannot mean another. There is no
            authentication: switch it off only where everybody who can reach the server may do everything.
    """
    return build(Service(database, limits or ServerLimits()), local_only=local_only)


def build(service: Service, *, local_only: bool) -> ASGIApp:
    """The application around a service."""
    service.document = openapi.document(OPERATIONS)
    router = Router(
        [Paths(service, OPERATIONS)],
        redirect_slashes=False,
        default=Nowhere(service.limits),
        lifespan=service.lifespan,
    )
    return Guard(router, service.limits, local_only=local_only)
