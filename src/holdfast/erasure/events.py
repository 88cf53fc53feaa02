"""What an entry of the stream says.

An entry is a map of texts. Its kind stands under ``type``, ``event`` or ``event_type``; whom it is about stands under
``USER_FIELD``, ``tenant`` or ``user_id``, in the entry itself or in a JSON object under ``data`` or ``payload``. Nothing in
it is trusted: what cannot be read is said to be so.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.compatibility import USER_FIELD

KINDS = ("type", "event", "event_type")
SUBJECTS = (USER_FIELD, "tenant", "user_id")
IDS = ("event_id", "id")
BODIES = ("data", "payload")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS = 253_370_764_800_000
"""The beginning of the year 9999, in milliseconds: what is due a day later must be a moment too."""


class ErasureRequest(Struct, frozen=True):
    """Somebody who wants to be forgotten."""

    tenant: str
    event_id: str
    """The event's own id if it has one, so that an event that is sent twice is one; otherwise that of its entry."""
    requested_at: datetime | None


def read_event(entry_id: str, fields: Mapping[str, str], event: str) -> ErasureRequest | None:
    """What an entry asks for; ``None`` if it is not of that kind.

    Raises:
        ValueError: it is, and does not say who is to be forgotten.
    """
    said = {**_body(fields), **fields}
    if not any(said.get(name) == event for name in KINDS):
        return None
    tenant = next((said[name] for name in SUBJECTS if said.get(name)), None)
    if not isinstance(tenant, str):
        raise ValueError(f"an event {event} does not say who is to be forgotten: none of {', '.join(SUBJECTS)}")
    own = next((said[name] for name in IDS if said.get(name)), None)
    return ErasureRequest(tenant, own if isinstance(own, str) else entry_id, _moment(entry_id))


def _body(fields: Mapping[str, str]) -> dict[str, Any]:
    for name in BODIES:
        try:
            found = msgspec.json.decode(fields.get(name) or "null")
        except (msgspec.MsgspecError, RecursionError, ValueError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def _moment(entry_id: str) -> datetime | None:
    """When the entry was added, which the server writes into its id."""
    digits = entry_id.partition("-")[0]
    if not digits.isascii() or not digits.isdigit() or not 0 < int(digits) < _MAX_MS:
        return None
    return _EPOCH + timedelta(milliseconds=int(digits))
