"""Database addresses: ``agents.db``, ``sqlite:///agents.db``, ``:memory:`` or ``postgresql://...``.

An address can contain a password, and in a malformed address the password can be anywhere. Addresses are therefore parsed here,
before a driver sees them, and no error message quotes any part of one.
"""

from __future__ import annotations

import os
import re
from typing import Literal, cast, get_args
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from .errors import InvalidInput, Unavailable

Library = Literal["apsw", "stdlib"]
"""The SQLite library that opens a file: the one bundled with apsw, or the one of the standard library's ``sqlite3``."""


_MALFORMED = (
    "this PostgreSQL address is malformed: write postgresql://user:password@host:port/database, and percent-encode the "
    "password (urllib.parse.quote(password, safe='')); the address is not shown, because it may contain a password"
)
_POSTGRES = ("postgresql", "postgres")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_MUST_BE_ENCODED = re.compile(r"[\s\x00-\x1f\x7f#]|%(?![0-9a-fA-F]{2})|%00")
"""Characters that an address may only contain percent-encoded: drivers reject them with an error that quotes the address, or
disagree on their meaning."""
_HOST = re.compile(r"(?:[^:@\[\]]*|\[[^\[\]]+\])(?::([0-9]*))?")
_MAX_PORT = 65_535
_KEYWORDS = re.compile(r"(?:^|\s)password\s*=")


class Address(Struct, frozen=True):
    """The parsed address of a database."""

    engine: Literal["sqlite", "postgres"]
    place: str
    read_only: bool = False
    library: Library = "apsw"
    """The SQLite library that opens the file."""


def parse(url: object, *, library: Library | None = None) -> Address:
    """Parse an address. The argument ``library`` takes precedence over the option in the address.

    Raises:
        InvalidInput: the address is malformed or of an unknown kind.
    """
    if isinstance(url, bytes) or (url and not isinstance(url, (str, os.PathLike))):
        raise InvalidInput(f"a database address must be a str or a path, not {type(url).__name__}", field="url")
    text = str(url) if url else ""
    if not text:
        raise InvalidInput(
            "the database address is empty: use a path, sqlite:///path, ':memory:' or postgresql://...", field="url"
        )
    if "\0" in text or not _is_unicode(text):
        raise InvalidInput("the database address contains a NUL character or invalid Unicode", field="url")
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if scheme in _POSTGRES:
        if not _is_well_formed(text):
            raise InvalidInput(_MALFORMED, field="url")
        return Address("postgres", text)
    if scheme == "sqlite":
        return _sqlite(text, library)
    if scheme or _is_not_a_path(text):
        prefix = f"scheme {scheme!r} is not supported: " if _SCHEME.fullmatch(scheme) else ""
        raise InvalidInput(f"{prefix}the database must be a path, sqlite:///path or postgresql://...", field="url")
    return Address("sqlite", text, library=library or "apsw")


def is_in_memory(url: str) -> bool:
    """Return whether the address is ``:memory:``. Such a database has one connection and cannot be opened a second time.

    Raises:
        InvalidInput: the address is malformed or of an unknown kind.
    """
    address = parse(url)
    return address.engine == "sqlite" and address.place == ":memory:"


def check_exists(url: str) -> None:
    """Check that a SQLite file exists, for callers that must not create one. A PostgreSQL server is not contacted.

    Raises:
        InvalidInput: the address is malformed or of an unknown kind.
        Unavailable: the SQLite file does not exist.
    """
    address = parse(url)
    is_file = address.engine == "sqlite" and not address.place.startswith((":memory:", "file:"))
    if is_file and not os.path.exists(address.place):
        raise Unavailable(
            f"database {address.place} does not exist: create it with `holdfast serve` or `holdfast migrate up`"
        )


def redacted(url: str) -> str:
    """Return an address that is safe to print: without the user, the password and the options, which can contain one too."""
    if "://" not in url:
        return "..." if _is_not_a_path(url) else url
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "sqlite" and rest[:1] in ("", "/", "?"):
        return f"{scheme}://{re.split('[?#]', rest)[0]}"
    if scheme.lower() not in _POSTGRES or not _is_well_formed(url):
        return f"{scheme if _SCHEME.fullmatch(scheme.lower()) else ''}://..."
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _is_not_a_path(text: str) -> bool:
    """Whether a text without ``://`` is an incomplete URL or a libpq connection string (``host=... password=...``)."""
    return text.lower().startswith(("postgresql:", "postgres:", "sqlite:")) or bool(_KEYWORDS.search(text))


def _is_well_formed(text: str) -> bool:
    """Whether every driver parses this PostgreSQL address in the same way."""
    if _MUST_BE_ENCODED.search(text):
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    credentials, _, hosts = parts.netloc.rpartition("@")
    if "@" in f"{credentials}{parts.path}{parts.query}" or "[" in credentials or "]" in credentials:
        return False
    if parts.query and not all("=" in option for option in parts.query.split("&")):
        return False
    return all(_is_host(host) for host in hosts.split(","))


def _is_host(text: str) -> bool:
    match = _HOST.fullmatch(text)
    return match is not None and int(match[1] or 0) <= _MAX_PORT


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sqlite(text: str, library: Library | None) -> Address:
    parts = urlsplit(text)
    if "#" in text:
        raise InvalidInput("write # as %23 in a sqlite:/// address, or pass a plain path", field="url")
    if parts.netloc:
        raise InvalidInput("a SQLite path follows three slashes: sqlite:///path", field="url")
    options = parse_qs(parts.query)
    mode = options.pop("mode", ["rwc"])[0]
    library_option = options.pop("library", ["apsw"])[0]
    if options or mode not in ("ro", "rwc") or library_option not in get_args(Library):
        raise InvalidInput("a SQLite address accepts only the options mode=ro and library=stdlib", field="url")
    path = unquote(parts.path.removeprefix("/")) or ":memory:"
    return Address("sqlite", path, read_only=mode == "ro", library=library or cast(Library, library_option))
