"""Identifiers: UUID version 7 in canonical text form, so that ids sort by the time of their creation."""

from __future__ import annotations

import secrets
from random import Random
from typing import Annotated, Protocol

import uuid_utils

from .errors import InvalidInput

Id = Annotated[str, "id"]
"""A UUID as lower-case text with hyphens."""
CODE_SYMBOLS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""The symbols of a code: 32, so that each is 5 bits, without I, O, 0 and 1, which people mistake for each other."""
CODE_CHARS = 8


class IdSource(Protocol):
    """A source of new ids. Every id in Holdfast comes from one."""

    def new(self) -> str:
        """Return a new unique id."""


class RandomIds:
    """UUID v7 from the system clock and random bits."""

    def new(self) -> str:
        return str(uuid_utils.uuid7())


class SeededIds:
    """The same ids in the same order for the same seed; for tests and simulation."""

    def __init__(self, seed: int = 0, *, start_ms: int = 1_700_000_000_000) -> None:
        self._random = Random(seed)
        self._ms = start_ms

    def new(self) -> str:
        self._ms += 1
        bits = (self._ms << 80) | (7 << 76) | (self._random.getrandbits(12) << 64)
        return str(uuid_utils.UUID(int=bits | (2 << 62) | self._random.getrandbits(62)))


def new_api_key() -> str:
    """Generate an API key, for ``api_keys.create`` and for the client. The database stores only its digest."""
    return f"hf_{secrets.token_hex(24)}"


def new_token(size_bytes: int = 24) -> str:
    """Generate an unguessable token, such as for a share link: two hexadecimal digits for each byte."""
    return secrets.token_hex(size_bytes)


def new_code(ids: IdSource) -> str:
    """Generate a code that people can read out and type: 40 bits, from the last bytes of two ids, which are random."""
    last = b"".join(uuid_utils.UUID(ids.new()).bytes[-(CODE_CHARS // 2) :] for _ in range(2))
    return "".join(CODE_SYMBOLS[byte % len(CODE_SYMBOLS)] for byte in last)


def random_bytes(count: int) -> bytes:
    """Return cryptographically secure random bytes, for keys and nonces."""
    return secrets.token_bytes(count)


def parse(value: object, what: str = "id") -> str:
    """Return the canonical form of an id.

    Raises:
        InvalidInput: the value is not a UUID.
    """
    try:
        return str(uuid_utils.UUID(str(value)))
    except ValueError:
        raise InvalidInput(f"{what} must be a UUID, not {str(value)[:60]!r}", field=what) from None
