"""Removes secrets from stored JSON before it is shown."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

WITHHELD = "[withheld]"
WITHHELD_IN_ADDRESS = "withheld"
"""The same where brackets would make an address none."""
_SECRET = ("token", "credential", "password", "secret", "apikey", "authorization", "cookie")
"""What the name of a secret has in it, written without marks between its words."""


def without_secrets(value: Any) -> Any:
    """The same JSON, in which everything under the name of a secret is replaced, and of addresses who asks and what for."""
    if isinstance(value, dict):
        return {name: _withheld(name, each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_secrets(each) for each in value]
    return _plain_address(value) if isinstance(value, str) and "://" in value else value


def _withheld(name: str, value: Any) -> Any:
    bare = name.lower().replace("_", "").replace("-", "")
    if value and any(each in bare for each in _SECRET):
        return WITHHELD
    return without_secrets(value)


def _plain_address(text: str) -> str:
    """An address without a user, a password or a query: a token may be in any of them."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return WITHHELD
    _, at, host = parts.netloc.rpartition("@")
    return parts._replace(
        netloc=f"{WITHHELD_IN_ADDRESS}@{host}" if at else host,
        query=WITHHELD_IN_ADDRESS if parts.query else "",
        fragment=WITHHELD_IN_ADDRESS if parts.fragment else "",
    ).geturl()
