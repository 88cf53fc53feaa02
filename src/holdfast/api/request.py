"""One HTTP request in progress: its headers, its deadline, and the error if it is not finished in time."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from starlette.types import Receive, Scope

from holdfast.errors import HoldfastError, OutcomeUnknown, Unavailable

from .idempotency import RETRY_ID
from .limits import ServerLimits
from .problems import HeadTooLarge, TooSlow
from .request_body import wait_for_disconnect


class Request:
    """A received request."""

    __slots__ = ("_deadline", "_watcher", "headers", "is_body_pending", "receive", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope, self.receive = scope, receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.is_body_pending = False
        self._deadline: asyncio.Timeout | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def path_params(self) -> dict[str, str]:
        """The values of the parameters in the route's path."""
        params: dict[str, str] = self.scope["path_params"]
        return params

    def check_head(self, limits: ServerLimits) -> None:
        """Check the total size of the URL and the headers.

        Raises:
            HeadTooLarge: it is over ``header_bytes``.
        """
        scope = self.scope
        size = len(scope["path"]) + len(scope["query_string"])
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4  # ": " and the line end
        if size > limits.header_bytes:
            raise HeadTooLarge(limits)

    def within(self, seconds: float | None) -> asyncio.Timeout:
        """Return this request's deadline, a context manager around all work on its response."""
        self._deadline = asyncio.timeout(seconds)
        return self._deadline

    def cancel_when_client_leaves(self) -> None:
        """Cancel the work on this request as soon as its client disconnects. The body must have been read."""
        self._watcher = asyncio.create_task(wait_for_disconnect(self.receive))
        self._watcher.add_done_callback(self._on_watcher_done)

    def _on_watcher_done(self, watcher: asyncio.Task[None]) -> None:
        if not watcher.cancelled() and self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time())

    @property
    def is_client_gone(self) -> bool:
        """Whether the client has disconnected since ``cancel_when_client_leaves``."""
        return self._watcher is not None and self._watcher.done() and not self._watcher.cancelled()

    def close(self) -> None:
        """Stop watching the client."""
        if self._watcher is not None:
            self._watcher.cancel()

    def too_late(self, limits: ServerLimits) -> HoldfastError:
        """Return the error for a request that took longer than ``answer_s``."""
        if self.is_body_pending:
            message = f"the body did not arrive within answer_s = {limits.answer_s} s"
            return TooSlow(message, headers={"connection": "close"})
        return self._unfinished(f"the request did not finish within answer_s = {limits.answer_s} s")

    def cut_off(self, limits: ServerLimits) -> HoldfastError:
        """Return the error for a request that was cancelled because the server is stopping."""
        message = f"the server is stopping, and the request did not finish within grace_s = {limits.grace_s} s"
        return Unavailable(message) if self.is_body_pending else self._unfinished(message)

    def _unfinished(self, message: str) -> HoldfastError:
        if self.scope["method"] in ("GET", "HEAD"):
            return Unavailable(message)
        return OutcomeUnknown(message, id=RETRY_ID.get())


def path_of(scope: Scope) -> str:
    """Return the path as it was sent, percent-encoded, relative to the mount point of the application."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw.decode("latin-1").removeprefix(scope.get("root_path", ""))
    if path.startswith("//") and path.lstrip("/").startswith("api/"):
        return "/" + path.lstrip("/")  # kagent's clients with a base URL that ends in a slash
    return path
