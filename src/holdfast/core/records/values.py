"""Values of records: checks against their types and limits, and conversion to their stored form."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, get_args, get_origin
from urllib.parse import urlsplit

from ...clock import from_us, to_us
from ...errors import Conflict, DecryptionFailed, InvalidFilter, InvalidInput
from ...ids import parse as parse_id
from ...limits import Limits
from .. import scope as scopes
from .. import text
from ..paging import decode_cursor, encode_cursor
from .fields import AtLeast, Field, Format, Limited, Names, Tags, Url, choices

_MAX_NUMBER = 2**63


def encode_value(field: Field, value: Any, limits: Limits, noun: str) -> Any:
    """Check a caller's value and return its stored form.

    Raises:
        InvalidInput: it is not of the field's type.
        LimitExceeded: it is over the field's limit.
    """
    if field.kind == "secret" or (value is None and field.optional):
        return value  # a secret is checked when it is encrypted
    return _BY_KIND[field.kind](field, value, limits, f"{field.name} of {with_article(noun)}")


def encode_row_value(field: Field, value: Any) -> Any:
    """Return the stored form of a value that was read from a row."""
    if value is None:
        return None
    if field.kind == "text":
        return text.escape(value)
    if field.kind == "json":
        return text.dump(value)
    return to_us(value) if field.kind == "time" else value


def is_same(field: Field, value: Any, row: Any) -> bool:
    """Return whether a row contains a value that is given in its stored form."""
    current = getattr(row, field.name)
    if value is None or current is None:
        return value is current
    if field.kind == "secret":
        return _is_same_secret(value, current)
    if field.kind == "text":
        return bool(text.unescape(value) == current)
    if field.kind == "json":
        return text.identical(text.load(value), current)
    return bool((from_us(value) if field.kind == "time" else value) == current)


def _is_same_secret(value: Any, current: Any) -> bool:
    try:
        return bool(value == current)
    except DecryptionFailed:
        return False  # its key is lost: another secret can replace it


def check_version(current: int, expected: int | None, what: str) -> None:
    """Compare a version with the expected one, if the caller expects one.

    Raises:
        Conflict: the versions differ.
    """
    if expected is None:
        return
    if not isinstance(expected, int) or isinstance(expected, bool):
        raise InvalidInput(f"version must be a whole number, not {_repr(expected)}", field="version")
    if current != expected:
        raise Conflict(f"{what} has version {current}, not {expected}; read it again", reason="version")


def cursor_of(listing: str, order: Sequence[Field], row: Any) -> str:
    """Return the cursor that starts after a row."""
    values = [getattr(row, field.name) for field in order]
    return encode_cursor(listing, *[to_us(value) if isinstance(value, datetime) else value for value in values])


def cursor_params(cursor: str, listing: str, order: Sequence[Field]) -> dict[str, Any]:
    """Return the parameters of a list that starts at a cursor.

    Raises:
        InvalidFilter: the cursor belongs to another list.
    """
    kinds = {"time": int, "number": int, "bool": bool}
    values = decode_cursor(cursor, listing, *[kinds.get(field.kind, str) for field in order])
    params: dict[str, Any] = {}
    for field, value in zip(order, values, strict=True):
        if field.kind == "id":
            value = _id_in_cursor(value)
        params[f"after_{field.column}"] = text.escape(value) if isinstance(value, str) else value
    return params


def _id_in_cursor(value: str) -> str:
    try:
        return parse_id(value, "cursor")
    except InvalidInput as error:
        raise InvalidFilter(str(error), field="cursor") from None


@cache
def with_article(noun: str) -> str:
    """Return the noun with "a" or "an", or alone if it is uncountable."""
    if noun.endswith("feedback"):
        return noun
    return f"{'an' if noun[0] in 'aeiouAM' else 'a'} {noun}"  # an A2A task, an MCP server


def _id(field: Field, value: Any, limits: Limits, what: str) -> str:
    return parse_id(value, what)


def _text(field: Field, value: Any, limits: Limits, what: str) -> str:
    limited = field.marker(Limited)
    check = scopes.free_text if limited.empty else scopes.name
    checked = check(value, what, limits, limit=limited.limit)
    form = field.marker(Format)
    if checked and form is not None and not re.fullmatch(form.pattern, value, re.DOTALL):
        raise InvalidInput(
            f"{what} must be {form.about}, such as {form.example!r}, not {_repr(value)}", field=field.name
        )
    if checked and field.marker(Url):
        _check_url(value, field, what)
    return checked


def _check_url(value: str, field: Field, what: str) -> None:
    """Check a URL. The errors do not show it, because it can contain a password or a token."""
    try:
        url = urlsplit(value)
        has_host = bool(url.hostname) and url.port != 0
    except ValueError:
        has_host = False
    if not has_host or url.scheme not in ("http", "https") or any(char <= " " or char == "\x7f" for char in value):
        raise InvalidInput(f"{what} must be a URL such as https://example.com/mcp", field=field.name)
    if "@" in url.netloc:
        raise InvalidInput(
            f"{what} must not contain a user name or a password: put them into a secret field", field=field.name
        )


def _choice(field: Field, value: Any, limits: Limits, what: str) -> Any:
    allowed = choices(field.type)
    if not isinstance(value, str) or value not in allowed:
        raise InvalidInput(
            f"{what} must be one of {', '.join(map(repr, allowed))}, not {_repr(value)}", field=field.name
        )
    return value


def _number(field: Field, value: Any, limits: Limits, what: str) -> Any:
    if field.type is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InvalidInput(f"{what} must be a finite number, not {_repr(value)}", field=field.name)
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -_MAX_NUMBER <= value < _MAX_NUMBER:
        raise InvalidInput(f"{what} must be a whole number of 64 bits, not {_repr(value)}", field=field.name)
    least = field.marker(AtLeast)
    if least is not None and value < least.minimum:
        raise InvalidInput(f"{what} must be at least {least.minimum}, not {value}", field=field.name)
    if field.marker(Limited):
        limits.check(field.marker(Limited).limit, value, what)
    return value


def _bool(field: Field, value: Any, limits: Limits, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} must be true or false, not {_repr(value)}", field=field.name)
    return value


def _time(field: Field, value: Any, limits: Limits, what: str) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{what} must be a datetime with a time zone, not {_repr(value)}", field=field.name)
    return to_us(value)


def _json(field: Field, value: Any, limits: Limits, what: str) -> str:
    names = field.marker(Names) or field.marker(Tags)
    if names is not None:
        return _names(value, names.limit, limits, what)
    limited = field.marker(Limited)
    if get_origin(field.type) is dict:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise InvalidInput(f"{what} must be a dictionary with string keys, not {_repr(value)}", field=field.name)
        value = dict(value)
    elif get_origin(field.type) is list:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise InvalidInput(f"{what} must be a list, not {_repr(value)}", field=field.name)
        value = [*value]
        if get_args(field.type) == (str,) and not all(isinstance(item, str) for item in value):
            raise InvalidInput(f"{what} must be a list of strings, not {_repr(value)}", field=field.name)
    dumped = text.dump(value, depth=limits.json_depth)
    limits.check(limited.limit, text.size(dumped), what)
    return dumped


def _names(values: Any, limit: str, limits: Limits, what: str) -> str:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise InvalidInput(f"{what} must be a list of names, not {_repr(values)}", field=what)
    limits.check(limit, len(values), what)
    for value in values:
        scopes.name(value, what, limits)
    return text.dump(list(dict.fromkeys(values)))  # without duplicates, in the order given


def _repr(value: Any) -> str:
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):  # a number with thousands of digits, a list that contains itself
        return type(value).__name__


_BY_KIND = {
    "id": _id,
    "text": _text,
    "plain": _choice,
    "number": _number,
    "bool": _bool,
    "time": _time,
    "json": _json,
}
