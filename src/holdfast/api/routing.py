"""Paths: everything at one of them is one endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote_to_bytes

from starlette.types import Receive, Scope, Send

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

_LATELY_MOST, _LATELY_CHARACTERS = 1_000, 200
"""Paths that are known again at once, because who asks for one mostly asks for it again; and how long they may be."""


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
            try:
                handler = self._handler(scope)
                response = await handler.answer(
                    self._service, scope, scope.get(HEADERS) or dict(scope["headers"]), receive
                )
            except Disconnected:
                return
            except Exception as error:
                response = problems.answer(error, self._service.limits)
            status = response.status_code
            await response(scope, receive, send)
        except asyncio.CancelledError:
            if not self._service.news.is_over:
                raise  # otherwise the server stops, and whoever takes so long to hear the answer is left without the rest
        finally:
            metrics.under_way -= 1
            metrics.add(self._names.get(scope["method"], "none"), status, monotonic_s() - started_s)

    def _handler(self, scope: Scope) -> Handler:
        handler = self._handlers.get(scope["method"])
        if handler is None:
            raise WrongMethod(f"there is no {scope['method']} here", headers={"allow": self._allowed})
        if b"%" in (scope.get("raw_path") or b"%"):
            scope["path_params"] = _decoded(scope["path_params"])
        return handler


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


class Paths:
    """All paths as one tree: as quick for the last as for the first, and a word goes before a name.

    A path is split before it is decoded, so a name may have a slash in it, written ``%2F``.
    """

    def __init__(self, service: Service, operations: Sequence[Operation]) -> None:
        self._root = _Place()
        self._lately: dict[str, tuple[Endpoint, Mapping[str, str]]] = {}
        by_path: dict[str, list[Operation]] = {}
        for each in operations:
            by_path.setdefault(each.path, []).append(each)
        for path, there in by_path.items():
            place = self._root
            for part in path.split("/")[1:]:
                place = place.after(part)
            place.endpoint = Endpoint(service, there)

    def find(self, scope: Scope) -> Endpoint | None:
        """What is at the path, whatever the method, if it is ours; the names in it are noted in the scope."""
        path = _raw_path(scope)
        found = self._lately.get(path) or self._found(path)
        if found is None:
            return None
        endpoint, scope["path_params"] = found
        return endpoint

    def _found(self, path: str) -> tuple[Endpoint, Mapping[str, str]] | None:
        place, names = self._root, {}
        for part in path.split("/")[1:]:
            found = place.words.get(part)
            if found is None:
                if place.named is None or not part:
                    return None
                names[place.name] = part
                found = place.named
            place = found
        if place.endpoint is None:
            return None
        if len(path) <= _LATELY_CHARACTERS:
            if len(self._lately) >= _LATELY_MOST:
                self._lately.clear()
            self._lately[path] = place.endpoint, names
        return place.endpoint, names


def _raw_path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root: str = scope.get("root_path", "")
    return raw.decode("latin-1").removeprefix(root)


def _decoded(raw: Mapping[str, str]) -> Mapping[str, str]:
    try:
        return {name: unquote_to_bytes(value).decode() for name, value in raw.items()}
    except UnicodeDecodeError:
        raise InvalidInput("the path is not percent-encoded UTF-8") from None
