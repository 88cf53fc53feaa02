"""Checkpoints that only the holder of a key can read.

What is encrypted is the content: the state, every piece of it and every value that a task wrote. It is done with AES-SIV, under
which the same content always becomes the same bytes, so that what a thread has already is still recognised and stored once;
who can read the database learns which pieces are equal, and no more of them. Names of threads, channels and tasks, and the
metadata, which a list can be filtered by, are not encrypted.

What is not encrypted, or was with another key, or has been changed, is refused when it is read.
"""

from __future__ import annotations

import zstandard

from holdfast.encryption import KeyRing, Keys
from holdfast.errors import Corrupt, InvalidInput

MARK = b"\xc1HE1"
"""What encrypted content begins with: no other content begins with a byte that msgpack never uses."""
COMPRESS_FROM = 96
RAW, ZSTD = b"\x00", b"\x01"


class Cipher:
    """Encrypts and decrypts content.

    Args:
        keys: a key of 32 bytes, as 64 hexadecimal digits, as base64 or as it is; or several, of which the first one encrypts.

    Raises:
        InvalidInput: something in it is not a key.
        MissingExtra: the package ``cryptography`` is not installed.
    """

    def __init__(self, keys: Keys) -> None:
        self._ring = KeyRing.of(keys)
        if not self._ring:
            raise InvalidInput("encryption_key is empty: a key is 32 bytes")
        self._ring.check()

    def seal(self, content: bytes, what: str) -> bytes:
        """Content that only these keys can open."""
        form, body = RAW, content
        if len(content) >= COMPRESS_FROM:
            packed = zstandard.ZstdCompressor().compress(content)
            if len(packed) < len(content):
                form, body = ZSTD, packed
        return MARK + self._ring.encrypt_repeatably(form + body, what)

    def open(self, sealed: bytes, what: str) -> bytes:
        """The content that was sealed.

        Raises:
            Corrupt: it was not sealed with any of these keys, or not sealed at all.
        """
        if not sealed.startswith(MARK):
            raise Corrupt(f"a {what} is not encrypted; a saver with an encryption_key reads nothing that is not")
        plain = self._ring.decrypt_repeatable(sealed[len(MARK) :], what)
        body = plain[1:]
        return zstandard.ZstdDecompressor().decompress(body) if plain[:1] == ZSTD else body


class Plain:
    """What savers use that have no key."""

    def seal(self, content: bytes, what: str) -> bytes:
        """The content itself."""
        return content

    def open(self, sealed: bytes, what: str) -> bytes:
        """The content itself.

        Raises:
            InvalidInput: it is encrypted.
        """
        if sealed.startswith(MARK):
            raise InvalidInput(f"a {what} is encrypted: HoldfastSaver(..., encryption_key=...)")
        return sealed
