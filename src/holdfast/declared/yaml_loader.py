"""A loader of YAML that reads what Kubernetes reads: plain JSON values, without objects, dates and numbers in base 60.

The values are built from the events of the parser, without recursion: neither deep nesting nor aliases of aliases need more
memory than the limits allow. The keys of a mapping are always strings, and a key that occurs twice is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from holdfast.extras import needs
from holdfast.limits import Limits

from .json_loader import MAX_NUMBER, SyntaxProblem

with needs("server"):
    import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C if the library has it: it is several times as fast."""
_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_TRUE, _FALSE = ("yes", "true", "on"), ("no", "false", "off")
_NULL = ("", "~", "null", "Null", "NULL")
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-f_]+|0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:e[-+]?[0-9]+)?|[-+]?\.inf|\.nan")
_MAX_DIGITS = 400
"""Characters of the longest number."""


class _Built(Struct, frozen=True):
    """A value, with its size and depth when the values of aliases are repeated."""

    value: Any
    size: int = 1
    depth: int = 1


class _Open(Struct):
    """A mapping or list whose end has not been read."""

    value: Any
    anchor: str | None
    size: int = 1
    depth: int = 1
    key: str | None = None
    merged: list[dict[str, Any]] = []


def load_all(data: bytes, limits: Limits) -> Iterator[Any]:
    """Yield the value of each document; ``None`` for an empty one.

    Raises:
        SyntaxProblem: the data is not valid YAML, has a tag that is not plain data, or is over a limit.
    """
    loader = None
    try:
        loader = _LOADER(data)
        builder = _Builder(limits)
        while loader.check_event():
            event = loader.get_event()
            builder.take(event)
            if isinstance(event, yaml.DocumentEndEvent):
                yield builder.result
                builder = _Builder(limits)
    except yaml.MarkedYAMLError as error:
        raise SyntaxProblem(
            _located(error.problem or error.context, error.problem_mark or error.context_mark)
        ) from None
    except (yaml.YAMLError, UnicodeError):
        raise SyntaxProblem(
            "invalid YAML: the file contains a character that YAML does not allow, or is not UTF-8"
        ) from None
    finally:
        if loader is not None:
            loader.dispose()


class _Builder:
    """Builds the value of one document from the events of the parser."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: list[_Open] = []
        self._anchors: dict[str, _Built] = {}
        self.result: Any = None

    def take(self, event: Any) -> None:
        """Add an event."""
        if isinstance(event, yaml.ScalarEvent):
            self._add_scalar(event)
        elif isinstance(event, yaml.MappingStartEvent):
            self._start({}, "map", event)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._start([], "seq", event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._end(event)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _error("an alias refers to no value before it", event)
            self._add(self._anchors[event.anchor], event)

    def _start(self, value: Any, tag: str, event: Any) -> None:
        if event.tag not in (None, "!", _TAG + tag):
            raise _error("a tag is not allowed here", event)
        if self._open and isinstance(self._open[-1].value, dict) and self._open[-1].key is None:
            raise _error("a key must be a string", event)
        self._open.append(_Open(value, event.anchor))
        self._check(self._open[-1], event)

    def _end(self, event: Any) -> None:
        closed = self._open.pop()
        for part in closed.merged:  # what the mapping itself contains takes precedence
            closed.value |= part | closed.value
        built = _Built(closed.value, closed.size, closed.depth)
        if closed.anchor is not None:
            self._anchors[closed.anchor] = built
        self._add(built, event)

    def _add_scalar(self, event: Any) -> None:
        inside = self._open[-1] if self._open else None
        if inside is not None and isinstance(inside.value, dict) and inside.key is None:
            if event.value in inside.value:
                raise _error(f"the key {event.value!r} occurs twice", event)
            inside.key = event.value
            return
        built = _Built(_scalar(event))
        if event.anchor is not None:
            self._anchors[event.anchor] = built
        self._add(built, event)

    def _add(self, built: _Built, event: Any) -> None:
        if not self._open:
            self.result = built.value
            return
        inside = self._open[-1]
        inside.size += built.size
        inside.depth = max(inside.depth, built.depth + 1)
        self._check(inside, event)
        if isinstance(inside.value, list):
            inside.value.append(built.value)
        elif inside.key is None:
            raise _error("a key must be a string", event)
        elif inside.key == _MERGE:
            inside.merged = [*inside.merged, *_mappings(built.value, event)]
            inside.key = None
        else:
            inside.value[inside.key] = built.value
            inside.key = None

    def _check(self, inside: _Open, event: Any) -> None:
        for name, value in (("manifest_values", inside.size), ("json_depth", inside.depth + len(self._open) - 1)):
            maximum = getattr(self._limits, name)
            if value > maximum:
                raise _error(f"the document is over the limit {name} = {maximum:,}", event)


def _mappings(value: Any, event: Any) -> list[dict[str, Any]]:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) for part in parts):
        raise _error("only mappings can be merged", event)
    return parts


def _scalar(event: Any) -> Any:
    text = event.value
    if event.tag not in (None, "!"):
        return _tagged(text, event)
    if not event.implicit[0] or event.tag == "!" or len(text) > _MAX_DIGITS:
        return text  # in quotes, a block, or too long to be anything else
    return _plain(text, event)


def _tagged(text: str, event: Any) -> Any:
    if event.tag == f"{_TAG}str":
        return text
    kinds = {"int": int, "float": float, "bool": bool, "null": type(None)}
    expected = kinds.get(event.tag.removeprefix(_TAG))
    value = _plain(text, event)
    if expected is None or type(value) is not expected:
        raise _error("a tag is not allowed here", event)
    return value


def _plain(text: str, event: Any) -> Any:
    lower = text.lower()
    if text in _NULL:
        return None
    if lower in _TRUE or lower in _FALSE:
        return lower in _TRUE
    if _INTEGER.fullmatch(lower):
        number = int(re.sub(r"^([-+]?)0([0-7])", r"\g<1>0o\2", lower.replace("_", "")), 0)
        if not -MAX_NUMBER <= number < MAX_NUMBER:
            raise _error("a whole number must have at most 64 bits", event)
        return number
    if _FLOAT.fullmatch(lower):
        value = float(lower.replace(".inf", "inf").replace(".nan", "nan"))
        if not math.isfinite(value):
            raise _error("a number must be finite", event)
        return value
    return text


def _error(problem: str, event: Any) -> SyntaxProblem:
    return SyntaxProblem(_located(problem, event.start_mark))


def _located(problem: str | None, mark: Any) -> str:
    line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"invalid YAML: {line}{problem or 'syntax error'}"
