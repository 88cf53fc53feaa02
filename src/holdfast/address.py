"""Where a database is: ``agents.db``, ``sqlite:///agents.db``, ``:memory:`` or ``postgresql://...``.

An address can hold a password, and one that is not well formed can hold it anywhere. So it is taken apart here, before a driver
sees it, and what is said about it names nothing of it.
"""

from __future__ import annotations

import os
import re
from typing import Literal, cast, get_args
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from .errors import InvalidInput, Unavailable

Library = Literal["apsw", "stdlib"]
"""The SQLite library that opens a file: apsw's own, or the one of the standard library's ``sqlite3``."""


_NOT_WELL_FORMED = (
    "this address of PostgreSQL is not well formed: write postgresql://user:password@host:port/database, and percent-encode the "
    "password (urllib.parse.quote(password, safe='')); it is not shown here, because there may be one in it"
)
_POSTGRES = ("postgresql", "postgres")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_NEVER_BARE = re.compile(r"[\s\x00-\x1f\x7f#]|%(?![0-9a-fA-F]{2})|%00")
"""What is in no address as it is: drivers either refuse it, and repeat it, or each take it for something else."""
_HOST = re.compile(r"(?:[^:@\[\]]*|\[[^\[\]]+\])(?::([0-9]*))?")
_MAX_PORT = 65_535
_KEYWORDS = re.compile(r"(?:^|\s)password\s*=")


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
    if isinstance(url, bytes) or (url and not isinstance(url, (str, os.PathLike))):
        raise InvalidInput(f"a database is given as text or as a path, not as {type(url).__name__}")
    text = str(url) if url else ""
    if not text:
        raise InvalidInput("no database: give a path, sqlite:///path, ':memory:' or postgresql://...")
    if "\0" in text or not _is_unicode(text):
        raise InvalidInput("an address has no NUL in it, and nothing that is no Unicode")
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if scheme in _POSTGRES:
        if not _is_well_formed(text):
            raise InvalidInput(_NOT_WELL_FORMED)
        return Address("postgres", text)
    if scheme == "sqlite":
        return _sqlite(text, library)
    if scheme or _is_meant_otherwise(text):
        said = f"{scheme}: " if _SCHEME.fullmatch(scheme) else ""
        raise InvalidInput(f"{said}only a path, sqlite:///path and postgresql://... are understood")
    return Address("sqlite", text, library=library or "apsw")


def is_in_memory(url: str) -> bool:
    """Whether an address is that of a database in memory, which has one connection and cannot be opened a second time.

    Raises:
        InvalidInput: nothing we can open.
    """
    where = parse(url)
    return where.engine == "sqlite" and where.place == ":memory:"


def check_there(url: str) -> None:
    """Look whether there is a database to open, for those who want none to be made. PostgreSQL answers for itself.

    Raises:
        InvalidInput: nothing we can open.
        Unavailable: a SQLite file that is not there.
    """
    where = parse(url)
    is_file = where.engine == "sqlite" and not where.place.startswith((":memory:", "file:"))
    if is_file and not os.path.exists(where.place):
        raise Unavailable(f"there is no database {where.place}: `holdfast serve` and `holdfast migrate up` make one")


def shown(url: str) -> str:
    """A database as it may be shown: without the user, the password and the options, which can hold one too."""
    if "://" not in url:
        return "..." if _is_meant_otherwise(url) else url
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "sqlite" and rest[:1] in ("", "/", "?"):
        return f"{scheme}://{re.split('[?#]', rest)[0]}"
    if scheme.lower() not in _POSTGRES or not _is_well_formed(url):
        return f"{scheme if _SCHEME.fullmatch(scheme.lower()) else ''}://..."
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _is_meant_otherwise(text: str) -> bool:
    """Whether a text without ``://`` is no path: half an address, or the words that PostgreSQL's own library takes."""
    return text.lower().startswith(("postgresql:", "postgres:", "sqlite:")) or bool(_KEYWORDS.search(text))


def _is_well_formed(text: str) -> bool:
    """Whether every driver will take an address of PostgreSQL apart in the same way, at the same places."""
    if _NEVER_BARE.search(text):
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    who, _, hosts = parts.netloc.rpartition("@")
    if "@" in f"{who}{parts.path}{parts.query}" or "[" in who or "]" in who:
        return False
    if parts.query and not all("=" in each for each in parts.query.split("&")):
        return False
    return all(_is_host(each) for each in hosts.split(","))


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and int(found[1] or 0) <= _MAX_PORT


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sqlite(text: str, library: Library | None) -> Address:
    parts = urlsplit(text)
    if "#" in text:
        raise InvalidInput("a # in a SQLite address is written %23; as a plain path it can stay as it is")
    if parts.netloc:
        raise InvalidInput("a SQLite path comes after three slashes: sqlite:///path")
    options = parse_qs(parts.query)
    mode = options.pop("mode", ["rwc"])[0]
    named = options.pop("library", ["apsw"])[0]
    if options or mode not in ("ro", "rwc") or named not in get_args(Library):
        raise InvalidInput("the only options of a SQLite file are mode=ro and library=stdlib")
    path = unquote(parts.path.removeprefix("/")) or ":memory:"
    return Address("sqlite", path, read_only=mode == "ro", library=library or cast(Library, named))
