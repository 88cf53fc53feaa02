"""Checkpoints that only the holder of a key can read.

What is encrypted is the content: the state, every piece of it and every value that a task wrote. It is done with AES-SIV, under
which the same content always becomes the same bytes, so that what a thread has already is still recognised and stored once;
who can read the database learns which pieces are equal, and no more of them. Names of threads, channels and tasks, and the
metadata, which a list can be filtered by, are not encrypted.

What is not encrypted, or was with another key, or has been changed, is refused when it is read.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from hashlib import blake2b
from typing import Any

from holdfast.errors import Corrupt, InvalidInput
from holdfast.extras import needs

MARK = b"\xc1HE1"
"""What encrypted content begins with: no other content begins with a byte that msgpack never uses."""
KEY_BYTES = 32
COMPRESS_FROM = 96
RAW, ZSTD = b"\x00", b"\x01"


class Cipher:
    """Encrypts and decrypts with one key.

    Args:
        key: 32 bytes, as 64 hexadecimal digits, as base64 or as they are.

    Raises:
        InvalidInput: the key is none.
        MissingExtra: the package ``cryptography`` is not installed.
    """

    def __init__(self, key: str | bytes) -> None:
        with needs("encryption"):
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV
        import zstandard

        secret = blake2b(_key(key), digest_size=64, person=b"holdfast ckpt").digest()
        self._siv: Any = AESSIV(secret)
        self._zstd = zstandard

    def seal(self, content: bytes, what: str) -> bytes:
        """Content that only this key can open."""
        form, body = RAW, content
        if len(content) >= COMPRESS_FROM:
            packed = self._zstd.ZstdCompressor().compress(content)
            if len(packed) < len(content):
                form, body = ZSTD, packed
        return MARK + bytes(self._siv.encrypt(form + body, [what.encode()]))

    def open(self, sealed: bytes, what: str) -> bytes:
        """The content that was sealed.

        Raises:
            Corrupt: it was not sealed with this key, or not sealed at all.
        """
        if not sealed.startswith(MARK):
            raise Corrupt(f"a {what} is not encrypted; a saver with an encryption_key reads nothing that is not")
        from cryptography.exceptions import InvalidTag

        try:
            plain = bytes(self._siv.decrypt(sealed[len(MARK) :], [what.encode()]))
        except (InvalidTag, ValueError):
            raise Corrupt(f"a {what} cannot be decrypted: it is damaged, or the key is another") from None
        body = plain[1:]
        return bytes(self._zstd.ZstdDecompressor().decompress(body)) if plain[:1] == ZSTD else body


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


def _key(key: str | bytes) -> bytes:
    """Thirty-two bytes, however they are written down."""
    found = key if isinstance(key, bytes) else b""
    if isinstance(key, str):
        found = _decoded(key)
    if len(found) != KEY_BYTES:
        raise InvalidInput(
            "an encryption key is 32 bytes: 64 hexadecimal digits, 44 characters of base64, or as they are"
        )
    return found


def _decoded(key: str) -> bytes:
    try:
        if len(key) == 2 * KEY_BYTES:
            return bytes.fromhex(key)
        if len(key) == 44:
            return b64decode(key, validate=True)
    except (ValueError, NotBase64):
        return b""
    return key.encode("utf-8", "replace")
