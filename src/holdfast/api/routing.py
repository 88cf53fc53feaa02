"""The router of both APIs: finds the route for a request's path, runs it and records metrics.

It serves ``/v1`` and kagent's ``/api``. It alone sets the deadline of a request, cancels and counts the request, and
converts its errors to responses.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import unquote_to_bytes

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from holdfast.clock import monotonic_s
from holdfast.errors import InvalidInput

from .problems import NoSuchRoute, WrongMethod
from .request import Request, path_of
from .request_body import Disconnected
from .responses import Sendable
from .state import Service

_IN_PATH = re.compile(r"{(\w+)}")

ErrorResponse = Callable[[Exception, str], Sendable]
"""Makes the response to a request for this path that raised an error."""


class Route(Struct, frozen=True):
    """One method on one path."""

    method: str
    path: str
    name: str
    """The name of the operation in the metrics."""
    respond: Callable[[Request], Awaitable[Sendable]]
    is_unbounded: bool = False
    """Whether it may take longer than ``answer_s``: a stream, or an archive."""


class Router:
    """An ASGI application. It splits a path before decoding it, so a name may contain a slash, encoded as ``%2F``.

    Starlette's router tries its routes one after another, and matches the decoded path.
    """

    def __init__(self, service: Service, routes: Iterable[Route], error_response: ErrorResponse) -> None:
        self._service, self._error_response = service, error_response
        self._root = _Node()
        for route in routes:
            self._root.add(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics, started_s = self._service.metrics, monotonic_s()
        metrics.under_way += 1
        name, status = "none", 0
        try:
            try:
                request = Request(scope, receive)
                request.check_head(self._service.limits)
                route = self.match(scope)
                name = route.name
                response = await self._respond(route, request)
            except Disconnected:
                return
            except Exception as error:
                response = self._error_response(error, path_of(scope))
            status = response.status_code
            await response(scope, receive, send)
        except asyncio.CancelledError:
            if not self._service.notifier.is_closed:
                raise  # otherwise the server is stopping, and does not wait for a client that reads slowly
        finally:
            metrics.under_way -= 1
            metrics.add(name, status, monotonic_s() - started_s)

    def match(self, scope: Scope) -> Route:
        """Return the route of a request, and add the values of its path parameters to the scope.

        Raises:
            NoSuchRoute: no route has this path.
            WrongMethod: the path does not support this method.
            InvalidInput: the path is not percent-encoded UTF-8.
        """
        path = path_of(scope)
        values: list[str] = []
        node = self._root.find(path.split("/"), 1, values)
        if node is None:
            raise NoSuchRoute(f"the path {scope['path']} does not exist")
        match = node.routes.get(scope["method"])
        if match is None:
            allowed = ", ".join(sorted(node.routes))
            raise WrongMethod(f"this path does not support {scope['method']}", headers={"allow": allowed})
        route, names = match
        if "%" in path:
            values = [_decode(value) for value in values]
        scope["path_params"] = dict(zip(names, values, strict=True))
        return route

    async def _respond(self, route: Route, request: Request) -> Sendable:
        limits = self._service.limits
        deadline = request.within(None if route.is_unbounded else limits.answer_s)
        try:
            async with deadline:
                return await route.respond(request)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise (Disconnected if request.is_client_gone else request.too_late(limits)) from None
        except asyncio.CancelledError:
            if not self._service.notifier.is_closed:
                raise
            raise request.cut_off(limits) from None
        finally:
            request.close()


class _Node:
    """A node of the tree of paths. A literal segment takes precedence over a parameter."""

    __slots__ = ("literals", "named", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.named: _Node | None = None
        self.routes: dict[str, tuple[Route, list[str]]] = {}

    def add(self, route: Route) -> None:
        node = self
        for part in route.path.split("/")[1:]:
            if not part.startswith("{"):
                node = node.literals.setdefault(part, _Node())
            else:
                node.named = node.named or _Node()
                node = node.named
        entry = route, _IN_PATH.findall(route.path)
        if node.routes.setdefault(route.method, entry) is not entry:
            raise ValueError(f"two routes are defined for {route.method} {route.path}")
        if route.method == "GET":
            node.routes["HEAD"] = entry

    def find(self, parts: list[str], at: int, values: list[str]) -> _Node | None:
        """Return the node for the remaining segments of a path, and append the values of its parameters to ``values``."""
        if at == len(parts):
            return self if self.routes else None
        part = parts[at]
        child = self.literals.get(part)
        node = None if child is None else child.find(parts, at + 1, values)
        if node is None and self.named is not None and part:
            values.append(part)
            node = self.named.find(parts, at + 1, values)
            if node is None:
                values.pop()
        return node


def _decode(value: str) -> str:
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise InvalidInput("the path is not percent-encoded UTF-8", field="path") from None
