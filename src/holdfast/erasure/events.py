"""Parses the entries of the stream.

An entry is a map of texts. Its kind is in ``type``, ``event`` or ``event_type``; its subject is in ``USER_FIELD``, ``tenant``
or ``user_id``, in the entry itself or in a JSON object under ``data`` or ``payload``. An entry is untrusted input: if it is
invalid, an error says why.
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
"""The beginning of the year 9999, in milliseconds: a deadline a day later must be a valid time, too."""


class ErasureRequest(Struct, frozen=True):
    """A request to erase a tenant."""

    tenant: str
    event_id: str
    """The event's own id if it has one, so that an event that is sent twice counts once; otherwise the entry's id."""
    requested_at: datetime | None


def read_event(entry_id: str, fields: Mapping[str, str], event: str) -> ErasureRequest | None:
    """Return the request of an entry; ``None`` if it is an event of another kind.

    Raises:
        ValueError: the event is of this kind but does not name a tenant.
    """
    values = {**_body(fields), **fields}
    if not any(values.get(name) == event for name in KINDS):
        return None
    tenant = next((values[name] for name in SUBJECTS if values.get(name)), None)
    if not isinstance(tenant, str):
        raise ValueError(f"an event {event} does not name the tenant to erase: it needs one of {', '.join(SUBJECTS)}")
    event_id = next((values[name] for name in IDS if values.get(name)), None)
    return ErasureRequest(tenant, event_id if isinstance(event_id, str) else entry_id, _added_at(entry_id))


def _body(fields: Mapping[str, str]) -> dict[str, Any]:
    for name in BODIES:
        try:
            body = msgspec.json.decode(fields.get(name) or "null")
        except (msgspec.MsgspecError, RecursionError, ValueError):
            continue
        if isinstance(body, dict):
            return body
    return {}


def _added_at(entry_id: str) -> datetime | None:
    """Return when the entry was added: its id begins with the server's time."""
    digits = entry_id.partition("-")[0]
    if not digits.isascii() or not digits.isdigit() or not 0 < int(digits) < _MAX_MS:
        return None
    return _EPOCH + timedelta(milliseconds=int(digits))
