"""Paths: everything at one of them is one endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from starlette.datastructures import URLPath
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.clock import monotonic_s
from holdfast.errors import InvalidInput

from . import problems
from .binding import Handler
from .bodies import Disconnected
from .guard import HEADERS
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
        self._names = {each.method: each.function.__name__ for each in operations}
        self._allowed = ", ".join(sorted(self._handlers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics, started_s = self._service.metrics, monotonic_s()
        metrics.under_way += 1
        status = 0
        try:
            response = await self._answer(scope, receive)
            status = getattr(response, "status_code", 0)
            if response is not None:
                await response(scope, receive, send)
        except asyncio.CancelledError:
            if not self._service.news.is_over:
                raise  # otherwise the server stops, and whoever takes so long to hear the answer is left without the rest
        finally:
            metrics.under_way -= 1
            metrics.add(self._names.get(scope["method"], "none"), status, monotonic_s() - started_s)

    async def _answer(self, scope: Scope, receive: Receive) -> ASGIApp | None:
        """The answer, or ``None`` if nobody is left to hear it."""
        try:
            handler = self._handlers.get(scope["method"])
            if handler is None:
                raise WrongMethod(f"there is no {scope['method']} here", headers={"allow": self._allowed})
            scope["path_params"] = _decoded(scope["path_params"])
            return await handler.answer(self._service, scope, scope.get(HEADERS) or dict(scope["headers"]), receive)
        except Disconnected:
            return None
        except Exception as error:
            return problems.answer(error, self._service.limits)


class Nowhere:
    """What answers where there is nothing."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        message = f"there is nothing at {scope['path']}; /openapi.json has everything there is"
        await problems.answer(NoSuchRoute(message), self._limits)(scope, receive, send)


class _Place:
    """Where a path has come to, part by part."""

    def __init__(self) -> None:
        self.words: dict[str, _Place] = {}
        self.name = ""
        self.named: _Place | None = None
        self.endpoint: Endpoint | None = None

    def after(self, part: str) -> _Place:
        """The next place, made if it is not there."""
        if not part.startswith("{"):
            return self.words.setdefault(part, _Place())
        if self.named is None:
            self.name, self.named = part.strip("{}"), _Place()
        if self.name != part.strip("{}"):
            raise ValueError(f"one place in a path has two names: {self.name} and {part}")
        return self.named


class Paths(BaseRoute):
    """All paths as one tree: as quick for the last as for the first, and a word goes before a name.

    A path is split before it is decoded, so a name may have a slash in it, written ``%2F``.
    """

    def __init__(self, service: Service, operations: Sequence[Operation]) -> None:
        self._root = _Place()
        by_path: dict[str, list[Operation]] = {}
        for each in operations:
            by_path.setdefault(each.path, []).append(each)
        for path, there in by_path.items():
            place = self._root
            for part in path.split("/")[1:]:
                place = place.after(part)
            place.endpoint = Endpoint(service, there)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the path is ours, whatever the method."""
        if scope["type"] != "http":
            return Match.NONE, {}
        place, names = self._root, {}
        for part in _raw_path(scope).split("/")[1:]:
            found = place.words.get(part)
            if found is None:
                if place.named is None or not part:
                    return Match.NONE, {}
                names[place.name] = part
                found = place.named
            place = found
        if place.endpoint is None:
            return Match.NONE, {}
        return Match.FULL, {"endpoint": place.endpoint, "path_params": names}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request over to what was found."""
        await scope["endpoint"](scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        """Paths have no names here."""
        raise NoMatchFound(name, path_params)


def _raw_path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root: str = scope.get("root_path", "")
    return raw.decode("latin-1").removeprefix(root)


def _decoded(raw: Mapping[str, str]) -> Mapping[str, str]:
    if "%" not in "".join(raw.values()):
        return raw
    try:
        return {name: unquote_to_bytes(value).decode() for name, value in raw.items()}
    except UnicodeDecodeError:
        raise InvalidInput("the path is not percent-encoded UTF-8") from None
