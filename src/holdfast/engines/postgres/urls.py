"""One address for two libraries: libpq understands more than asyncpg, which takes the rest for settings of the server."""

from __future__ import annotations

from ...errors import InvalidInput

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


def for_asyncpg(url: str, timeout_s: float) -> tuple[str, float]:
    """The address without what only libpq understands, and how long to wait for a connection.

    Raises:
        InvalidInput: its ``connect_timeout`` is no number.
    """
    place, _, query = url.partition("?")
    kept: list[str] = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name == "connect_timeout":
            timeout_s = _seconds(value) or timeout_s
        if part and name not in _LIBPQ_ONLY:
            kept.append(part)
    return (f"{place}?{'&'.join(kept)}" if kept else place), timeout_s


def _seconds(value: str) -> float:
    """As libpq reads it: zero or less stands for no limit of its own."""
    try:
        return float(max(0, int(value)))
    except ValueError:
        raise InvalidInput(f"connect_timeout={value}: it must be a whole number of seconds") from None
