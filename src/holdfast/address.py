"""Where a database is: ``agents.db``, ``sqlite:///agents.db``, ``:memory:`` or ``postgresql://...``."""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from .errors import InvalidInput


class Address(Struct, frozen=True):
    """A database, before it is opened."""

    engine: Literal["sqlite", "postgres"]
    place: str
    read_only: bool = False


def parse(url: object) -> Address:
    """What a string stands for.

    Raises:
        InvalidInput: nothing we can open.
    """
    text = str(url) if url else ""
    if not text:
        raise InvalidInput("no database: give a path, sqlite:///path, ':memory:' or postgresql://...")
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if scheme in ("postgresql", "postgres"):
        return Address("postgres", text)
    if scheme == "sqlite":
        return _sqlite(text)
    if scheme or text.startswith(("postgresql:", "sqlite:")):
        raise InvalidInput(f"{scheme or text}: only sqlite:///path and postgresql://... are understood")
    return Address("sqlite", text)


def _sqlite(text: str) -> Address:
    parts = urlsplit(text)
    if parts.netloc:
        raise InvalidInput(f"{text}: a SQLite path comes after three slashes: sqlite:///path")
    options = parse_qs(parts.query)
    mode = options.pop("mode", ["rwc"])[0]
    if options or mode not in ("ro", "rwc"):
        raise InvalidInput(f"{text}: the only option is mode=ro")
    path = unquote(parts.path.removeprefix("/")) or ":memory:"
    return Address("sqlite", path, read_only=mode == "ro")
