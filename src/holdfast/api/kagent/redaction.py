"""Detection and removal of secrets in events and tasks.

There are two sets of secrets. Those that must not be *stored* without an encryption key are the headers of a caller's request: an
agent adds them to its state without being asked to, including the caller's token. Those that only the owner may *see* are these
and all other credentials: for example a tool's authorization, which an agent stores deliberately and cannot continue without.
"""

from __future__ import annotations

import json
import re
from typing import Any

from holdfast.errors import LimitExceeded

NOT_STORED = "[withheld: set HOLDFAST_ENCRYPTION_KEY to keep it, encrypted]"
NOT_SHOWN = "[withheld: only the owner sees it]"

_HEADER_PARTS = (
    *("authorization", "cookie", "token", "secret", "api-key", "apikey", "access-key", "auth-key", "subscription-key"),
    *("password", "credential", "jwt", "oidc", "dpop"),
)
"""Substrings of the names of secret headers; there is no complete list of such names."""
_NAMES = frozenset(
    {
        *("authorization", "cookie", "token", "accesstoken", "refreshtoken", "idtoken", "bearertoken", "authtoken"),
        *("secret", "clientsecret", "password", "apikey", "privatekey", "credentials"),
        *("authcode", "codeverifier", "authresponseuri"),
    }
)
"""Names of secrets outside of headers, in lower case and without separators."""
_SECRET_VALUE = re.compile(r"(bearer|basic|digest|negotiate|dpop|token)\s|eyJ[\w-]+\.[\w-]+\.", re.IGNORECASE)
"""The start of a header's value that authenticates a caller, whatever the header's name."""
_ESCAPED = r"|\\u00[2-7]"
"""An escaped ASCII character, which can hide any name."""
_MAY_HOLD_HEADERS = re.compile("headers" + _ESCAPED, re.IGNORECASE)
_MAY_HOLD_ANY = re.compile(
    r"headers|authorization|cookie|token|secret|password|credential|api[-_]?key|private[-_]?key|auth[-_]?code"
    r"|code[-_]?verifier|auth[-_]?response" + _ESCAPED,
    re.IGNORECASE,
)
_JOINS = str.maketrans("", "", "-_")


def without_request_secrets(data: str) -> str | None:
    """Return the text of an event without the secrets of its request, or ``None`` if it has none and can be stored unchanged.

    Raises:
        LimitExceeded: it is nested too deeply to be searched.
    """
    if not _MAY_HOLD_HEADERS.search(data):
        return None
    try:
        event = json.loads(data)
        actions = event.get("actions") if isinstance(event, dict) else None
        return _to_json(event) if _redact(actions, NOT_STORED, everywhere=False) else None
    except ValueError:
        return None
    except RecursionError:
        message = "an event with headers is nested deeper than the limit json_depth"
        raise LimitExceeded(message, limit="json_depth") from None


def contains_secrets(data: str) -> bool:
    """Return whether the text of an event contains a secret, or cannot be searched."""
    return for_guests(data) != data


def for_guests(data: str) -> str:
    """Return the text of an event without secrets, for users other than its owner. If it cannot be searched, all of it is
    hidden."""
    if not _MAY_HOLD_ANY.search(data):
        return data
    try:
        event = json.loads(data)
        return _to_json(event) if _redact(event, NOT_SHOWN, everywhere=True) else data
    except (ValueError, RecursionError):
        return NOT_SHOWN


def task_for_guests(task: dict[str, Any]) -> dict[str, Any]:
    """Remove the secrets of a task in place and return it, for users other than its owner."""
    _redact(task, NOT_SHOWN, everywhere=True)
    return task


def _to_json(event: Any) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def _redact(value: Any, replacement: str, *, everywhere: bool, in_headers: bool = False) -> bool:
    """Replace secrets in place, in headers only or everywhere, and return whether there were any."""
    if isinstance(value, list):
        if in_headers and _is_secret_pair(value):
            value[1] = replacement
            return True
        entries: list[tuple[Any, Any]] = list(enumerate(value))
    elif isinstance(value, dict):
        if in_headers and _is_secret_pair([value.get("name", value.get("key")), value.get("value")]):
            value["value"] = replacement
            return True
        entries = list(value.items())
    else:
        return False
    has_secrets = False
    for key, item in entries:
        within = in_headers or _is_named_headers(key)
        if _is_secret_entry(key, item, within, everywhere):
            value[key] = replacement
            has_secrets = True
        elif _redact(item, replacement, everywhere=everywhere, in_headers=within):
            has_secrets = True
    return has_secrets


def _is_secret_entry(key: Any, value: Any, in_headers: bool, everywhere: bool) -> bool:
    if in_headers and isinstance(key, str) and _is_named_headers(key) and isinstance(value, str):
        return _MAY_HOLD_ANY.search(value) is not None  # all headers in one string
    if in_headers and _is_secret_pair([key, value]):
        return True
    if not everywhere or not isinstance(value, str) or not value:
        return False
    return (isinstance(key, str) and _plain(key) in _NAMES) or _is_secret_document(value)


def _is_secret_pair(pair: list[Any]) -> bool:
    """Return whether this is the name of a header with a secret value."""
    if len(pair) != 2 or not pair[1] or not isinstance(pair[1], str | list):
        return False
    name, value = pair
    if isinstance(name, str) and any(part in name.lower().replace("_", "-") for part in _HEADER_PARTS):
        return True
    return isinstance(value, str) and _SECRET_VALUE.match(value) is not None


def _is_secret_document(text: str) -> bool:
    """Return whether a text is JSON that contains a secret: some tools store their credentials this way."""
    if not text.startswith("{") or not _MAY_HOLD_ANY.search(text):
        return False
    try:
        return _redact(json.loads(text), NOT_SHOWN, everywhere=True)
    except ValueError:
        return False
    except RecursionError:
        return True


def _is_named_headers(key: Any) -> bool:
    return isinstance(key, str) and _plain(key).endswith("headers")


def _plain(key: str) -> str:
    """Return a name in lower case, without its scope (``user:``, ``temp:``) and separators."""
    return key.rpartition(":")[2].lower().translate(_JOINS)
