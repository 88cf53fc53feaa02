"""Refuses requests that web pages of other sites make.

A key keeps out who has none, but a browser on this machine may have one, or come from an address that is trusted, and it asks on
behalf of any page it shows: directly, and, when a page's own name is made to mean this machine, as if it were the same site.
Both show in the headers that a browser always sends.
"""

from __future__ import annotations

from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import Forbidden

from . import problems
from .auth import Access, host_name, unmapped
from .limits import ServerLimits


class OriginCheck:
    """Refuses requests that a web page of another site made; with ``local_only``, also those under a name that is not ours."""

    def __init__(self, app: ASGIApp, access: Access, limits: ServerLimits, *, local_only: bool) -> None:
        self._app, self._access, self._limits, self._local_only = app, access, limits, local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(dict(scope["headers"]))
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            self._access.turn_away(str(refusal), scope)
            await problems.answer(refusal, self._limits)(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes]) -> Forbidden | None:
        host = headers.get(b"host", b"")
        origin = headers.get(b"origin")
        if origin is not None and (not host or origin.partition(b"://")[2] != host):
            return Forbidden("a web page of another site may not use this server")
        if self._local_only and host and not _is_local_host(host):
            return Forbidden("this server answers to 127.0.0.1 and localhost only")
        return None


def is_local(name: str) -> bool:
    """Whether a name or an address can only mean this machine."""
    if name == "localhost":
        return True
    address = unmapped(name)
    return address is not None and address.is_loopback


@lru_cache(maxsize=64)
def _is_local_host(host: bytes) -> bool:
    return is_local(host_name(host))
