"""Running the server: bind, serve, stop when told, and finish first what was accepted."""

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
COLLECT_EVERY = 20_000
"""Objects made and not yet given up, between two looks for those that only hold each other. A request makes dozens and leaves
none behind; at Python's own 700, looking takes a twentieth of the time of an append."""

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
    """Serve until SIGTERM or SIGINT; requests that were accepted by then are answered first.

    Args:
        database: what ``Holdfast`` takes.
        host: where to listen. An address other machines can reach is refused unless ``allow_remote``.
        port: where to listen; 0 for any that is free.
        allow_remote: let other machines in. What travels is not encrypted: put something in front that does it.
        limits: what one request may carry, and how long things may take.
        access: who is let in without a key.
        admin_key: the key that may do everything. Without it one is drawn, if there is none in the database yet.
        migrate: bring the schema up to date first; without a word, on SQLite only.
        snapshots_per_run: snapshots of a run that are kept; stored in the database, for every process on it.
        background: what to do beside answering; without it, nothing.
        packs: where large objects lie, as ``Holdfast`` takes it.
        encryption_key: the keys for secrets, as ``Holdfast`` takes them.
        on_ready: called once, when requests are answered, with the address and the key that was drawn, if one was. If it cannot
            show them (``OSError``), a key that was drawn is revoked and the server stops; without one it goes on.

    Raises:
        InvalidInput: other machines could reach ``host``, or there is no such host.
        Unavailable: the port is taken, the database cannot be reached, or the key that was drawn could not be shown.
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
    listening = bind(host, port, allow_remote=allow_remote)
    with listening, suppress(_Stopped), _stopped_by_signals(), _silent_after_failure(service):
        config = _config(build(service, local_only=not allow_remote, access=access), limits)
        server = _Server(config, service, lambda: on_ready(address_of(listening), service.drawn_key))
        try:
            server.run(sockets=[listening])
        finally:
            if service.failure is not None:  # some releases of uvicorn exit, others return
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
        proxy_headers=False,  # the address of a caller is that of the connection, whatever a header says
        backlog=file_descriptors.BACKLOG,
        timeout_keep_alive=limits.idle_s,
        timeout_graceful_shutdown=limits.grace_s,
    )


def bind(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """A socket that listens there.

    Raises:
        InvalidInput: other machines could reach it, or there is no such host.
        Unavailable: the port is taken or not ours to take.
    """
    family, place = _resolved(host, port)
    if not allow_remote and not is_local(str(place[0])):
        raise InvalidInput(
            f"other machines can reach {host}, and keys would travel there unencrypted: "
            f"use --host {HOST}, or add --allow-remote where the network is yours or something in front encrypts"
        )
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(place)
        listening.listen(file_descriptors.BACKLOG)
    except OSError as error:
        listening.close()
        raise _not_bound(error, host, port) from error
    return listening


def address_of(listening: socket.socket) -> str:
    """The address to ask at."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Stopped(Exception):
    """A signal asked us to stop."""


class _Server(uvicorn.Server):
    """Says when it is ready, and lets streams end before it waits for everybody to leave."""

    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._on_ready = service, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            gc.collect()
            gc.freeze()  # what is there now stays until the end, and need not be looked through again
            gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])
            try:
                self._on_ready()
            except OSError as error:
                await self._not_shown(error)

    async def _not_shown(self, error: OSError) -> None:
        """Nobody has seen what was to be shown: let no key stay that nobody has."""
        if self._service.drawn_key is not None:
            await self._service.take_back_drawn_key()
            self._service.failure = Unavailable(
                f"the key that may do everything could not be shown ({error.strerror}) and was revoked: start again with "
                "standard output open, or bring a key in HOLDFAST_ADMIN_KEY"
            )
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_S == 0:
            now_s = asyncio.get_running_loop().time()
            for each in list(self.server_state.connections):
                if isinstance(each, LimitedProtocol):
                    each.check(now_s)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stop()
        await super().shutdown(sockets)


def _resolved(host: str, port: int) -> tuple[int, tuple[str | int | bytes, ...]]:
    try:
        (family, _, _, _, place), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"there is no host {host!r} to listen on: {error}") from None
    return family, place


def _not_bound(error: OSError, host: str, port: int) -> Unavailable:
    if error.errno == errno.EADDRINUSE:
        return Unavailable(f"port {port} on {host} is in use: stop the other program, or choose another with --port")
    return Unavailable(f"cannot listen on {host} port {port}: {error.strerror}")


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Make a signal the orderly end: before the server runs at once, afterwards when uvicorn, done, raises it again."""

    def heard(number: int, frame: FrameType | None) -> None:
        raise _Stopped

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _silent_after_failure(service: Service) -> Iterator[None]:
    """Keep uvicorn from logging why the database could not be opened: whoever called ``serve`` is told."""

    def keep(record: logging.LogRecord) -> bool:
        return service.failure is None

    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)
