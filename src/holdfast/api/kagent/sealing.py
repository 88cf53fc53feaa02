"""How events are stored that hold what nobody else may read.

At each turn an agent built with kagent-adk appends an event whose state holds all headers of the request that came in, among them
the caller's ``Authorization``. Where ``HOLDFAST_ENCRYPTION_KEY`` is set, such an event, and every other one with a credential in
it, is encrypted (AES-256-GCM) and comes back as it was. Without a key the values of those headers are replaced before anything
is stored: an agent that passes its caller's token on to its tools needs the key.
"""

from __future__ import annotations

import base64
import os
from functools import cache
from typing import Any

from holdfast.errors import Corrupt, InvalidInput
from holdfast.extras import needs
from holdfast.ids import new_token

from . import withholding

VARIABLE = "HOLDFAST_ENCRYPTION_KEY"
PREFIX = "aes-gcm:"
_NONCE_BYTES = 12
_KEY_BYTES = 32


def sealed(event_id: str, data: str) -> dict[str, str]:
    """An event as it is stored: with its text as it came, or encrypted, or without what is secret.

    Raises:
        InvalidInput: the key that is set is none.
        LimitExceeded: there is no key, and it is nested too deeply to be searched for secrets.
    """
    cipher = _cipher(os.environ.get(VARIABLE, ""))
    if cipher is None:
        return {"id": event_id, "data": withholding.storable(data) or data}
    if not withholding.is_secret(data):
        return {"id": event_id, "data": data}
    nonce = bytes.fromhex(new_token(_NONCE_BYTES))
    body = nonce + cipher.encrypt(nonce, data.encode("utf-8", "surrogatepass"), event_id.encode("utf-8", "replace"))
    return {"id": event_id, "sealed": PREFIX + base64.b64encode(body).decode()}


def opened(content: Any) -> tuple[str, str]:
    """The id and the text of a stored event.

    Raises:
        Corrupt: it cannot be decrypted with the key that is set.
    """
    if "data" in content:
        return content["id"], content["data"]
    cipher = _cipher(os.environ.get(VARIABLE, ""))
    if cipher is None:
        raise Corrupt(f"an event is encrypted, and {VARIABLE} is not set")
    body = base64.b64decode(content["sealed"].removeprefix(PREFIX))
    try:
        nonce, rest = body[:_NONCE_BYTES], body[_NONCE_BYTES:]
        text = cipher.decrypt(nonce, rest, content["id"].encode("utf-8", "replace"))
    except Exception as error:
        raise Corrupt(f"an event cannot be decrypted with {VARIABLE}") from error
    return content["id"], text.decode("utf-8", "surrogatepass")


def check() -> None:
    """See that the key, if one is set, can be used.

    Raises:
        InvalidInput: it cannot.
    """
    _cipher(os.environ.get(VARIABLE, ""))


@cache
def _cipher(written: str) -> Any:
    """The cipher for a key as it is written, or ``None`` if there is none."""
    if not written:
        return None
    with needs("encryption"):
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    return AESGCM(_key(written))


def _key(written: str) -> bytes:
    """The 32 bytes of a key: 64 hexadecimal digits, 44 characters of base64, or 32 characters as they are."""
    try:
        if len(written) == 2 * _KEY_BYTES:
            return bytes.fromhex(written)
        key = base64.b64decode(written, validate=True) if len(written) == 44 else written.encode()
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise InvalidInput(f"{VARIABLE} is 64 hexadecimal digits, 44 characters of base64 or 32 characters")
    return key
