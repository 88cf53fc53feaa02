"""Redacts secrets in stored JSON before it is returned."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

WITHHELD = "[withheld]"
WITHHELD_IN_URL = "withheld"
"""The replacement inside a URL, where brackets would be invalid."""
_SECRET = ("token", "credential", "password", "secret", "apikey", "authorization", "cookie")
"""Substrings of the names of secrets, after removing the separators between words."""


def without_secrets(value: Any) -> Any:
    """Return a copy of this JSON, with the values of secret names replaced, and user, query and fragment of URLs removed."""
    if isinstance(value, dict):
        return {name: _redact(name, item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return _redact_url(value) if isinstance(value, str) and "://" in value else value


def _redact(name: str, value: Any) -> Any:
    bare = name.lower().replace("_", "").replace("-", "")
    if value and any(part in bare for part in _SECRET):
        return WITHHELD
    return without_secrets(value)


def _redact_url(text: str) -> str:
    """Remove user, password, query and fragment of a URL: each may contain a token."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return WITHHELD
    _, at, host = parts.netloc.rpartition("@")
    return parts._replace(
        netloc=f"{WITHHELD_IN_URL}@{host}" if at else host,
        query=WITHHELD_IN_URL if parts.query else "",
        fragment=WITHHELD_IN_URL if parts.fragment else "",
    ).geturl()
