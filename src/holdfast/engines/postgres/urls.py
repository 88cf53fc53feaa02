"""One address for two libraries: libpq understands more than asyncpg, which takes the rest for settings of the server.

What libpq does with those options is done here for asyncpg: a connect timeout for each host, and keepalives on the socket.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from ...errors import InvalidInput

KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Seconds of silence before the first probe, seconds between probes, and unanswered probes until a connection is given up."""
TCP_USER_TIMEOUT_MS = 30_000
"""How long sent bytes may stay unacknowledged until a connection is given up."""
CONNECT_LEAST_S = 2.0
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
"""How libpq connects, and nothing that the server could be told."""
_NUMBERS = {**KEEPALIVE, "keepalives": 1, "tcp_user_timeout": TCP_USER_TIMEOUT_MS}
_SOCKET_OPTIONS = {
    "keepalives_idle": getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None)),
    "keepalives_interval": getattr(socket, "TCP_KEEPINTVL", None),
    "keepalives_count": getattr(socket, "TCP_KEEPCNT", None),
    "tcp_user_timeout": getattr(socket, "TCP_USER_TIMEOUT", None),
}

Host = tuple[str, int | None]


class Dialing(Struct, frozen=True):
    """How asyncpg reaches the servers of an address."""

    url: str
    """The address without what only libpq understands."""
    attempts: list[dict[str, Any]]
    """What asyncpg is told beside the address, one host after the other; each is tried with a timeout of its own."""
    timeout_s: float
    """Longest time to connect to one host."""
    numbers: dict[str, int]

    def set_socket(self, there: Any) -> None:
        """Set keepalives and the time for acknowledgements, as libpq does. A Unix socket has none."""
        if there is None or there.family not in (socket.AF_INET, socket.AF_INET6):
            return
        there.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(self.numbers["keepalives"] != 0))
        for name, option in _SOCKET_OPTIONS.items():
            if option is not None and self.numbers[name] > 0:
                there.setsockopt(socket.IPPROTO_TCP, option, self.numbers[name])


def for_asyncpg(url: str, timeout_s: float) -> Dialing:
    """How asyncpg connects to an address, which may take ``timeout_s`` in all unless it says ``connect_timeout``.

    Raises:
        InvalidInput: an option that must be a number is none.
    """
    place, _, query = url.partition("?")
    parts = [part for part in query.split("&") if part]
    named = dict(part.partition("=")[::2] for part in parts)
    kept = [part for part in parts if part.partition("=")[0] not in _LIBPQ_ONLY]
    hosts = _hosts(place, named)
    return Dialing(
        f"{place}?{'&'.join(kept)}" if kept else place,
        _attempts(hosts, named.get("target_session_attrs", "")),
        _connect_timeout_s(named, len(hosts), timeout_s),
        {name: _whole(name, named[name]) if name in named else usual for name, usual in _NUMBERS.items()},
    )


def for_libpq(url: str, timeout_s: float) -> dict[str, Any]:
    """The same for libpq, as arguments beside the address; what the address says itself is left out."""
    place, _, query = url.partition("?")
    named = dict(part.partition("=")[::2] for part in query.split("&"))
    usual: dict[str, Any] = dict(_NUMBERS)
    usual["connect_timeout"] = round(_connect_timeout_s(named, len(_hosts(place, named)), timeout_s))
    return {name: value for name, value in usual.items() if name not in named or name == "connect_timeout"}


def _connect_timeout_s(named: dict[str, str], hosts: int, timeout_s: float) -> float:
    """Longest time to connect to one of so many hosts. As libpq reads it: zero or less stands for no limit of its own."""
    if "connect_timeout" in named:
        said = _whole("connect_timeout", named["connect_timeout"])
        if said > 0:
            return max(CONNECT_LEAST_S, float(said))
    return max(CONNECT_LEAST_S, timeout_s / max(1, hosts))


def _attempts(hosts: Sequence[Host], wanted: str) -> list[dict[str, Any]]:
    """One attempt for each host. Of several, asyncpg would wait for the first that does not answer for as long as for all."""
    if len(hosts) == 1:
        return [{}]
    each = [{"host": host, "port": port} for host, port in hosts]
    if wanted != "prefer-standby":
        return each
    return [{**one, "target_session_attrs": kind} for kind in ("standby", "any") for one in each]


def _hosts(place: str, named: dict[str, str]) -> list[Host]:
    """The hosts of an address, before the database's name or among the options."""
    listed = place.partition("://")[2].partition("/")[0].rpartition("@")[2]
    listed = unquote(listed) or unquote(named.get("host", ""))
    ports = unquote(named.get("port", "")).split(",")
    found: list[Host] = []
    for number, each in enumerate(listed.split(",")):
        host, port = (each, "") if each.startswith("/") else _parted(each)
        port = port or (ports[number] if number < len(ports) else ports[0])
        found.append((host, int(port) if port.isdigit() else None))
    return found


def _parted(host: str) -> tuple[str, str]:
    """A host and its port; an IPv6 address is in brackets."""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name, port


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        unit = "milliseconds" if name == "tcp_user_timeout" else "seconds"
        what = "a whole number" if name in ("keepalives", "keepalives_count") else f"a whole number of {unit}"
        raise InvalidInput(f"{name}={value}: it must be {what}") from None
