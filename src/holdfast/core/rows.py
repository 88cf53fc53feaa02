"""Mapping between database rows and row types: the columns of a type, and the objects of a result.

A row type is a msgspec Struct; its fields are its columns, in order. The type of a field determines the mapping:
``datetime``, ``bool`` and JSON (``dict``, ``list``, ``Any``) are converted, ``Id`` and ``Literal`` are returned unchanged, and
``str`` is unescaped. ``Annotated[str, Column("user_id")]`` names a column that differs from the field; ``load=`` sets a
custom conversion.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Struct

from ..clock import from_us
from ..engines.dialect import Dialect
from ..engines.protocol import Row
from . import text
from .crypto import Secret

S = TypeVar("S", bound=Struct)
Convert = Callable[[Sequence[Any]], Sequence[Any]]


class Column(Struct, frozen=True):
    """The column of a field and the conversion of its values, where the field's name and type do not determine them."""

    name: str
    load: Convert | None = None


def column_names(row: type[Struct]) -> dict[str, str]:
    """Map field names to column names."""
    hints = get_type_hints(row, include_extras=True)
    return {field: _column(field, hints[field]) for field in row.__struct_fields__}


@cache
def columns(row: type[Struct], dialect: Dialect, table: str | None = None) -> str:
    """Return the list of columns to select for a row type."""
    hints = get_type_hints(row, include_extras=True)
    prefix = f"{table}." if table else ""
    # Drivers decode uuid and jsonb as they, or the caller's settings, please; as text they are the same everywhere.
    casts = {"id": "::text", "json": "::text"} if dialect is Dialect.POSTGRES else {}
    return ", ".join(
        f"{prefix}{_column(field, hints[field])}{casts.get(kind_of(hints[field]), '')}"
        for field in row.__struct_fields__
    )


def mapper(row: type[S], dialect: Dialect) -> Callable[[Sequence[Row]], list[S]]:
    """Return a function from rows to objects. It converts column by column: one pass in C for each instead of one per value."""
    return cast("Callable[[Sequence[Row]], list[S]]", _mapper(row, dialect))


@cache
def _mapper(row: type[S], dialect: Dialect) -> Callable[[Sequence[Row]], list[S]]:
    hints = get_type_hints(row, include_extras=True)
    converts = [_converter(hints[field], dialect) for field in row.__struct_fields__]

    def build(rows: Sequence[Row]) -> list[S]:
        if not rows:
            return []
        by_column = zip(*rows, strict=True)
        converted = [
            convert(values) if convert else values for convert, values in zip(converts, by_column, strict=True)
        ]
        return list(map(row, *converted))

    return build


def kind_of(hint: Any) -> str:
    """Return how values of a type are stored: id, plain, text, time, bool, number, json or secret."""
    if get_origin(hint) is Annotated:
        inner, *markers = get_args(hint)
        return next((marker for marker in markers if isinstance(marker, str)), kind_of(inner))
    if get_origin(hint) in (Union, types.UnionType):
        return kind_of(next(arg for arg in get_args(hint) if arg is not type(None)))
    if get_origin(hint) is Literal:
        return "plain"
    if (get_origin(hint) or hint) is Secret:
        return "secret"
    simple = {str: "text", datetime: "time", bool: "bool", int: "number", float: "number", bytes: "plain"}
    return simple.get(hint, "json")


def _column(field: str, hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return next((marker.name for marker in get_args(hint)[1:] if isinstance(marker, Column)), field)
    return field


def _custom_converter(hint: Any) -> Convert | None:
    markers = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((marker.load for marker in markers if isinstance(marker, Column)), None)


def _converter(hint: Any, dialect: Dialect) -> Convert | None:
    kind = kind_of(hint)
    custom = _custom_converter(hint)
    if custom is not None:
        convert: Convert = custom
    elif kind == "bool" and dialect is Dialect.SQLITE:
        convert = _bools
    elif kind in ("text", "json"):
        convert = _texts if kind == "text" else _jsons
    elif kind == "time":
        convert = _native_times if dialect.native_time else _times
    else:
        return None
    return _skip_nulls(convert) if _optional(hint) else convert


def _optional(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _optional(get_args(hint)[0])
    return type(None) in get_args(hint)


def _skip_nulls(convert: Convert) -> Convert:
    """Convert the values that are not ``None``."""

    def converted(values: Sequence[Any]) -> Sequence[Any]:
        missing = values.count(None)
        if missing == len(values):
            return values
        if not missing:
            return convert(values)
        present = iter(convert([value for value in values if value is not None]))
        return [None if value is None else next(present) for value in values]

    return converted


def _texts(values: Sequence[Any]) -> Sequence[Any]:
    return [value if value.isascii() else text.unescape(value) for value in values]


def _jsons(values: Sequence[Any]) -> Sequence[Any]:
    if values.count("{}") == len(values):  # metadata is empty in most rows
        return [{} for _ in values]
    return text.load_many(values)


def _times(values: Sequence[Any]) -> Sequence[Any]:
    return list(map(datetime_of, values))


def _native_times(values: Sequence[Any]) -> Sequence[Any]:
    return [at if at.tzinfo is UTC else at.astimezone(UTC) for at in values]


def _bools(values: Sequence[Any]) -> Sequence[Any]:
    return list(map(bool, values)) if any(values) else [False] * len(values)


datetime_of = lru_cache(16_384)(from_us)
"""Convert a stored time on SQLite. Cached, because most rows have equal created and updated times and are read more than once."""
