"""Where a database is: ``agents.db``, ``sqlite:///agents.db``, ``:memory:`` or ``postgresql://...``."""

from __future__ import annotations

from typing import Literal, cast, get_args
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from .errors import InvalidInput

Library = Literal["apsw", "stdlib"]
"""The SQLite library that opens a file: apsw's own, or the one of the standard library's ``sqlite3``."""


class Address(Struct, frozen=True):
    """A database, before it is opened."""

    engine: Literal["sqlite", "postgres"]
    place: str
    read_only: bool = False
    library: Library = "apsw"
    """Which SQLite opens it."""


def parse(url: object, *, library: Library | None = None) -> Address:
    """What a string stands for; a SQLite ``library`` given here goes before one in the string.

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
        return _sqlite(text, library)
    if scheme or text.startswith(("postgresql:", "sqlite:")):
        raise InvalidInput(f"{scheme or text}: only sqlite:///path and postgresql://... are understood")
    return Address("sqlite", text, library=library or "apsw")


def _sqlite(text: str, library: Library | None) -> Address:
    parts = urlsplit(text)
    if parts.netloc:
        raise InvalidInput(f"{text}: a SQLite path comes after three slashes: sqlite:///path")
    options = parse_qs(parts.query)
    mode = options.pop("mode", ["rwc"])[0]
    named = options.pop("library", ["apsw"])[0]
    if options or mode not in ("ro", "rwc") or named not in get_args(Library):
        raise InvalidInput(f"{text}: the only options are mode=ro and library=stdlib")
    path = unquote(parts.path.removeprefix("/")) or ":memory:"
    return Address("sqlite", path, read_only=mode == "ro", library=library or cast(Library, named))
