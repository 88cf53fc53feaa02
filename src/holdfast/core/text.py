"""The one gate between Python text or JSON and the database.

Every ``str`` and every JSON value comes back as it went in, on both engines. PostgreSQL refuses U+0000 in text and in
jsonb, both drivers refuse lone surrogates, and jsonb turns a large float into an integer. Model output contains all of
these, so they are written in a form both engines keep:

=====================  =====================================================================
in Python              in the database
=====================  =====================================================================
U+0000                 U+10F800
U+D800 .. U+DFFF       U+10F000 .. U+10F7FF
U+10F000 .. U+10F841   U+10F801 and then two of U+10F802 .. U+10F841: its number to base 64
floats from 1e16 on    all their digits and ``.0``, never an exponent
-0.0                   0.0: PostgreSQL has no other zero
=====================  =====================================================================

No escape is part of another, so a part of a text is found in the database exactly where it is found in Python. The same bytes
are stored on both engines, so that filters and order agree. What JSON cannot say (NaN, infinity, objects of other types) is
refused with ``InvalidText``: there is no second encoding to fall back to. Subclasses of JSON's types and other mappings come
back as the plain type, a tuple as a list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from ..errors import Corrupt, InvalidText, LimitExceeded

_RESERVED = 0x10F000
_NUL = "\U0010f800"
_ESCAPE = "\U0010f801"
_DIGITS = 0x10F802
_LARGE_FLOAT = 1e16
MAX_DEPTH = 200
"""Levels of nesting that can always be read back, however deep the caller's own stack is."""

_UNSAFE = re.compile("[\x00\ud800-\udfff\U0010f000-\U0010f841]+")
_SURROGATE_UTF8 = re.compile(b"\xed[\xa0-\xbf]")
_ESCAPED = re.compile("\U0010f801[\U0010f802-\U0010f841]{2}|[\U0010f000-\U0010f800]+")
_ESCAPED_PREFIX = b"\xf4\x8f"
SLICE_CHARS = 64 * 1024
"""Characters that are rewritten at a time: nothing else in the process goes on while a slice of many megabytes is searched."""

# Our escapes, and hardly anything people write, start with this byte of UTF-8.
_PRIVATE_PLANE = b"\xf4"

_ATOMS = frozenset({str, int, bool, type(None)})
_SCALARS = _ATOMS | {float}
_FEW = 16
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode


def escape(text: str) -> str:
    """The form of a string that both engines store."""
    if type(text) is not str:
        text = str.__str__(text)  # drivers have ideas of their own about enumerations
    if text.isascii() and "\x00" not in text:
        return text
    # Bytes are searched much faster than characters, which matters where one surrogate stands in megabytes of text.
    encoded = text.encode("utf-8", "surrogatepass")
    if b"\x00" not in encoded and _PRIVATE_PLANE not in encoded and not _has_surrogate(encoded):
        return text
    slices = [text[at : at + SLICE_CHARS] for at in range(0, len(text), SLICE_CHARS)]
    return "".join([each if _is_safe(each) else _UNSAFE.sub(_escaped_match, each) for each in slices])


def unescape(text: str) -> str:
    """The string that was escaped."""
    if text.isascii() or _ESCAPED_PREFIX not in text.encode("utf-8", "surrogatepass"):
        return text
    slices, at = [], 0
    while at < len(text):
        end = at + SLICE_CHARS
        end += 2 if text[end - 1 : end] == _ESCAPE else text[end - 2 : end - 1] == _ESCAPE  # with its two digits
        slices.append(text[at:end])
        at = end
    return "".join([each if each.isascii() else _ESCAPED.sub(_meant_match, each) for each in slices])


def dump(value: Any, *, depth: int = 100) -> str:
    """A JSON value as the text that both engines store.

    Raises:
        InvalidText: the value is not JSON.
        LimitExceeded: it is nested deeper than ``depth``.
    """
    if type(value) is str and value.isascii() and "\x00" not in value:
        return _encode(value).decode()  # the common case, in which nothing has to be looked for
    unusual = type(value) is not str and _survey(value, depth if depth < MAX_DEPTH else MAX_DEPTH)
    try:
        if not unusual:
            try:
                encoded = _encode(value)
                # One byte is found quickest, so the longer search is made only where a backslash is.
                if _PRIVATE_PLANE not in encoded and (b"\\" not in encoded or b"\\u0000" not in encoded):
                    return encoded.decode()
            except UnicodeEncodeError:
                pass  # a lone surrogate
        return _encode(_storable(value)).decode()
    except ValueError as error:
        # Whole numbers with thousands of digits: Python itself refuses to write them down.
        raise InvalidText(f"not a JSON value: {error}") from None


def load(text: str) -> Any:
    """The JSON value behind stored text. Builds plain data, never objects.

    Raises:
        Corrupt: the text is not JSON.
    """
    try:
        value = _decode(text)
        return value if text.isascii() else _unescape_value(value)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(f"a stored JSON value cannot be read: {error}") from error


