"""Between rows of a database and row types: which columns a type needs, and how a result becomes objects.

A row type is a msgspec Struct; its fields are its columns, in order. The field's type says how a value is mapped:
``datetime``, ``bool`` and JSON (``dict``, ``list``, ``Any``) are converted, ``Id`` and ``Literal`` are taken as they are,
``str`` is unescaped. ``Annotated[str, Column("user_id")]`` names a column other than the field; one with ``load=`` has a way of
its own to write values down.
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
    """The name of a field's column, and how its values come back, where the type does not say so."""

    name: str
    load: Convert | None = None


def column_names(row: type[Struct]) -> dict[str, str]:
    """Field to column."""
    hints = get_type_hints(row, include_extras=True)
    return {field: _column(field, hints[field]) for field in row.__struct_fields__}


@cache
def columns(row: type[Struct], dialect: Dialect, table: str | None = None) -> str:
    """The list of columns to select for a row type."""
    hints = get_type_hints(row, include_extras=True)
    prefix = f"{table}." if table else ""
    # Drivers decode uuid and jsonb as they, or the caller's own settings, please; as text they arrive alike.
    casts = {"id": "::text", "json": "::text"} if dialect is Dialect.POSTGRES else {}
    return ", ".join(
        f"{prefix}{_column(field, hints[field])}{casts.get(kind_of(hints[field]), '')}"
        for field in row.__struct_fields__
    )


def mapper(row: type[S], dialect: Dialect) -> Callable[[Sequence[Row]], list[S]]:
    """A function from rows to objects. It works column by column: one pass in C for each instead of one per value."""
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
    """How values of a type are stored: id, plain, text, time, bool, number, json or secret."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        return next((note for note in notes if isinstance(note, str)), kind_of(inner))
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
        return next((note.name for note in get_args(hint)[1:] if isinstance(note, Column)), field)
    return field


def _own_converter(hint: Any) -> Convert | None:
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note.load for note in notes if isinstance(note, Column)), None)


def _converter(hint: Any, dialect: Dialect) -> Convert | None:
    kind = kind_of(hint)
    own = _own_converter(hint)
    if own is not None:
        convert: Convert = own
    elif kind == "bool" and dialect is Dialect.SQLITE:
        convert = _bools
    elif kind in ("text", "json"):
        convert = _texts if kind == "text" else _jsons
    elif kind == "time":
        convert = _native_times if dialect.native_time else _times
    else:
        return None
    return _around_nulls(convert) if _optional(hint) else convert


def _optional(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _optional(get_args(hint)[0])
    return type(None) in get_args(hint)


def _around_nulls(convert: Convert) -> Convert:
    """Convert the values that are there and leave the others ``None``."""

    def converted(values: Sequence[Any]) -> Sequence[Any]:
        if None not in values:
            return convert(values)
        there = iter(convert([value for value in values if value is not None]))
        return [None if value is None else next(there) for value in values]

    return converted


def _texts(values: Sequence[Any]) -> Sequence[Any]:
    return [value if value.isascii() else text.unescape(value) for value in values]


def _jsons(values: Sequence[Any]) -> Sequence[Any]:
    if values.count("{}") == len(values):  # metadata nobody gave
        return [{} for _ in values]
    return text.load_many(values)


def _times(values: Sequence[Any]) -> Sequence[Any]:
    return list(map(moment, values))


def _native_times(values: Sequence[Any]) -> Sequence[Any]:
    return [at if at.tzinfo is UTC else at.astimezone(UTC) for at in values]


def _bools(values: Sequence[Any]) -> Sequence[Any]:
    return list(map(bool, values)) if any(values) else [False] * len(values)


moment = lru_cache(16_384)(from_us)
"""The moment of a stored time on SQLite. A row is mostly changed when it was made, and read more than once: it is worth keeping
for a while."""
