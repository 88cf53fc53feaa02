"""The one gate between Python text or JSON and the database.

Every ``str`` and every JSON value comes back as it went in, on both engines. PostgreSQL refuses U+0000 in text and in
jsonb, both drivers refuse lone surrogates, and jsonb turns a large float into an integer with other digits. Model
output contains all of these, so they are escaped, reversibly, into characters nobody uses:

=====================  ==============================================
in Python              in the database
=====================  ==============================================
U+0000                 U+10F800
U+D800 .. U+DFFF       U+10F000 .. U+10F7FF
U+10F000 .. U+10F801   U+10F801 and then the character itself
floats from 1e16 on    a JSON string: U+10F801, ``#``, the digits
=====================  ==============================================

The same bytes are stored on both engines, so that filters and order agree. What JSON cannot say (NaN, infinity,
objects of other types) is refused with ``InvalidText``: there is no second encoding to fall back to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import Corrupt, InvalidText, LimitExceeded

_NUL = "\U0010f800"
_ESCAPE = "\U0010f801"
_SURROGATES = 0x10F000
_LARGE_FLOAT = 1e16

_UNSAFE = re.compile("[\x00\ud800-\udfff\U0010f000-\U0010f801]")
_ESCAPED = re.compile("\U0010f801?[\U0010f000-\U0010f801]")

# Our escapes, and hardly anything people write, start with this byte of UTF-8.
_PRIVATE_PLANE = b"\xf4"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def escape(text: str) -> str:
    """The form of a string that both engines store."""
    if text.isascii() and "\x00" not in text:
        return text
    return _UNSAFE.sub(_escape_char, text)


def unescape(text: str) -> str:
    """The string that was escaped."""
    if text.isascii():
        return text
    return _ESCAPED.sub(_unescape_match, text)


def dump(value: Any, *, depth: int = 100) -> str:
    """A JSON value as the text that both engines store.

    Raises:
        InvalidText: the value is not JSON.
        LimitExceeded: it is nested deeper than ``depth``.
    """
    unusual = _survey(value, depth)
    try:
        encoded = _encode(_escape_value(value) if unusual else value)
        # One byte is found quickest, so the longer search is made only where a backslash is.
        if _PRIVATE_PLANE in encoded or (b"\\" in encoded and b"\\u0000" in encoded):
            encoded = _encode(_escape_value(value))
    except UnicodeEncodeError:
        encoded = _encode(_escape_value(value))
    except TypeError as error:
        raise InvalidText(f"not a JSON value: {error}") from None
    return encoded.decode()


def load(text: str) -> Any:
    """The JSON value behind stored text. Builds plain data, never objects.

    Raises:
        Corrupt: the text is not JSON.
    """
    try:
        value = _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Corrupt(f"a stored JSON value cannot be read: {error}") from error
    return value if text.isascii() else _unescape_value(value)


def load_many(texts: Sequence[str]) -> list[Any]:
    """Many stored JSON values. Whether a string is all ASCII is a flag it carries, so asking costs next to nothing."""
    try:
        return [_decode(text) if text.isascii() else load(text) for text in texts]
    except (msgspec.DecodeError, RecursionError):
        return [load(text) for text in texts]  # one of them is damaged: find it, and say so


def _escape_char(match: re.Match[str]) -> str:
    char = match.group()
    if char == "\x00":
        return _NUL
    code = ord(char)
    return chr(_SURROGATES + code - 0xD800) if code < 0xE000 else _ESCAPE + char


def _unescape_match(match: re.Match[str]) -> str:
    found = match.group()
    if len(found) > 1:
        return found[1:]
    return "\x00" if found == _NUL else chr(ord(found) - _SURROGATES + 0xD800)


def _survey(value: Any, depth: int) -> bool:
    """Look at everything in a JSON value that is not text: whether any number needs escaping.

    Raises:
        InvalidText: a number is not finite, or a key is not text.
        LimitExceeded: the value is nested deeper than ``depth``.
    """
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            raise InvalidText(f"{value} is not a JSON number")
        return bool(abs(value) >= _LARGE_FLOAT)
    if kind is dict:
        items = value.values()
        for key in value:
            if type(key) is not str:
                raise InvalidText(f"the keys of a JSON object are text, not {type(key).__name__}")
    elif kind is list or kind is tuple:
        items = value
    else:
        return False
    if depth <= 0:
        raise LimitExceeded("a JSON value is nested deeper than the limit json_depth")
    unusual = False
    for item in items:
        if type(item) is not str and _survey(item, depth - 1):
            unusual = True
    return unusual


def _escape_value(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, float):
        return value if abs(value) < _LARGE_FLOAT else f"{_ESCAPE}#{value!r}"
    if isinstance(value, dict):
        return {escape(key): _escape_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escape_value(item) for item in value]
    return value


def _unescape_value(value: Any) -> Any:
    if isinstance(value, str):
        if value.startswith(_ESCAPE + "#"):
            return float(value[2:])
        return unescape(value)
    if isinstance(value, dict):
        return {unescape(key): _unescape_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unescape_value(item) for item in value]
    return value