def identical(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same, in type as well: 1 is neither 1.0 nor true, whatever Python says."""
    return one == other and _encode_sorted(_storable(one)) == _encode_sorted(_storable(other))


def size(stored: str) -> int:
    """Bytes of a stored text."""
    return len(stored) if stored.isascii() else len(stored.encode())


def load_many(texts: Sequence[str]) -> list[Any]:
    """Many stored JSON values. Whether a string is all ASCII is a flag it carries, so asking costs next to nothing."""
    try:
        return [_decode(text) if text.isascii() else load(text) for text in texts]
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return [load(text) for text in texts]  # one of them is damaged: find it, and say so


def _has_surrogate(encoded: bytes) -> bool:
    return b"\xed" in encoded and _SURROGATE_UTF8.search(encoded) is not None


def _is_safe(part: str) -> bool:
    return part.isascii() and "\x00" not in part


class _Escapes(dict[int, str]):
    """What stands for a character, by its code; worked out when it is first met. For ``str.translate``."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _escape_char(code)
        return found


class _Meanings(dict[int, str]):
    """What an escape of one character stands for."""

    def __missing__(self, code: int) -> str:
        self[code] = found = "\x00" if code == ord(_NUL) else chr(code - _RESERVED + 0xD800)
        return found


class _Triples(dict[str, str]):
    """What an escape of three characters stands for."""

    def __missing__(self, escaped: str) -> str:
        code = _RESERVED + (ord(escaped[1]) - _DIGITS) * 64 + ord(escaped[2]) - _DIGITS
        self[escaped] = found = chr(code)
        return found


_ESCAPES, _MEANINGS, _TRIPLES = _Escapes(), _Meanings(), _Triples()


def _escaped_match(match: re.Match[str]) -> str:
    found = match[0]
    return _ESCAPES[ord(found)] if len(found) == 1 else found.translate(_ESCAPES)


def _meant_match(match: re.Match[str]) -> str:
    found = match[0]
    if found[0] == _ESCAPE:
        return _TRIPLES[found]
    return _MEANINGS[ord(found)] if len(found) == 1 else found.translate(_MEANINGS)


def _escape_char(code: int) -> str:
    if code == 0:
        return _NUL
    if code < _RESERVED:
        return chr(_RESERVED + code - 0xD800)
    high, low = divmod(code - _RESERVED, 64)
    return f"{_ESCAPE}{chr(_DIGITS + high)}{chr(_DIGITS + low)}"


def _survey(value: Any, depth: int) -> bool:
    """Look at everything in a JSON value that is not text: whether anything must be rewritten before it is encoded.

    Raises:
        InvalidText: a number is not finite, a key is not text, or an object is not of a JSON type.
        LimitExceeded: the value is nested deeper than ``depth``.
    """
    kind = type(value)
    if kind is dict:
        unusual, items = _survey_keys(value), value.values()
    elif kind is list or kind is tuple:
        unusual, items = False, value
    elif kind in _ATOMS:
        return False
    elif kind is float:
        return _survey_float(value)
    else:
        # Of a subclass, or not JSON at all.
        _survey(plain(value), depth)
        return True
    if depth <= 0:
        raise LimitExceeded("a JSON value is nested deeper than the limit json_depth")
    if len(items) > _FEW and _are_usual(items):
        return unusual
    for item in items:
        if type(item) is not str and _survey(item, depth - 1):
            unusual = True
    return unusual


def _are_usual(items: Collection[Any]) -> bool:
    """Whether all of them are atoms in which nothing must be looked for, as it is found out about many most quickly."""
    kinds = set(map(type, items))
    if not kinds <= _SCALARS:
        return False
    floats = [each for each in items if type(each) is float] if float in kinds else []
    return not floats or (
        0.0 not in floats
        and min(floats) > -_LARGE_FLOAT
        and max(floats) < _LARGE_FLOAT
        and all(map(math.isfinite, floats))
    )


def _survey_keys(value: dict[Any, Any]) -> bool:
    unusual = False
    for key in value:
        if type(key) is not str:
            if not isinstance(key, str):
                raise InvalidText(f"the keys of a JSON object are text, not {type(key).__name__}")
            unusual = True
    return unusual


def _survey_float(value: float) -> bool:
    if not math.isfinite(value):
        raise InvalidText(f"{value} is not a JSON number")
    return abs(value) >= _LARGE_FLOAT or (value == 0.0 and math.copysign(1.0, value) < 0)


def plain(value: Any) -> Any:
    """A value of one of JSON's types, or of a subclass of one, as that type.

    Raises:
        InvalidText: it is of no such type.
    """
    if type(value) in _ATOMS:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    raise InvalidText(f"not a JSON value: {type(value).__name__}")


def _storable(value: Any) -> Any:
    """A JSON value in which everything is written as both engines keep it."""
    kind = type(value)
    if kind is str:
        return escape(value)
    if kind is float:
        if abs(value) >= _LARGE_FLOAT:
            return msgspec.Raw(f"{value:.1f}".encode())
        return value or 0.0
    if kind is dict:
        return {escape(str.__str__(key)): _storable(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_storable(item) for item in value]
    return value if kind in _ATOMS else _storable(plain(value))


def _unescape_value(value: Any) -> Any:
    if isinstance(value, str):
        return unescape(value)
    if isinstance(value, dict):
        return {unescape(key): _unescape_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unescape_value(item) for item in value]
    return value


def printable(value: str) -> str:
    """The same, with what no UTF-8 says, half of a pair of surrogates, spelled out."""
    return value.encode("utf-8", "backslashreplace").decode()
