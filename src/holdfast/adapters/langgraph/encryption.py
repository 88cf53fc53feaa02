"""Encryption of checkpoint content.

The state, every piece of it and every value that a task wrote are encrypted with AES-SIV. It is deterministic: equal content is
encrypted to equal bytes, so pieces that a thread already has are still recognized and stored once. A reader of the database
learns which pieces are equal, and nothing else about them. The names of threads, channels and tasks are not encrypted, nor is the
metadata, by which a list can be filtered.

Content that is not encrypted, was encrypted with another key, or was modified is rejected when it is read.
"""

from __future__ import annotations

import zstandard

from holdfast.encryption import KeyRing, Keys
from holdfast.errors import Corrupt, InvalidInput

MARK = b"\xc1HE1"
"""Prefix of encrypted content. Its first byte is never used by msgpack, so no plain content begins with it."""
COMPRESS_FROM = 96
RAW, ZSTD = b"\x00", b"\x01"


class Cipher:
    """Encrypts and decrypts content.

    Args:
        keys: a key of 32 bytes, as bytes, 64 hexadecimal digits or base64; or several keys, of which the first one encrypts.

    Raises:
        InvalidInput: a key is invalid.
        MissingExtra: the package ``cryptography`` is not installed.
    """

    def __init__(self, keys: Keys) -> None:
        self._ring = KeyRing.of(keys)
        if not self._ring:
            raise InvalidInput("encryption_key is empty: a key must have 32 bytes", field="encryption_key")
        self._ring.check()

    def seal(self, content: bytes, what: str) -> bytes:
        """Compress and encrypt content."""
        form, body = RAW, content
        if len(content) >= COMPRESS_FROM:
            packed = zstandard.ZstdCompressor().compress(content)
            if len(packed) < len(content):
                form, body = ZSTD, packed
        return MARK + self._ring.encrypt_repeatably(form + body, what)

    def open(self, sealed: bytes, what: str) -> bytes:
        """Decrypt content.

        Raises:
            Corrupt: the content was not encrypted, or not with any of these keys.
        """
        if not sealed.startswith(MARK):
            raise Corrupt(
                f"a stored {what} is not encrypted: a saver with an encryption_key reads only encrypted content"
            )
        plain = self._ring.decrypt_repeatable(sealed[len(MARK) :], what)
        body = plain[1:]
        return zstandard.ZstdDecompressor().decompress(body) if plain[:1] == ZSTD else body


class NoCipher:
    """Leaves content unencrypted, for savers without a key."""

    def seal(self, content: bytes, what: str) -> bytes:
        """Return the content unchanged."""
        return content

    def open(self, sealed: bytes, what: str) -> bytes:
        """Return the content unchanged.

        Raises:
            InvalidInput: the content is encrypted.
        """
        if sealed.startswith(MARK):
            message = f"a stored {what} is encrypted: create the saver with HoldfastSaver(..., encryption_key=...)"
            raise InvalidInput(message, field="encryption_key")
        return sealed
