"""What in an event or a task is a secret, and the same without it.

Two questions are asked. *What may not be stored without a key to encrypt it?* The headers of a caller's request: an agent puts
them into its state without being asked to, with the caller's token among them. *What may nobody but the owner see?* Those, and
every other credential: what a tool was authorised with, for example, which an agent keeps on purpose and cannot go on without.
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
"""What the name of a header that is secret has in it; there is no end of such names."""
_NAMES = frozenset(
    {
        *("authorization", "cookie", "token", "accesstoken", "refreshtoken", "idtoken", "bearertoken", "authtoken"),
        *("secret", "clientsecret", "password", "apikey", "privatekey", "credentials"),
        *("authcode", "codeverifier", "authresponseuri"),
    }
)
"""Names of secrets wherever they stand, written small and without what joins words."""
_SECRET_VALUE = re.compile(r"(bearer|basic|digest|negotiate|dpop|token)\s|eyJ[\w-]+\.[\w-]+\.", re.IGNORECASE)
"""How a header begins that proves who is calling, whatever its name is."""
_ESCAPED = r"|\\u00[2-7]"
"""A letter that was written as its number, behind which anything may hide."""
_MAY_HOLD_HEADERS = re.compile("headers" + _ESCAPED, re.IGNORECASE)
_MAY_HOLD_ANY = re.compile(
    r"headers|authorization|cookie|token|secret|password|credential|api[-_]?key|private[-_]?key|auth[-_]?code"
    r"|code[-_]?verifier|auth[-_]?response" + _ESCAPED,
    re.IGNORECASE,
)
_JOINS = str.maketrans("", "", "-_")


def storable(data: str) -> str | None:
    """The text of an event without its caller's secrets, or ``None`` if it has none and can be stored as it is.

    Raises:
        LimitExceeded: it is nested too deeply to be looked through.
    """
    if not _MAY_HOLD_HEADERS.search(data):
        return None
    try:
        event = json.loads(data)
        actions = event.get("actions") if isinstance(event, dict) else None
        return _written(event) if _withhold(actions, NOT_STORED, everywhere=False) else None
    except ValueError:
        return None
    except RecursionError:
        raise LimitExceeded("an event with headers is nested deeper than the limit json_depth") from None


def is_secret(data: str) -> bool:
    """Whether the text of an event has anything secret in it, or cannot be looked through."""
    return showable(data) != data


def showable(data: str) -> str:
    """The text of an event as others than its owner see it. What cannot be looked through, they do not see."""
    if not _MAY_HOLD_ANY.search(data):
        return data
    try:
        event = json.loads(data)
        return _written(event) if _withhold(event, NOT_SHOWN, everywhere=True) else data
    except (ValueError, RecursionError):
        return NOT_SHOWN


def showable_task(task: dict[str, Any]) -> dict[str, Any]:
    """A task as others than its owner see it; the one that is given is changed."""
    _withhold(task, NOT_SHOWN, everywhere=True)
    return task


def _written(event: Any) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def _withhold(value: Any, words: str, *, everywhere: bool, in_headers: bool = False) -> bool:
    """Replace what is secret by these words, in place: in headers only, or everywhere. Whether there was anything."""
    if isinstance(value, list):
        if in_headers and _is_secret_pair(value):
            value[1] = words
            return True
        entries: list[tuple[Any, Any]] = list(enumerate(value))
    elif isinstance(value, dict):
        if in_headers and _is_secret_pair([value.get("name", value.get("key")), value.get("value")]):
            value["value"] = words
            return True
        entries = list(value.items())
    else:
        return False
    found = False
    for key, under in entries:
        within = in_headers or _is_named_headers(key)
        if _is_secret_entry(key, under, within, everywhere):
            value[key] = words
            found = True
        elif _withhold(under, words, everywhere=everywhere, in_headers=within):
            found = True
    return found


def _is_secret_entry(key: Any, under: Any, in_headers: bool, everywhere: bool) -> bool:
    if in_headers and isinstance(key, str) and _is_named_headers(key) and isinstance(under, str):
        return _MAY_HOLD_ANY.search(under) is not None  # all headers in one text
    if in_headers and _is_secret_pair([key, under]):
        return True
    if not everywhere or not isinstance(under, str) or not under:
        return False
    return (isinstance(key, str) and _plain(key) in _NAMES) or _is_secret_document(under)


def _is_secret_pair(pair: list[Any]) -> bool:
    """Whether it is the name of a header with a value that is secret."""
    if len(pair) != 2 or not pair[1] or not isinstance(pair[1], str | list):
        return False
    name, value = pair
    if isinstance(name, str) and any(each in name.lower().replace("_", "-") for each in _HEADER_PARTS):
        return True
    return isinstance(value, str) and _SECRET_VALUE.match(value) is not None


def _is_secret_document(text: str) -> bool:
    """Whether it is itself JSON with something secret in it: some tools keep their credentials like that."""
    if not text.startswith("{") or not _MAY_HOLD_ANY.search(text):
        return False
    try:
        return _withhold(json.loads(text), NOT_SHOWN, everywhere=True)
    except ValueError:
        return False
    except RecursionError:
        return True


def _is_named_headers(key: Any) -> bool:
    return isinstance(key, str) and _plain(key).endswith("headers")


def _plain(key: str) -> str:
    """A name without the scope before it (``user:``, ``temp:``), written small and in one word."""
    return key.rpartition(":")[2].lower().translate(_JOINS)
