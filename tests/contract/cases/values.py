"""Text and JSON that have broken stores before."""

from __future__ import annotations

import sys
from typing import Any

TEXTS: tuple[str, ...] = (
    " ",
    "plain",
    "O'Reilly; DROP TABLE sessions; --",
    '"double" and \\backslash\\ and /*comment*/',
    ":name ?1 $1 %s %(x)s {0} {x}",
    "a.b[0].$.c",
    "$",
    "$.a",
    "line\nbreak\r\ttab\x0b\x0c\x1b\x7f",
    "\x00",
    "a\x00b\x00",
    "\ud800",
    "\udfff",
    "\ud83d\ude00",
    "lone \udc80 in the middle",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "e\u0301 is not \u00e9",
    "\u202eright to left\u202c \u05d0\u0628",
    "\ufeff\ufffe\uffff",
    "\U0010ffff",
    "\U0010f000\U0010f7ff\U0010f800\U0010f801\U0010f802\U0010f841\U0010f842",
    "\U0010f801#1e300",
    "\U0010f801\U0010f802\ud800",
    "\\u0000 \\ud800 \\x00",
    "null",
    "true",
    "NaN",
    "1e400",
    "00000000-0000-0000-0000-000000000000",
    "'",
    '"',
    "\\",
    "`",
    "]",
    "%",
    "_",
    "\u00df \u1e9e \u0130 \u0131",
    "\U00012345",
    "trailing space ",
)
"""Each of these is valid wherever text is valid."""

NUMBERS: tuple[int | float, ...] = (
    0,
    1,
    -1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64,
    10**40,
    -(10**300),
    0.0,
    0.1,
    0.1 + 0.2,
    1.0,
    -1.5,
    1e15,
    9999999999999998.0,
    1e16,
    1.2345678901234567e17,
    1e22,
    1e23,
    -1e300,
    sys.float_info.max,
    sys.float_info.min,
    5e-324,
    1e-7,
    123456789.123456789,
)
"""Each is returned with its type and all its digits."""

NOT_JSON: tuple[Any, ...] = (
    float("nan"),
    float("inf"),
    -float("inf"),
    {1, 2},
    b"bytes",
    object(),
    1j,
    {1: "a key that is a number"},
    {None: "a key that is nothing"},
    10**5000,
    range(3),
)
"""None of these is JSON, and none is converted to JSON."""

GARBAGE_CURSORS: tuple[Any, ...] = (
    "",
    "garbage",
    "====",
    "kq",
    "\x00",
    "\ud800",
    "é",
    "AAAA" * 1_000,
    "gqFhoWI",
    "wMDAwMDA",
    "3f____8",
    "kZGRkZGRkZGRkZGRkZGRkQ" * 50,
    "' OR 1=1 --",
    "8J-YgA==\n",
    7,
    b"bytes",
    ["list"],
)
"""None of these is a valid cursor."""


def nested(depth: int, leaf: Any = 1) -> Any:
    """Return a JSON value with this many levels of lists and objects."""
    value = leaf
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


def documents() -> dict[str, Any]:
    """Return an object with every unusual text as a key and as a value, every number, and all kinds of nesting."""
    return {
        **{text: text for text in TEXTS},
        "": "the empty key",
        "numbers": [*NUMBERS],
        "nothing": [None, True, False, [], {}, "", [[]], [{}], {"": {}}],
        "mixed": {"true is not one": [True, 1, 1.0, "1"], "false is not zero": [False, 0, 0.0, "", None]},
        "deep": nested(40),
    }


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal in every type and digit; for Python's ``==``, True is 1 and 1 is 1.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)
