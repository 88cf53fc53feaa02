"""A loader of JSON that refuses what the standard one accepts: a key twice, and numbers that cannot be stored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from holdfast.limits import Limits

MAX_NUMBER = 2**63


class SyntaxProblem(ValueError):
    """The text is not valid. The message contains no value of the text."""


def load_all(data: bytes, limits: Limits) -> Iterator[Any]:
    """Yield the value, if the data is not empty.

    Raises:
        SyntaxProblem: the data is not valid JSON.
    """
    if not data.strip():
        return
    try:
        value = json.loads(data, object_pairs_hook=_object, parse_float=_float, parse_constant=_float, parse_int=_int)
    except SyntaxProblem:
        raise
    except UnicodeDecodeError:
        raise SyntaxProblem("the file is not UTF-8") from None
    except json.JSONDecodeError as error:
        message = f"invalid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        raise SyntaxProblem(message) from None
    except RecursionError:
        raise SyntaxProblem("invalid JSON: it is nested too deeply") from None
    if _is_deeper(value, limits.json_depth):
        raise SyntaxProblem(f"invalid JSON: it is nested deeper than json_depth = {limits.json_depth}")
    yield value


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [item for part in parts for item in part]
    return bool(level)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SyntaxProblem(f"invalid JSON: the key {twice!r} occurs twice")
    return values


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise SyntaxProblem("invalid JSON: a number must be finite")
    return number


def _int(text: str) -> int:
    if len(text) > len(str(-MAX_NUMBER)) or not -MAX_NUMBER <= int(text) < MAX_NUMBER:
        raise SyntaxProblem("invalid JSON: a whole number must have at most 64 bits")
    return int(text)
