"""How events are stored that hold credentials.

At each turn an agent built with kagent-adk appends an event whose state holds all headers of the request that came in, among them
the caller's ``Authorization``. Where there is an encryption key, such an event, and every other one with a credential in it, is
encrypted and comes back as it was. Without a key the values of those headers are replaced before anything is stored: an agent
that passes its caller's token on to its tools needs the key.
"""

from __future__ import annotations

from typing import Any

from holdfast.encryption import KeyRing, Secret

from . import redaction


def sealed(keys: KeyRing, event_id: str, data: str) -> dict[str, str]:
    """An event as it is stored: with its text as it came, or encrypted, or without what is secret.

    Raises:
        LimitExceeded: there is no key, and it is nested too deeply to be searched for secrets.
    """
    if not keys:
        return {"id": event_id, "data": redaction.storable(data) or data}
    if not redaction.is_secret(data):
        return {"id": event_id, "data": data}
    return {"id": event_id, "sealed": keys.encrypt(Secret(data), _context(event_id))}


def opened(keys: KeyRing, content: Any) -> tuple[str, str]:
    """The id and the text of a stored event.

    Raises:
        DecryptionFailed: no key of the ring can decrypt it.
    """
    if "data" in content:
        return content["id"], content["data"]
    return content["id"], keys.decrypt(content["sealed"], _context(content["id"]))


def _context(event_id: str) -> list[str]:
    """Without the tenant: a bundle can be imported under another name, and its events stay readable."""
    return ["", "messages", event_id, "event"]
