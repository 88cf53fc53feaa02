"""Encryption of stored values: the key ring, the stored form of an encrypted value, and the ``Secret`` that callers see.

A stored value is the text ``aes-gcm:`` followed by base64 of key id, nonce, ciphertext and tag (AES-256-GCM). Its associated data
identifies the tenant, table, row and column, so a value copied elsewhere does not decrypt there. Text without the prefix was
stored before a key was configured and is returned unchanged. ``core/encrypted_columns.py`` shows how a store uses this.

This is the only module that encrypts. The key ring is part of the ``Setting``, like the clock. ``holdfast.encryption``
is the public interface, which the adapters and the server use, too.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic, NoReturn, TypeVar

from ..errors import DecryptionFailed, InvalidInput, MissingKey
from ..extras import needs
from ..ids import random_bytes
from . import text

T_co = TypeVar("T_co", covariant=True)
Key = str | bytes

VARIABLE = "HOLDFAST_ENCRYPTION_KEY"
"""The environment variable with the key, or with several keys separated by commas or white space, the current key first."""
PREFIX = "aes-gcm:"
MASK = "********"
"""The text shown in place of a secret. It cannot be stored as a secret, so that a client may send back the masked value."""
KEY_BYTES = 32
KEY_ID_BYTES = 6
"""A multiple of three, so that all values of one key begin with the same base64 characters and SQL can find them."""
NONCE_BYTES = 12
TAG_BYTES = 16


class Secret(Generic[T_co]):
    """A value that never appears in ``repr``, ``str`` or a log, and that no encoder accepts. ``reveal`` returns it.

    Raises:
        InvalidInput: the value is neither text nor a dictionary.
    """

    __slots__ = ("_reveal",)

    def __init__(self, value: T_co) -> None:
        if not isinstance(value, str | Mapping):
            raise InvalidInput(f"a secret must be a string or a dictionary, not {type(value).__name__}")
        # In a closure: tools that print attributes would print a plain attribute as well.
        self._reveal: Callable[[], T_co] = lambda: value

    def reveal(self) -> T_co:
        """Return the value itself.

        Raises:
            DecryptionFailed: no key of the ring decrypts the stored value.
        """
        return self._reveal()

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return self.reveal() == other.reveal() if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(Secret)  # the same for all secrets: a hash of the value would leak information about it

    def __copy__(self) -> Secret[T_co]:
        return self

    def __deepcopy__(self, memo: object) -> Secret[T_co]:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled; pickle the result of reveal() if you need to")


class KeyRing:
    """Encryption keys: the first one encrypts, all of them decrypt. An empty ring encrypts nothing.

    Args:
        keys: one key or several, each 64 hexadecimal digits, 44 characters of base64, or 32 raw bytes. A string may hold
            several keys, separated by commas or white space.
        source: where the keys come from, for error messages.
        nonces: returns the given number of random bytes.

    Raises:
        InvalidInput: one of the keys is not valid.
    """

    __slots__ = ("_ciphers", "_keys", "_nonces", "_source")

    def __init__(
        self,
        keys: Key | Iterable[Key] = (),
        *,
        source: str = "encryption_key",
        nonces: Callable[[int], bytes] = random_bytes,
    ) -> None:
        self._keys: dict[bytes, bytes] = {}
        self._ciphers: dict[tuple[str, bytes], Any] = {}
        self._nonces, self._source = nonces, source
        self._keys = {_key_id(key): key for key in _parsed(keys, source)}

    @classmethod
    def from_environment(cls) -> KeyRing:
        """Return the ring in ``HOLDFAST_ENCRYPTION_KEY``; an empty one if the variable is not set.

        Raises:
            InvalidInput: one of the keys is not valid.
        """
        return cls(os.environ.get(VARIABLE) or (), source=VARIABLE)

    @classmethod
    def of(cls, keys: Keys | None) -> KeyRing:
        """Return the ring for any form in which a caller may give keys; for ``None``, the ring of the environment.

        Raises:
            InvalidInput: one of the keys is not valid.
        """
        if keys is None:
            return cls.from_environment()
        return keys if isinstance(keys, KeyRing) else cls(keys)

    @property
    def key_ids(self) -> list[str]:
        """The key ids as hexadecimal digits, the current key first."""
        return [key_id.hex() for key_id in self._keys]

    @property
    def current_prefix(self) -> str:
        """The text that every value encrypted with the first key begins with.

        Raises:
            MissingKey: the ring is empty.
        """
        return PREFIX + b64encode(self._current()).decode()

    def check(self) -> None:
        """Check that the keys can be used.

        Raises:
            MissingExtra: there is a key, and the package ``cryptography`` is not installed.
        """
        for key_id in self._keys:
            self._cipher("AESGCM", key_id)

    def require(self) -> None:
        """Check that the ring can encrypt.

        Raises:
            MissingKey: the ring is empty.
            MissingExtra: the package ``cryptography`` is not installed.
        """
        self._cipher("AESGCM", self._current())

    def encrypt(self, secret: Secret[str], context: Sequence[str]) -> str:
        """Return text that only this ring, with the same context, decrypts to the secret.

        Raises:
            MissingKey: the ring is empty.
            MissingExtra: the package ``cryptography`` is not installed.
        """
        key_id, nonce = self._current(), self._nonces(NONCE_BYTES)
        cipher = self._cipher("AESGCM", key_id)
        # Revealed in the call itself: no frame in a traceback holds the plaintext in a variable.
        body = cipher.encrypt(nonce, secret.reveal().encode("utf-8", "surrogatepass"), _associated(context))
        return PREFIX + b64encode(key_id + nonce + body).decode()

    def decrypt(self, stored: str, context: Sequence[str]) -> str:
        """Return the plaintext of a value that was encrypted in this context; return text without the prefix unchanged.

        Raises:
            DecryptionFailed: the text was changed or belongs to another context, or its key is not in the ring.
            MissingExtra: the package ``cryptography`` is not installed.
        """
        if not stored.startswith(PREFIX):
            return stored
        body = _body(stored)
        if body is None:
            raise DecryptionFailed(f"{describe_location(context)} cannot be decrypted: it is damaged")
        key_id, nonce = body[:KEY_ID_BYTES], body[KEY_ID_BYTES : KEY_ID_BYTES + NONCE_BYTES]
        self._require_key(key_id, describe_location(context))
        plain = self._decrypt("AESGCM", key_id, nonce, body[KEY_ID_BYTES + NONCE_BYTES :], _associated(context))
        if plain is None:
            raise DecryptionFailed(
                f"{describe_location(context)} cannot be decrypted with {self._source}: "
                "it was changed, or copied from another row or column"
            )
        return plain.decode("utf-8", "surrogatepass")

    def encrypt_repeatably(self, content: bytes, purpose: str) -> bytes:
        """Encrypt so that equal content gives equal bytes (AES-SIV), for stores that deduplicate content.

        Read access to the database reveals which contents are equal, and nothing else.

        Raises:
            MissingKey: the ring is empty.
            MissingExtra: the package ``cryptography`` is not installed.
        """
        key_id = self._current()
        return key_id + bytes(self._cipher("AESSIV", key_id).encrypt(content, [purpose.encode()]))

    def decrypt_repeatable(self, sealed: bytes, purpose: str) -> bytes:
        """Return the content that was passed to ``encrypt_repeatably``.

        Raises:
            DecryptionFailed: it was changed or has another purpose, or its key is not in the ring.
        """
        key_id = sealed[:KEY_ID_BYTES]
        self._require_key(key_id, f"a {purpose}")
        plain = self._decrypt("AESSIV", key_id, sealed[KEY_ID_BYTES:], [purpose.encode()])
        if plain is None:
            raise DecryptionFailed(f"a {purpose} cannot be decrypted: it is damaged, or was encrypted with another key")
        return plain

    def is_current(self, stored: str) -> bool:
        """Return whether the first key encrypted this value; always true for an empty ring, which cannot encrypt."""
        return not self._keys or stored.startswith(self.current_prefix)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing(key_ids={self.key_ids})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a KeyRing cannot be pickled: the pickle would contain the keys")

    def _current(self) -> bytes:
        for key_id in self._keys:
            return key_id
        raise MissingKey

    def _require_key(self, key_id: bytes, what: str) -> None:
        if key_id not in self._keys:
            ring = f"the keys in {self._source} are {', '.join(self.key_ids)}" if self else f"{VARIABLE} is not set"
            raise DecryptionFailed(
                f"{what} cannot be decrypted: it was encrypted with the key {key_id.hex()}, which is missing; {ring}"
            )

    def _decrypt(self, kind: str, key_id: bytes, *arguments: Any) -> bytes | None:
        """Return the plaintext, or ``None``: the caller raises, so that no error carries another one as its context."""
        cipher = self._cipher(kind, key_id)
        from cryptography.exceptions import InvalidTag

        try:
            return bytes(cipher.decrypt(*arguments))
        except (InvalidTag, ValueError):
            return None

    def _cipher(self, kind: str, key_id: bytes) -> Any:
        cipher = self._ciphers.get((kind, key_id))
        if cipher is None:
            with needs("encryption"):
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
            # AES-SIV takes two keys. They are derived, so that no key is used with two algorithms.
            cipher = (
                AESGCM(self._keys[key_id])
                if kind == "AESGCM"
                else AESSIV(blake2b(self._keys[key_id], digest_size=64, person=b"holdfast ckpt").digest())
            )
            self._ciphers[kind, key_id] = cipher
        return cipher


Keys = Key | Iterable[Key] | KeyRing
"""The forms in which callers may give keys."""


def mask_secret(value: object) -> str:
    """Encode a secret as the mask: the ``enc_hook`` of msgspec encoders whose output people and clients see."""
    if isinstance(value, Secret):
        return MASK
    raise TypeError(f"{type(value).__name__} cannot be encoded")


def new_key() -> str:
    """Return a new encryption key as 64 hexadecimal digits."""
    return random_bytes(KEY_BYTES).hex()


def _parsed(keys: Key | Iterable[Key], source: str) -> list[bytes]:
    if isinstance(keys, str):
        single = _decoded(keys)
        return [single] if single else [_key(key, source) for key in _split(keys)]
    if isinstance(keys, bytes) or not isinstance(keys, Iterable):
        return [_key(keys, source)]
    return [_key(key, source) for key in keys]


def _split(keys: str) -> list[str]:
    return keys.replace(",", " ").split() or [keys]


def _key(key: object, source: str) -> bytes:
    decoded = _decoded(key) if isinstance(key, str) else key
    if not isinstance(decoded, bytes) or len(decoded) != KEY_BYTES:
        actual = f"{len(key)} long" if isinstance(key, str | bytes) else type(key).__name__
        raise InvalidInput(
            f"{source}: a key is 32 bytes, written as 64 hexadecimal digits, as 44 characters of base64, or as 32 characters; "
            f"this one is {actual}",
            field=source,
        )
    return decoded


def _decoded(key: str) -> bytes | None:
    """Return the 32 bytes of a key in text form, or ``None`` if the text is not a key."""
    try:
        if len(key) == 2 * KEY_BYTES:
            decoded = bytes.fromhex(key)
        elif len(key) == 44:
            decoded = b64decode(key.replace("-", "+").replace("_", "/"), validate=True)
        else:
            decoded = key.encode()
    except ValueError:
        return None
    return decoded if len(decoded) == KEY_BYTES else None


def _key_id(key: bytes) -> bytes:
    return blake2b(key, digest_size=KEY_ID_BYTES, person=b"holdfast key id").digest()


def _associated(context: Sequence[str]) -> bytes:
    """Encode a context as bytes, such that different contexts give different bytes."""
    parts = [part.encode("utf-8", "surrogatepass") for part in context]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _body(stored: str) -> bytes | None:
    """Return the bytes of a stored value, or ``None`` if the text cannot have been written by ``encrypt``."""
    encoded = stored[len(PREFIX) :]
    try:
        body = b64decode(encoded, validate=True)
    except ValueError:
        return None
    # Base64 has unused bits at its end: only the canonical form is accepted.
    is_canonical = b64encode(body).decode() == encoded
    return body if is_canonical and len(body) >= KEY_ID_BYTES + NONCE_BYTES + TAG_BYTES else None


def describe_location(context: Sequence[str]) -> str:
    """Name a stored value's table, column and row for an error message; the caller knows the tenant."""
    _, table, *row, column = context
    return f"{table}.{column} of {text.printable(', '.join(row))}"
