"""Where kagent's clients ask, who may, and what they hear when something goes wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Literal, cast
from urllib.parse import unquote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.clock import monotonic_s
from holdfast.errors import Closed, Forbidden, HoldfastError, OutcomeUnknown, Unavailable

from .. import problems
from ..access import Access, Caller
from ..bodies import Disconnected, read_body
from ..operations import KAGENT
from ..problems import HttpError, NoSuchRoute, TooSlow, WrongMethod, status_of
from ..service import Service
from . import checkpoints, crews, memories, registry, remarks, sessions, shares, tasks
from .exchange import Ask, Route, failure

log = logging.getLogger("holdfast.api")

_MODULES = (sessions, tasks, shares, memories, checkpoints, crews, registry, remarks)
_OPEN = ("/health", "/version")


def routes() -> list[Route]:
    """Everything that can be asked."""
    found = [getattr(each, "kagent_routes", ()) for module in _MODULES for each in vars(module).values()]
    return [route for marked in found for route in marked]


class _Tree:
    """Where a path has come to, part by part; a word goes before a name."""

    def __init__(self) -> None:
        self.words: dict[str, _Tree] = {}
        self.named: tuple[str, _Tree] | None = None
        self.methods: dict[str, Route] = {}

    def add(self, parts: Sequence[str], route: Route) -> None:
        if not parts:
            self.methods[route.method] = route
            return
        first, rest = parts[0], parts[1:]
        if not first.startswith("{"):
            self.words.setdefault(first, _Tree()).add(rest, route)
            return
        self.named = self.named or (first.strip("{}"), _Tree())
        self.named[1].add(rest, route)

    def find(self, parts: Sequence[str], names: dict[str, str]) -> _Tree | None:
        if not parts:
            return self if self.methods else None
        below = self.words.get(parts[0])
        found = None if below is None else below.find(parts[1:], names)
        if found is None and self.named is not None and parts[0]:
            name, tree = self.named
            found = tree.find(parts[1:], names)
            if found is not None:
                names[name] = unquote(parts[0])
        return found


class KagentPaths:
    """All of kagent's paths. A client whose address ends in a slash asks for ``//api/...``, and is answered all the same."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tree = _Tree()
        for each in routes():
            self._tree.add(each.path.split("/")[1:], each)

    def is_ours(self, scope: Scope) -> bool:
        """Whether the path is kagent's, whatever the method."""
        path = _path(scope)
        return path.startswith("/api/") or path in _OPEN

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        metrics, started_s = self._service.metrics, monotonic_s()
        metrics.under_way += 1
        name, status = "none", 0
        try:
            name, response = await self._answered(scope, receive)
            status = 0 if response is None else response.status_code
            if response is not None:
                await response(scope, receive, send)
        finally:
            metrics.under_way -= 1
            metrics.add(name, status, monotonic_s() - started_s)

    async def _answered(self, scope: Scope, receive: Receive) -> tuple[str, Response | None]:
        """The name of what was asked, and the answer, or ``None`` if nobody is left to hear it."""
        name = "none"
        try:
            route, names = self._find(scope)
            name = f"kagent_{route.handler.__name__}"
            return name, await self._answer(route, names, scope, receive)
        except Disconnected:
            return name, None
        except asyncio.CancelledError:
            if not self._service.news.is_over:
                raise
            return name, _failed(
                _not_done(scope, f"not done within grace_s = {self._service.limits.grace_s} s"), self._service
            )
        except Exception as error:
            return name, _failed(error, self._service)

    def _find(self, scope: Scope) -> tuple[Route, Mapping[str, str]]:
        names: dict[str, str] = {}
        found = self._tree.find(_path(scope).split("/")[1:], names)
        if found is None:
            raise NoSuchRoute(f"there is nothing at {scope['path']}")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method not in found.methods:
            raise WrongMethod(f"there is no {method} here", headers={"allow": ", ".join(sorted(found.methods))})
        return found.methods[method], names

    async def _answer(self, route: Route, names: Mapping[str, str], scope: Scope, receive: Receive) -> Response:
        if route.path in _OPEN:
            return await self._handled(route, names, scope, receive, self._default_tenant())
        access, nameable = self._access(), _nameable(scope, names)
        caller = await self._caller(access, route, nameable)
        try:
            return await self._handled(route, names, scope, receive, caller.tenant or access.tenant)
        except Forbidden as error:
            access.forbid(caller, str(error), nameable)
            raise

    async def _handled(
        self, route: Route, names: Mapping[str, str], scope: Scope, receive: Receive, tenant: str
    ) -> Response:
        headers = dict(scope["headers"])
        sends = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        query = scope["query_string"].decode("latin-1")
        handle = self._service.tenant(tenant)
        limits, is_read = self._service.limits, False
        try:
            async with asyncio.timeout(limits.answer_s):
                data = await read_body(receive, headers, limits) if sends else b""
                is_read = True
                return await route.handler(Ask(self._service, handle, names, headers, query, data))
        except TimeoutError:
            if is_read:
                raise _not_done(scope, f"not done within answer_s = {limits.answer_s} s") from None
            message = f"the body did not come within answer_s = {limits.answer_s} s"
            raise TooSlow(message, headers={"connection": "close"}) from None

    async def _caller(self, access: Access, route: Route, scope: Scope) -> Caller:
        """Whoever asks, if they may. They speak of the tenant of their key, or of the default one."""
        caller = await access.caller(scope, dict(scope["headers"]))
        need = cast("Literal['read', 'write']", route.need)
        access.check(caller, need, KAGENT, caller.tenant or access.tenant, scope)
        return caller

    def _access(self) -> Access:
        if self._service.access is None:
            raise Closed
        return self._service.access

    def _default_tenant(self) -> str:
        return "default" if self._service.access is None else self._service.access.tenant


def _not_done(scope: Scope, message: str) -> HoldfastError:
    return Unavailable(message) if scope["method"] in ("GET", "HEAD") else OutcomeUnknown(message)


def _nameable(scope: Scope, names: Mapping[str, str]) -> Scope:
    """A request as it may be named where refusals are noted: without the token of a link, which lets whoever has it in."""
    return {**scope, "path": scope["path"].replace(names["token"], "...")} if "token" in names else scope


def _path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.decode("latin-1").removeprefix(scope.get("root_path", "")).partition("?")[0]
    return "/" + path.lstrip("/")


def _failed(error: Exception, service: Service) -> Response:
    """An error as kagent's clients know it: a mistake of the caller is explained, what is wrong here is only named."""
    if not isinstance(error, HoldfastError):
        log.error("a request failed in a way nobody thought of", exc_info=error)
        return failure(500, "Something unexpected went wrong.")
    status = status_of(type(error))
    status = 400 if status == 422 else status  # kagent knows one way to say that something is not acceptable
    if status < 500:
        return failure(status, str(error), error.headers if isinstance(error, HttpError) else None)
    log.error("%s: %s", type(error).__name__, error)
    after = {"retry-after": str(service.limits.retry_after_s)} if status == 503 else None
    return failure(status, problems.title_of(type(error)), after)
