"""Runs the server: bind the socket, serve until a signal arrives, and complete accepted requests before exiting."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from holdfast.background import BackgroundOptions
from holdfast.encryption import Keys
from holdfast.errors import InvalidInput, Unavailable

from . import file_descriptors
from .app import build
from .auth import AccessOptions
from .limits import ServerLimits
from .origin_check import is_local
from .protocol import LimitedProtocol, protocol_of
from .state import Service

HOST, PORT = "127.0.0.1", 8420
GC_THRESHOLD = 20_000
"""Net allocations between two runs of the cyclic garbage collector. A request allocates dozens of objects and leaves no cycles;
with Python's default of 700, collection takes 5 % of the time of an append."""

_TICKS_PER_S = 10
"""How often uvicorn calls ``on_tick``."""

log = logging.getLogger("uvicorn.error")


def serve(
    database: str,
    *,
    host: str = HOST,
    port: int = PORT,
    allow_remote: bool = False,
    limits: ServerLimits | None = None,
    access: AccessOptions | None = None,
    admin_key: str | None = None,
    migrate: bool | None = None,
    snapshots_per_run: int | None = None,
    background: BackgroundOptions | None = None,
    packs: str | None = None,
    encryption_key: Keys | None = None,
    on_ready: Callable[[str, str | None], None] = lambda address, key: None,
) -> None:
    """Serve until SIGTERM or SIGINT, then complete the accepted requests and return.

    Args:
        database: as for ``Holdfast``.
        host: the address to listen on. An address that other machines can reach is refused unless ``allow_remote`` is set.
        port: the port to listen on; 0 chooses a free one.
        allow_remote: accept requests from other machines. Traffic is not encrypted: put a TLS proxy in front.
        limits: limits on the size and duration of requests.
        access: which callers need no key.
        admin_key: a key with all permissions. Without it, one is generated if the database has no valid admin key.
        migrate: migrate the schema first; by default on SQLite only.
        snapshots_per_run: how many snapshots of a run to keep; stored in the database, for all processes that use it.
        background: background jobs to run; none by default.
        packs: the location of the packs of large objects, as for ``Holdfast``.
        encryption_key: the keys for secrets, as for ``Holdfast``.
        on_ready: called once when the server accepts requests, with its address and the generated key, if any. If it raises
            ``OSError``, a generated key is revoked and the server stops; without a generated key the server continues.

    Raises:
        InvalidInput: other machines could reach ``host``, or ``host`` cannot be resolved.
        Unavailable: the port is in use, the database cannot be reached, or the generated key could not be shown.
    """
    limits = limits or ServerLimits()
    service = Service(
        database,
        limits,
        admin_key=admin_key,
        migrate=migrate or None,
        snapshots_per_run=snapshots_per_run,
        background=background,
        packs=packs,
        encryption_key=encryption_key,
    )
    sock = bind(host, port, allow_remote=allow_remote)
    with sock, suppress(_Stopped), _stopped_by_signals(), _silent_after_failure(service):
        config = _config(build(service, local_only=not allow_remote, access=access), limits)
        server = _Server(config, service, lambda: on_ready(address_of(sock), service.generated_key))
        try:
            server.run(sockets=[sock])
        finally:
            if service.failure is not None:  # depending on its release, uvicorn exits or returns
                raise service.failure from None


def _config(app: ASGIApp, limits: ServerLimits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol_of(limits, file_descriptors.connections(limits)),
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,  # a caller's address is that of its connection; headers can be forged
        backlog=file_descriptors.BACKLOG,
        timeout_keep_alive=limits.idle_s,
        timeout_graceful_shutdown=limits.grace_s,
    )


def bind(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """Return a socket that listens on ``host`` and ``port``.

    Raises:
        InvalidInput: other machines could reach ``host``, or it cannot be resolved.
        Unavailable: the port is in use, or this process may not bind it.
    """
    family, address = _resolve(host, port)
    if not allow_remote and not is_local(str(address[0])):
        raise InvalidInput(
            f"other machines can reach {host}, and API keys would be sent to it unencrypted: "
            f"use --host {HOST}, or add --allow-remote if the network is private or a proxy in front encrypts",
            field="host",
        )
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(file_descriptors.BACKLOG)
    except OSError as error:
        sock.close()
        raise _bind_error(error, host, port) from error
    return sock


def address_of(sock: socket.socket) -> str:
    """Return the base URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Stopped(Exception):
    """A signal requested the server to stop."""


class _Server(uvicorn.Server):
    """Calls ``on_ready`` after startup, and ends streams before uvicorn waits for connections to close."""

    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._on_ready = service, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            gc.collect()
            gc.freeze()  # objects made during startup live until the end: exclude them from collection
            gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])
            try:
                self._on_ready()
            except OSError as error:
                await self._revoke_unshown_key(error)

    async def _revoke_unshown_key(self, error: OSError) -> None:
        """Revoke the generated key, because no operator has seen it, and stop the server."""
        if self._service.generated_key is not None:
            await self._service.revoke_generated_key()
            self._service.failure = Unavailable(
                f"the generated admin key could not be shown ({error.strerror}) and was revoked: start the server with "
                "standard output open, or set HOLDFAST_ADMIN_KEY"
            )
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_S == 0:
            now_s = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, LimitedProtocol):
                    connection.check(now_s)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stop()
        await super().shutdown(sockets)


def _resolve(host: str, port: int) -> tuple[int, tuple[str | int | bytes, ...]]:
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"host {host!r} cannot be resolved: {error}", field="host") from None
    return family, address


def _bind_error(error: OSError, host: str, port: int) -> Unavailable:
    if error.errno == errno.EADDRINUSE:
        return Unavailable(
            f"port {port} on {host} is in use: stop the other program or choose another port with --port"
        )
    return Unavailable(f"cannot listen on {host} port {port}: {error.strerror}")


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Make SIGINT and SIGTERM end ``serve`` normally: before uvicorn runs, and when uvicorn raises the signal again after it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _silent_after_failure(service: Service) -> Iterator[None]:
    """Keep uvicorn from logging why the database could not be opened: ``serve`` raises that error to its caller."""

    def is_logged(record: logging.LogRecord) -> bool:
        return service.failure is None

    log.addFilter(is_logged)
    try:
        yield
    finally:
        log.removeFilter(is_logged)
