"""Identifiers: UUID version 7 in its canonical text form, so that ids sort by the time they were made."""

from __future__ import annotations

import secrets
from random import Random
from typing import Annotated, Protocol

import uuid_utils

from .errors import InvalidInput

Id = Annotated[str, "id"]
"""A UUID as lower-case text with hyphens."""


class IdSource(Protocol):
    """Where new ids come from. Nothing else in Holdfast draws randomness for an id."""

    def new(self) -> str:
        """An id that nothing has yet."""


class RandomIds:
    """UUID v7 from the machine's clock and randomness."""

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
    """A new API key, to be given to ``api_keys.create`` and to whoever is to have it; nothing else knows it."""
    return f"hf_{secrets.token_hex(24)}"


def new_token(size_bytes: int = 24) -> str:
    """Hexadecimal digits that nobody can guess: two for each byte. For the token of a link, and whatever else must be secret."""
    return secrets.token_hex(size_bytes)


def random_bytes(count: int) -> bytes:
    """So many bytes from the machine's randomness, for keys and nonces."""
    return secrets.token_bytes(count)


def parse(value: object, what: str = "id") -> str:
    """The canonical form of an id the caller gave.

    Raises:
        InvalidInput: it is not a UUID.
    """
    try:
        return str(uuid_utils.UUID(str(value)))
    except ValueError:
        raise InvalidInput(f"{what} must be a UUID, not {str(value)[:60]!r}") from None
