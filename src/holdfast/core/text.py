"""The only conversion between Python text or JSON and the database.

Every ``str`` and every JSON value is returned exactly as it was stored, on both engines. PostgreSQL rejects U+0000 in text and in
jsonb, both drivers reject lone surrogates, and jsonb turns a large float into an integer. Model output contains all of
these, so they are stored in a form that both engines keep:

=====================  =====================================================================
in Python              in the database
=====================  =====================================================================
U+0000                 U+10F800
U+D800 .. U+DFFF       U+10F000 .. U+10F7FF
U+10F000 .. U+10F841   U+10F801 and then two of U+10F802 .. U+10F841: its number to base 64
floats from 1e16 on    all their digits and ``.0``, never an exponent
-0.0                   0.0: PostgreSQL has no negative zero
=====================  =====================================================================

No escape is part of another, so a substring is found in the database exactly where it is found in Python. The same bytes
are stored on both engines, so filters and order agree. Values that JSON cannot represent (NaN, infinity, objects of other types)
are rejected with ``InvalidText``: there is no fallback encoding. Subclasses of JSON's types and other mappings are returned
as the plain type, a tuple as a list.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
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
"""The nesting depth that can always be read back, however deep the caller's own stack is."""

_UNSAFE = re.compile("[\x00\ud800-\udfff\U0010f000-\U0010f841]+")
_SURROGATE_UTF8 = re.compile(b"\xed[\xa0-\xbf]")
_ESCAPED = re.compile("\U0010f801[\U0010f802-\U0010f841]{2}|[\U0010f000-\U0010f800]+")
_ESCAPED_PREFIX = b"\xf4\x8f"
SLICE_CHARS = 64 * 1024
"""The number of characters to rewrite at a time: the GIL is held while a slice is searched, so slices are short."""

# Our escapes, and hardly any other text, start with this byte of UTF-8.
_PRIVATE_PLANE = b"\xf4"

_ATOMS = frozenset({str, int, bool, type(None)})
_SCALARS = _ATOMS | {float}
_MIN_BULK = 16
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode


def escape(text: str) -> str:
    """Return the form of a string that both engines store."""
    if type(text) is not str:
        text = str.__str__(text)  # drivers convert enumerations in their own ways
    if text.isascii() and "\x00" not in text:
        return text
    # Searching bytes is much faster than searching characters, which matters for one surrogate in megabytes of text.
    encoded = text.encode("utf-8", "surrogatepass")
    if b"\x00" not in encoded and _PRIVATE_PLANE not in encoded and not _has_surrogate(encoded):
        return text
    slices = [text[at : at + SLICE_CHARS] for at in range(0, len(text), SLICE_CHARS)]
    return "".join([part if _is_safe(part) else _UNSAFE.sub(_escape_match, part) for part in slices])


def unescape(text: str) -> str:
    """Return the string that was escaped."""
    if text.isascii() or _ESCAPED_PREFIX not in text.encode("utf-8", "surrogatepass"):
        return text
    slices, at = [], 0
    while at < len(text):
        end = at + SLICE_CHARS
        end += 2 if text[end - 1 : end] == _ESCAPE else text[end - 2 : end - 1] == _ESCAPE  # with its two digits
        slices.append(text[at:end])
        at = end
    return "".join([part if part.isascii() else _ESCAPED.sub(_unescape_match, part) for part in slices])


def dump(value: Any, *, depth: int = 100) -> str:
    """Return a JSON value as the text that both engines store.

    Raises:
        InvalidText: the value is not JSON.
        LimitExceeded: it is nested deeper than ``depth``.
    """
    if type(value) is str and value.isascii() and "\x00" not in value:
        return _encode(value).decode()  # the common case, in which nothing needs to be rewritten
    needs_rewrite = type(value) is not str and _needs_rewrite(value, depth if depth < MAX_DEPTH else MAX_DEPTH)
    try:
        if not needs_rewrite:
            try:
                encoded = _encode(value)
                # A single byte is found fastest, so the longer search is only made where there is a backslash.
                if _PRIVATE_PLANE not in encoded and (b"\\" not in encoded or b"\\u0000" not in encoded):
                    return encoded.decode()
            except UnicodeEncodeError:
                pass  # a lone surrogate
        return _encode(_storable(value)).decode()
    except ValueError as error:
        # Integers with thousands of digits: Python itself refuses to convert them to text.
        raise InvalidText(f"not a JSON value: {error}") from None


def load(text: str) -> Any:
    """Return the JSON value of stored text. Creates plain data only, never objects.

    Raises:
        Corrupt: the text is not JSON.
    """
    try:
        value = _decode(text)
        return value if text.isascii() else _unescape_value(value)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(f"a stored JSON value cannot be read: {error}") from error


