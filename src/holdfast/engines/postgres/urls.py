"""Translate one address for libpq and for asyncpg, which passes options it does not know to the server as settings.

For asyncpg this module implements libpq's options itself: a connect timeout for each host, and keepalives on the socket.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from ...errors import InvalidInput

KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Idle seconds before the first probe, seconds between probes, and unanswered probes until a connection is closed."""
TCP_USER_TIMEOUT_MS = 30_000
"""Time that sent bytes may stay unacknowledged before the connection is closed."""
MIN_CONNECT_S = 2.0
"""libpq's shortest connect timeout."""
_LIBPQ_ONLY = frozenset(
    {
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "fallback_application_name",
        "gssdelegation",
        "gssencmode",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "load_balance_hosts",
        "require_auth",
        "requirepeer",
        "sslcertmode",
        "sslcompression",
        "sslsni",
        "tcp_user_timeout",
    }
)
"""Options that control how libpq connects; they are not settings of the server."""
_NUMBERS = {**KEEPALIVE, "keepalives": 1, "tcp_user_timeout": TCP_USER_TIMEOUT_MS}
_SOCKET_OPTIONS = {
    "keepalives_idle": getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None)),
    "keepalives_interval": getattr(socket, "TCP_KEEPINTVL", None),
    "keepalives_count": getattr(socket, "TCP_KEEPCNT", None),
    "tcp_user_timeout": getattr(socket, "TCP_USER_TIMEOUT", None),
}

Host = tuple[str, int | None]


class ConnectSettings(Struct, frozen=True):
    """How asyncpg connects to the servers of an address."""

    url: str
    """The address without options that only libpq understands."""
    attempts: list[dict[str, Any]]
    """Arguments for asyncpg in addition to the address, one set for each host; each host has its own timeout."""
    timeout_s: float
    """Longest time to connect to one host."""
    numbers: dict[str, int]

    def set_socket_options(self, sock: Any) -> None:
        """Set keepalives and the TCP user timeout as libpq does. Unix sockets have neither."""
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(self.numbers["keepalives"] != 0))
        for name, option in _SOCKET_OPTIONS.items():
            if option is not None and self.numbers[name] > 0:
                sock.setsockopt(socket.IPPROTO_TCP, option, self.numbers[name])


def for_asyncpg(url: str, timeout_s: float) -> ConnectSettings:
    """Return the connect settings for asyncpg. All hosts together get ``timeout_s``, unless the address has ``connect_timeout``.

    Raises:
        InvalidInput: an option that must be a number is not.
    """
    base, _, query = url.partition("?")
    parts = [part for part in query.split("&") if part]
    options = dict(part.partition("=")[::2] for part in parts)
    kept = [part for part in parts if part.partition("=")[0] not in _LIBPQ_ONLY]
    hosts = _hosts(base, options)
    return ConnectSettings(
        f"{base}?{'&'.join(kept)}" if kept else base,
        _attempts(hosts, options.get("target_session_attrs", "")),
        _connect_timeout_s(options, len(hosts), timeout_s),
        {name: _parse_int(name, options[name]) if name in options else default for name, default in _NUMBERS.items()},
    )


def for_libpq(url: str, timeout_s: float) -> dict[str, Any]:
    """Return connect arguments for libpq in addition to the address; options that the address contains are left out."""
    base, _, query = url.partition("?")
    options = dict(part.partition("=")[::2] for part in query.split("&"))
    arguments: dict[str, Any] = dict(_NUMBERS)
    arguments["connect_timeout"] = round(_connect_timeout_s(options, len(_hosts(base, options)), timeout_s))
    return {name: value for name, value in arguments.items() if name not in options or name == "connect_timeout"}


def _connect_timeout_s(options: dict[str, str], hosts: int, timeout_s: float) -> float:
    """Return the time to connect to one of ``hosts`` hosts. As in libpq, a ``connect_timeout`` of 0 or less sets no limit."""
    if "connect_timeout" in options:
        seconds = _parse_int("connect_timeout", options["connect_timeout"])
        if seconds > 0:
            return max(MIN_CONNECT_S, float(seconds))
    return max(MIN_CONNECT_S, timeout_s / max(1, hosts))


def _attempts(hosts: Sequence[Host], session_attrs: str) -> list[dict[str, Any]]:
    """Return one attempt for each host. Given several hosts, asyncpg would spend the whole timeout on the first dead one."""
    if len(hosts) == 1:
        return [{}]
    targets = [{"host": host, "port": port} for host, port in hosts]
    if session_attrs != "prefer-standby":
        return targets
    return [{**target, "target_session_attrs": kind} for kind in ("standby", "any") for target in targets]


def _hosts(base: str, options: dict[str, str]) -> list[Host]:
    """Return the hosts of an address, which precede the database's name or are among the options."""
    netloc = base.partition("://")[2].partition("/")[0].rpartition("@")[2]
    netloc = unquote(netloc) or unquote(options.get("host", ""))
    ports = unquote(options.get("port", "")).split(",")
    hosts: list[Host] = []
    for number, part in enumerate(netloc.split(",")):
        host, port = (part, "") if part.startswith("/") else _split_port(part)
        port = port or (ports[number] if number < len(ports) else ports[0])
        hosts.append((host, int(port) if port.isdigit() else None))
    return hosts


def _split_port(host: str) -> tuple[str, str]:
    """Split a host from its port; an IPv6 address is in brackets."""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name, port


def _parse_int(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        unit = "milliseconds" if name == "tcp_user_timeout" else "seconds"
        expected = "a whole number" if name in ("keepalives", "keepalives_count") else f"a whole number of {unit}"
        raise InvalidInput(f"{name}={value}: it must be {expected}", field=name) from None
