"""Refuses requests from web pages of other sites.

A browser on this machine may have a key or a trusted address, and it sends requests for any page it shows: cross-site requests,
and, if the page's domain resolves to this machine (DNS rebinding), requests that look same-site. The ``Origin`` and ``Host``
headers, which browsers always send, reveal both.
"""

from __future__ import annotations

from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import Forbidden

from . import problems
from .auth import Access, host_name, parse_address
from .limits import ServerLimits


class OriginCheck:
    """Refuses requests from web pages of other sites; with ``local_only``, also those whose ``Host`` is not this machine."""

    def __init__(self, app: ASGIApp, access: Access, limits: ServerLimits, *, local_only: bool) -> None:
        self._app, self._access, self._limits, self._local_only = app, access, limits, local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(dict(scope["headers"]))
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            self._access.record_unauthenticated_refusal(str(refusal), scope)
            await problems.answer(refusal, self._limits)(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes]) -> Forbidden | None:
        host = headers.get(b"host", b"")
        origin = headers.get(b"origin")
        if origin is not None and (not host or origin.partition(b"://")[2] != host):
            return Forbidden("requests from web pages of other sites are not allowed")
        if self._local_only and host and not _is_local_host(host):
            return Forbidden("this server only answers requests addressed to 127.0.0.1 or localhost")
        return None


def is_local(name: str) -> bool:
    """Return whether a host name or address always refers to this machine."""
    if name == "localhost":
        return True
    address = parse_address(name)
    return address is not None and address.is_loopback


@lru_cache(maxsize=64)
def _is_local_host(host: bytes) -> bool:
    return is_local(host_name(host))