def identical(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, including their types: 1 equals neither 1.0 nor true, unlike in Python."""
    return one == other and _encode_sorted(_storable(one)) == _encode_sorted(_storable(other))


def size(stored: str) -> int:
    """Return the size of a stored text in bytes."""
    return len(stored) if stored.isascii() else len(stored.encode())


def cut(value: str, max_bytes: int) -> str:
    """Return the longest prefix of a text that fits into this many bytes when it is stored. Characters are never split."""
    if len(value) * 4 <= max_bytes:
        return value
    lengths = range(1, min(len(value), max_bytes) + 1)
    return value[: bisect_right(lengths, max_bytes, key=lambda length: size(escape(value[:length])))]


def load_many(texts: Sequence[str]) -> list[Any]:
    """Return many stored JSON values. Whether a string is ASCII is a flag on the object, so the check costs almost nothing."""
    try:
        return [_decode(text) if text.isascii() else load(text) for text in texts]
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return [load(text) for text in texts]  # one of them is damaged: raises the error for it


def _has_surrogate(encoded: bytes) -> bool:
    return b"\xed" in encoded and _SURROGATE_UTF8.search(encoded) is not None


def _is_safe(part: str) -> bool:
    return part.isascii() and "\x00" not in part


class _Escapes(dict[int, str]):
    """The escape of each character, by its code point, computed when it is first needed. For ``str.translate``."""

    def __missing__(self, code: int) -> str:
        self[code] = escaped = _escape_char(code)
        return escaped


class _Unescapes(dict[int, str]):
    """The character for each escape of one character."""

    def __missing__(self, code: int) -> str:
        self[code] = char = "\x00" if code == ord(_NUL) else chr(code - _RESERVED + 0xD800)
        return char


class _LongUnescapes(dict[str, str]):
    """The character for each escape of three characters."""

    def __missing__(self, escaped: str) -> str:
        code = _RESERVED + (ord(escaped[1]) - _DIGITS) * 64 + ord(escaped[2]) - _DIGITS
        self[escaped] = char = chr(code)
        return char


_ESCAPES, _UNESCAPES, _LONG_UNESCAPES = _Escapes(), _Unescapes(), _LongUnescapes()


def _escape_match(match: re.Match[str]) -> str:
    run = match[0]
    return _ESCAPES[ord(run)] if len(run) == 1 else run.translate(_ESCAPES)


def _unescape_match(match: re.Match[str]) -> str:
    run = match[0]
    if run[0] == _ESCAPE:
        return _LONG_UNESCAPES[run]
    return _UNESCAPES[ord(run)] if len(run) == 1 else run.translate(_UNESCAPES)


def _escape_char(code: int) -> str:
    if code == 0:
        return _NUL
    if code < _RESERVED:
        return chr(_RESERVED + code - 0xD800)
    high, low = divmod(code - _RESERVED, 64)
    return f"{_ESCAPE}{chr(_DIGITS + high)}{chr(_DIGITS + low)}"


def _needs_rewrite(value: Any, depth: int) -> bool:
    """Check everything in a JSON value except its strings; return whether anything must be rewritten before it is encoded.

    Raises:
        InvalidText: a number is not finite, a key is not text, or an object is not of a JSON type.
        LimitExceeded: the value is nested deeper than ``depth``.
    """
    kind = type(value)
    if kind is dict:
        unusual, items = _has_unusual_keys(value), value.values()
    elif kind is list or kind is tuple:
        unusual, items = False, value
    elif kind in _ATOMS:
        return False
    elif kind is float:
        return _is_unusual_float(value)
    else:
        # A subclass of a JSON type, or not JSON at all.
        _needs_rewrite(plain(value), depth)
        return True
    if depth <= 0:
        raise LimitExceeded("a JSON value is nested deeper than the limit json_depth", limit="json_depth")
    if len(items) > _MIN_BULK and _are_plain_scalars(items):
        return unusual
    for item in items:
        if type(item) is not str and _needs_rewrite(item, depth - 1):
            unusual = True
    return unusual


def _are_plain_scalars(items: Collection[Any]) -> bool:
    """Return whether all items are scalars that need no rewriting. The fastest way to check many items."""
    kinds = set(map(type, items))
    if not kinds <= _SCALARS:
        return False
    floats = [item for item in items if type(item) is float] if float in kinds else []
    return not floats or (
        0.0 not in floats
        and min(floats) > -_LARGE_FLOAT
        and max(floats) < _LARGE_FLOAT
        and all(map(math.isfinite, floats))
    )


def _has_unusual_keys(value: dict[Any, Any]) -> bool:
    unusual = False
    for key in value:
        if type(key) is not str:
            if not isinstance(key, str):
                raise InvalidText(f"the keys of a JSON object must be text, not {type(key).__name__}")
            unusual = True
    return unusual


def _is_unusual_float(value: float) -> bool:
    if not math.isfinite(value):
        raise InvalidText(f"{value} is not a JSON number")
    return abs(value) >= _LARGE_FLOAT or (value == 0.0 and math.copysign(1.0, value) < 0)


def plain(value: Any) -> Any:
    """Return a value of one of JSON's types, or of a subclass of one, as that type.

    Raises:
        InvalidText: the value is of another type.
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
    """Return a JSON value in which everything has its stored form."""
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
    """Return text that can be encoded as UTF-8: lone surrogates are written as escape sequences."""
    return value.encode("utf-8", "backslashreplace").decode()
