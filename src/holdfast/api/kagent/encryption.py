"""Encryption of events that contain credentials.

At each turn, an agent built with kagent-adk appends an event whose state contains all headers of the incoming request, including
the caller's ``Authorization``. If an encryption key is configured, such an event, and every other event that contains
credentials, is encrypted and is returned unchanged. Without a key, the values of those headers are replaced before the event is
stored: an agent that passes its caller's token on to its tools needs the key.
"""

from __future__ import annotations

from typing import Any

from holdfast.encryption import KeyRing, Secret

from . import redaction


def encrypt_event(keys: KeyRing, event_id: str, data: str) -> dict[str, str]:
    """Return the stored form of an event: its text unchanged, encrypted, or without secrets.

    Raises:
        LimitExceeded: no key is configured, and the event is nested too deeply to be searched for secrets.
    """
    if not keys:
        return {"id": event_id, "data": redaction.without_request_secrets(data) or data}
    if not redaction.contains_secrets(data):
        return {"id": event_id, "data": data}
    return {"id": event_id, "sealed": keys.encrypt(Secret(data), _context(event_id))}


def decrypt_event(keys: KeyRing, content: Any) -> tuple[str, str]:
    """Return the id and the text of a stored event.

    Raises:
        DecryptionFailed: no key of the ring can decrypt it.
    """
    if "data" in content:
        return content["id"], content["data"]
    return content["id"], keys.decrypt(content["sealed"], _context(content["id"]))


def _context(event_id: str) -> list[str]:
    """Return the encryption context. It omits the tenant: events stay readable after a bundle is imported under another name."""
    return ["", "messages", event_id, "event"]
