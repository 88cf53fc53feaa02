"""JSON Schema and its regular expressions, checked and applied in bounded time.

Every keyword of drafts 7, 2019-09 and 2020-12 has its meaning; ``format`` is an annotation. A schema that comes from a user
must not slow down other users, so three things are refused: a reference to another document, which would have to be
fetched; a schema that refers to itself, which can take exponential time; and a regular expression with a backreference or with
look-around. All other expressions take time in proportion to the text. ``schema_nodes`` limits the size of a schema with each
reference replaced by the schema it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

from ...core import text
from ...errors import InvalidInput
from ...extras import needs
from ...limits import Limits

DRAFTS = (
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
PATTERN_BYTES = 256 * 1024
"""Bytes that one compiled regular expression may take."""
_MAX_MESSAGE = 300


def check_schema(schema: Mapping[str, Any], field: str, limits: Limits) -> None:
    """Check that an object is a JSON Schema of objects.

    Raises:
        InvalidInput: it is not a JSON Schema, or one of those that are refused; ``field`` names the place.
        LimitExceeded: it is larger than ``schema_nodes``.
        MissingExtra: the extra ``tools`` is not installed.
    """
    if not schema:
        return
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise InvalidInput(f"{field}.type must be 'object': arguments have names", field=f"{field}.type")
    if str(schema.get("$schema", DRAFTS[-1])).removesuffix("#") not in DRAFTS:
        raise InvalidInput(f"{field}.$schema must be one of {', '.join(DRAFTS)}", field=f"{field}.$schema")
    _Unfolding(schema, field, limits).check()
    _validator(schema, field)


def check_instance(schema: Mapping[str, Any], value: Any, field: str) -> None:
    """Check a JSON value against a schema that was checked before.

    Raises:
        InvalidInput: the value does not match; ``field`` names the place.
        MissingExtra: the extra ``tools`` is not installed.
    """
    if not schema:
        return
    _checked(_validator(schema, field).validate, value, field)


def check_pattern(pattern: str, field: str) -> None:
    """Check a regular expression.

    Raises:
        InvalidInput: it is not valid, or contains a backreference or look-around.
        MissingExtra: the extra ``tools`` is not installed.
    """
    try:
        _validator({"pattern": pattern}, field)
    except InvalidInput:
        raise InvalidInput(
            f"{field}: {pattern!r} is not a regular expression, or contains a backreference or look-around, "
            "or is too large",
            field=field,
        ) from None


def is_found(pattern: str, value: str) -> bool:
    """Return whether a regular expression matches any part of a text. The time is in proportion to the length of the text."""
    return bool(_validator({"pattern": pattern}, "pattern").is_valid(value))


class _Unfolding:
    """Walks a schema with its references unfolded."""

    def __init__(self, schema: Mapping[str, Any], field: str, limits: Limits) -> None:
        self._root, self._field, self._limits = schema, field, limits

    def check(self) -> None:
        count = 0
        waiting: list[tuple[Any, tuple[str, ...]]] = [(self._root, ("#",))]
        while waiting:
            node, inside = waiting.pop()
            count += 1
            self._limits.check("schema_nodes", count, self._field)
            children = node.values() if isinstance(node, Mapping) else node
            waiting += [(child, inside) for child in children if isinstance(child, Mapping | list)]
            if isinstance(node, Mapping):
                waiting += self._referenced(node, inside)

    def _referenced(self, node: Mapping[str, Any], inside: tuple[str, ...]) -> list[tuple[Any, tuple[str, ...]]]:
        for name in ("$dynamicRef", "$recursiveRef", *(["$id"] if node is not self._root else [])):
            if isinstance(node.get(name), str):
                raise self._refusal(f"{name} is not supported: use $ref and $defs")
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return []
        if reference != "#" and not reference.startswith("#/"):
            raise self._refusal(f"$ref {reference[:80]!r} must refer to a part of this schema, such as '#/$defs/name'")
        if reference in inside:
            raise self._refusal(f"$ref {reference[:80]!r} is recursive: write out as many levels as you need")
        target = self._target(reference)
        return [(target, (*inside, reference))] if isinstance(target, Mapping | list) else []

    def _target(self, reference: str) -> Any:
        node: Any = self._root
        for part in reference.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = node.get(name)
            elif isinstance(node, list) and name.isdecimal() and len(name) < 10 and int(name) < len(node):
                node = node[int(name)]
            else:
                return None
        return node

    def _refusal(self, reason: str) -> InvalidInput:
        return InvalidInput(f"{self._field}: {reason}", field=self._field)


def _validator(schema: Mapping[str, Any], field: str) -> Any:
    with needs("tools"):
        import jsonschema_rs

    options = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES, dfa_size_limit=4 * PATTERN_BYTES)
    build = partial(jsonschema_rs.validator_for, pattern_options=options, offline=True)
    return _checked(build, dict(schema), field)


def _checked(check: Callable[[Any], Any], value: Any, field: str) -> Any:
    """Return the result of a function of the library.

    Raises:
        InvalidInput: the library refused the value.
    """
    import jsonschema_rs

    try:
        return check(value)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        path = text.printable(_path(field, getattr(error, "instance_path", [])))
        message = text.printable(str(getattr(error, "message", error)))
    shortened = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}..."
    raise InvalidInput(f"{path}: {shortened}", field=path)  # outside of the block: without the library's error


def _path(field: str, parts: Sequence[str | int]) -> str:
    return field + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
