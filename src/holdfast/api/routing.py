"""Paths: everything at one path is one endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from holdfast.errors import InvalidInput

from . import problems
from .binding import Disconnected, Handler
from .limits import ServerLimits
from .operations import Operation
from .problems import NoSuchRoute, WrongMethod
from .service import Service


class Endpoint:
    """An ASGI application for one path."""

    def __init__(self, service: Service, operations: Sequence[Operation]) -> None:
        self._service = service
        self._handlers = {each.method: Handler(each) for each in operations}
        if "GET" in self._handlers:
            self._handlers["HEAD"] = self._handlers["GET"]
        self._allowed = ", ".join(sorted(self._handlers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            handler = self._handlers.get(scope["method"])
            if handler is None:
                raise WrongMethod(f"there is no {scope['method']} here", headers={"allow": self._allowed})
            scope["path_params"] = _decoded(scope["path_params"])
            response = await handler.answer(self._service, scope, receive)
        except Disconnected:
            return
        except Exception as error:
            response = problems.answer(error, self._service.limits)
        await response(scope, receive, send)


class Nowhere:
    """What answers where there is nothing."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        message = f"there is nothing at {scope['path']}; /openapi.json has everything there is"
        await problems.answer(NoSuchRoute(message), self._limits)(scope, receive, send)


class RawRoute(Route):
    """A route that splits the path before it decodes it, so that a name may have a slash in it, written ``%2F``."""

    def __init__(self, path: str, endpoint: Endpoint) -> None:
        super().__init__(path, endpoint)
        self._pattern = re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the path is ours, whatever the method."""
        if scope["type"] != "http":
            return Match.NONE, {}
        found = self._pattern.fullmatch(_raw_path(scope))
        if found is None:
            return Match.NONE, {}
        return Match.FULL, {"endpoint": self.endpoint, "path_params": found.groupdict()}


def routes(service: Service, operations: Sequence[Operation]) -> list[BaseRoute]:
    """A route for each path; those with fewer names in them come first, so that ``by-key`` is never taken for a name."""
    by_path: dict[str, list[Operation]] = {}
    for each in operations:
        by_path.setdefault(each.path, []).append(each)
    ordered = sorted(by_path, key=lambda path: [part.startswith("{") for part in path.split("/")])
    return [RawRoute(path, Endpoint(service, by_path[path])) for path in ordered]


def _raw_path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root: str = scope.get("root_path", "")
    return raw.decode("latin-1").removeprefix(root)


def _decoded(raw: Mapping[str, str]) -> dict[str, Any]:
    try:
        return {name: unquote_to_bytes(value).decode() for name, value in raw.items()}
    except UnicodeDecodeError:
        raise InvalidInput("the path is not percent-encoded UTF-8") from None
