"""The routes of kagent's API: authorization, dispatch and error responses."""

from __future__ import annotations

import logging
from functools import partial
from typing import Literal, cast

from starlette.responses import Response
from starlette.types import Scope

from holdfast.errors import Closed, Forbidden, HoldfastError

from .. import problems, routing
from ..limits import ServerLimits
from ..operations import KAGENT
from ..problems import HttpError, status_of
from ..request import Request
from ..request_body import read_body
from ..state import Service
from . import checkpoints, crewai, feedback, memories, model_configs, registry, sessions, shares, tasks
from .request import KagentRequest, KagentRoute, failure

log = logging.getLogger("holdfast.api")

_MODULES = (sessions, tasks, shares, memories, checkpoints, crewai, registry, model_configs, feedback)
_OPEN = ("/health", "/version")


def declared_routes() -> list[KagentRoute]:
    """Return all functions that are declared as routes."""
    routes_of_members = [
        getattr(member, "kagent_routes", ()) for module in _MODULES for member in vars(module).values()
    ]
    return [route for declared in routes_of_members for route in declared]


def routes(service: Service) -> list[routing.Route]:
    """Return the routes of kagent's API, for the router."""
    return [
        routing.Route(route.method, route.path, f"kagent_{route.handler.__name__}", partial(_respond, service, route))
        for route in declared_routes()
    ]


def is_kagent_path(path: str) -> bool:
    """Return whether errors at this path have kagent's format."""
    return path.startswith("/api/") or path in _OPEN


def error_response(error: Exception, limits: ServerLimits) -> Response:
    """Return an error response in kagent's format. Errors of the caller are explained; those of the server are only named."""
    if not isinstance(error, HoldfastError):
        log.error("a request failed with an unexpected error", exc_info=error)
        return failure(500, "An unexpected error occurred.")
    status = status_of(type(error))
    status = 400 if status == 422 else status  # kagent has one status for invalid input
    if status < 500:
        return failure(status, str(error), error.headers if isinstance(error, HttpError) else None)
    log.error("%s: %s", type(error).__name__, error)
    after = {"retry-after": str(limits.retry_after_s)} if status == 503 else None
    return failure(status, problems.title_of(type(error)), after)


async def _respond(service: Service, route: KagentRoute, request: Request) -> Response:
    access = service.access
    if route.path in _OPEN:
        return await _call(service, route, request, "default" if access is None else access.tenant)
    if access is None:
        raise Closed
    scope = _loggable(request)
    caller = await access.caller(scope, request.headers)
    tenant = caller.tenant or access.tenant
    access.check(caller, cast("Literal['read', 'write']", route.need), KAGENT, tenant, scope)
    try:
        with service.requests.take(tenant):
            return await _call(service, route, request, tenant)
    except Forbidden as error:
        access.forbid(caller, str(error), scope)
        raise


async def _call(service: Service, route: KagentRoute, request: Request, tenant: str) -> Response:
    headers = request.headers
    has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    data = await read_body(request, service.limits) if has_body else b""
    if route.need == "read":
        request.cancel_when_client_leaves()
    query = request.scope["query_string"].decode("latin-1")
    kagent_request = KagentRequest(service, service.tenant(tenant), request.path_params, headers, query, data)
    return await route.handler(kagent_request)


def _loggable(request: Request) -> Scope:
    """Return the scope without the token of a share link in its path, for the audit log."""
    scope, token = request.scope, request.path_params.get("token")
    return scope if token is None else {**scope, "path": scope["path"].replace(token, "...")}
