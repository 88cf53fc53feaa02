"""A closed filter language that gives the same results on both engines.

A filter names a column or a metadata key, an operator and a value::

    sessions.list(where=[column("message_count").ge(10), meta("plan").eq("pro"), meta("tags").contains("vip")])

Operators: ``eq ne lt le gt ge in contains``. Keys are compared literally: dots, quotes, ``$`` and all Unicode characters have no
special meaning. Types matter: ``true`` is not 1, ``"1"`` is not 1, but 1.0 is 1. ``ne`` is "not ``eq``", so it also matches
rows without the key. ``lt le gt ge`` compare numbers with numbers and text with text, by code point (in the stored
form, in which U+0000 and lone surrogates sort last). ``contains`` finds an element of an array or a substring of a text. An
unknown column or operator is an error and is never ignored.

``content.contains({...})`` finds messages by their content blocks: messages with a block that contains the object and, where the
content itself is an object, messages whose content contains it. With a list, every element must be contained in some block. One
value contains another as in PostgreSQL's ``jsonb @> jsonb``:

* an object contains an object if it has all of its keys, each with a value that contains the other's value;
* an array contains an array if each element of the other is contained in one of its own, in any order and any number of times;
* text, numbers, ``true``, ``false`` and ``null`` contain equal values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast, get_args

from msgspec import UNSET, Struct, UnsetType, json

from ..engines.dialect import Dialect
from ..engines.sql_fragments import any_of, document_contains, key_compares, key_contains, key_equals, key_in
from ..errors import InvalidFilter
from ..limits import Limits
from . import text
from .filter_values import column_param, plain_param, scalar_kind, scalar_param, short_repr

Operator = Literal["eq", "ne", "lt", "le", "gt", "ge", "in", "contains"]
_OPERATORS = get_args(Operator)
_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Filter(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One condition: either on a ``column`` or on a ``meta`` key."""

    op: Operator
    value: Any
    column: str | UnsetType = UNSET
    meta: str | UnsetType = UNSET


class _Target:
    """The left side of a filter, with a method for each operator."""

    def __init__(self, **target: str) -> None:
        self._target = target

    def eq(self, value: Any) -> Filter:
        return Filter("eq", value, **self._target)

    def ne(self, value: Any) -> Filter:
        return Filter("ne", value, **self._target)

    def lt(self, value: Any) -> Filter:
        return Filter("lt", value, **self._target)

    def le(self, value: Any) -> Filter:
        return Filter("le", value, **self._target)

    def gt(self, value: Any) -> Filter:
        return Filter("gt", value, **self._target)

    def ge(self, value: Any) -> Filter:
        return Filter("ge", value, **self._target)

    def is_in(self, values: Sequence[Any]) -> Filter:
        # A string is a sequence too, but never meant as one. It is kept as a string and rejected when the filter is compiled.
        return Filter("in", values if isinstance(values, (str, bytes)) else list(values), **self._target)

    def contains(self, value: Any) -> Filter:
        return Filter("contains", value, **self._target)


def column(name: str) -> _Target:
    """Return a column to filter on."""
    return _Target(column=name)


content = column("content")
"""The content of a message; it supports ``contains`` only."""


def meta(key: str) -> _Target:
    """Return a metadata key to filter on."""
    return _Target(meta=key)


class FilterColumns:
    """The columns of one table that filters may use: ``columns`` maps a public name to the SQL column and its kind."""

    def __init__(self, columns: Mapping[str, tuple[str, str]], *, metadata: str | None = None) -> None:
        self._columns = dict(columns)
        self._metadata = metadata

    def compile(self, filters: Sequence[Filter], params: dict[str, Any], dialect: Dialect, limits: Limits) -> str:
        """Return SQL conditions for ``filters``, each preceded by AND, and add their values to ``params``.

        Raises:
            InvalidFilter: a filter is not part of the language.
        """
        filters = filter_list(filters)
        limits.check("filters", len(filters), "filters")
        parts = [self._condition(f, f"filter_{i}", params, dialect, limits) for i, f in enumerate(filters)]
        return "".join(f"\n  AND {part}" for part in parts)

    def _condition(self, f: Filter, name: str, params: dict[str, Any], dialect: Dialect, limits: Limits) -> str:
        if not isinstance(f, Filter) or isinstance(f.column, str) == isinstance(f.meta, str):
            raise InvalidFilter(
                "a filter is made with column(...) or meta(...) and names exactly one of them", field="where"
            )
        if f.op not in _OPERATORS:
            raise InvalidFilter(f"unknown operator {short_repr(f.op)}; operators: {', '.join(_OPERATORS)}", field="op")
        if f.op == "in":
            return self._in(f, name, params, dialect, limits)
        if isinstance(f.column, str):
            return self._column(f, f.column, name, params, dialect, limits)
        if f.op == "ne":
            return f"NOT {self._meta(Filter('eq', f.value, meta=f.meta), name, params, dialect)}"
        return self._meta(f, name, params, dialect)

    def _in(self, f: Filter, name: str, params: dict[str, Any], dialect: Dialect, limits: Limits) -> str:
        """Pass all values as one parameter: engines allow many, but not thousands of conditions in a statement."""
        if not isinstance(f.value, (list, tuple)):
            raise InvalidFilter("'in' takes a list of values", field="value")
        limits.check("filter_values", len(f.value), "values of an 'in' filter")
        if not isinstance(f.column, str):
            return self._in_meta(f, name, params, dialect)
        sql, kind = self._lookup(f.column)
        if kind in ("json", "tags"):
            raise InvalidFilter(_ONLY_CONTAINS.format(f.column, "in"), field=f.column)
        values = [column_param(value, f.column, kind) for value in f.value if value is not None]
        parts = [f"{sql} IS NULL"] if len(values) < len(f.value) else []
        if values:
            name = f"{name}_at" if kind == "time" else name
            # The values are in their stored form already and must not be escaped twice.
            params[name] = json.encode(values).decode() if dialect is Dialect.SQLITE else values
            parts.append(any_of(dialect, sql, name, _cast(kind, Dialect.POSTGRES).removeprefix("::")))
        return f"({' OR '.join(parts)})" if parts else "(1 = 0)"

    def _in_meta(self, f: Filter, name: str, params: dict[str, Any], dialect: Dialect) -> str:
        if self._metadata is None:
            raise InvalidFilter(_NO_METADATA, field="meta")
        for value in f.value:
            scalar_kind(value)
        params[f"{name}_key"] = text.escape(str(f.meta))
        params[name] = text.dump(f.value)
        return f"COALESCE({key_in(dialect, self._metadata, f'{name}_key', name)}, {_false(dialect)})"

    def _lookup(self, public: str) -> tuple[str, str]:
        entry = self._columns.get(public)
        if entry is None:
            raise InvalidFilter(
                f"cannot filter on the column {short_repr(public)}; columns: {', '.join(self._columns)}", field="column"
            )
        return entry

    def _column(
        self, f: Filter, public: str, name: str, params: dict[str, Any], dialect: Dialect, limits: Limits
    ) -> str:
        sql, kind = self._lookup(public)
        if kind == "json":
            return _contained(f, sql, name, params, dialect, limits)
        if kind == "tags":
            return _tagged(f, sql, name, params)
        if f.value is None and f.op in ("eq", "ne"):
            return f"({sql} IS {'NOT ' if f.op == 'ne' else ''}NULL)"
        if kind == "time":
            name = f"{name}_at"  # parameters for times end in _at, see core/queries.py
        params[name] = column_param(f.value, public, kind)
        if f.op in ("eq", "ne"):
            return f"({sql} {'=' if f.op == 'eq' else 'IS DISTINCT FROM'} :{name}{_cast(kind, dialect)})"
        if f.op == "contains":
            if kind != "text":
                raise InvalidFilter(f"'contains' needs a text column, and {public} is not one", field=public)
            inside = f"strpos({sql}, :{name}::text)" if dialect is Dialect.POSTGRES else f"instr({sql}, :{name})"
            return f"({inside} > 0)"
        if kind == "bool":
            raise InvalidFilter(f"{public} is true or false and has no order", field=public)
        return f"({sql} {_SIGNS[f.op]} :{name}{_cast(kind, dialect)})"

    def _meta(self, f: Filter, name: str, params: dict[str, Any], dialect: Dialect) -> str:
        if self._metadata is None:
            raise InvalidFilter(_NO_METADATA, field="meta")
        kind = scalar_kind(f.value)
        params[f"{name}_key"] = text.escape(str(f.meta))
        at = (dialect, self._metadata, f"{name}_key", name)
        if f.op == "eq":
            params[name] = scalar_param(f.value, kind, dialect)
            return f"COALESCE({key_equals(*at, kind)}, {_false(dialect)})"
        if f.op == "contains":
            params[name] = scalar_param(f.value, kind, dialect)
            return f"COALESCE({key_contains(*at, kind)}, {_false(dialect)})"
        if kind not in ("number", "text"):
            raise InvalidFilter(f"{f.op!r} compares numbers or text, not {short_repr(f.value)}", field="value")
        plain = kind == "text" or dialect is Dialect.SQLITE
        params[name] = plain_param(f.value) if plain else scalar_param(f.value, kind, dialect)
        return f"COALESCE({key_compares(*at, kind, _SIGNS[f.op])}, {_false(dialect)})"


_NO_METADATA = "rows of this kind have no metadata to filter on"
_ONLY_CONTAINS = "{} takes 'contains' with an object or a list of objects, not {!r}"


def _contained(f: Filter, sql: str, name: str, params: dict[str, Any], dialect: Dialect, limits: Limits) -> str:
    """Return the SQL condition that a JSON column contains a value."""
    if f.op != "contains" or not isinstance(f.value, (Mapping, list, tuple)):
        actual = f.op if f.op != "contains" else short_repr(f.value)
        raise InvalidFilter(_ONLY_CONTAINS.format(f.column, actual), field=str(f.column))
    _check_parts(f.value, limits)
    if dialect is Dialect.POSTGRES:
        params[name] = text.dump(f.value)
        return document_contains(sql, name, is_object=isinstance(f.value, Mapping))
    return _Contained(name, params).anywhere(sql, f.value)


def _tagged(f: Filter, sql: str, name: str, params: dict[str, Any]) -> str:
    if f.op != "contains" or not isinstance(f.value, str):
        raise InvalidFilter(
            f"{f.column} takes 'contains' with one text, not {f.op!r} with {short_repr(f.value)}", field=str(f.column)
        )
    params[name] = text.escape(f.value)
    return f"({sql} = :{name}))"


def _check_parts(value: Any, limits: Limits) -> None:
    """Reject a ``contains`` value that has too many parts, or a part that the engines compare differently."""
    count, pending = 0, [(value, 1)]
    while pending:
        part, depth = pending.pop()
        count += 1
        limits.check("filter_parts", count, "parts of a 'contains' filter")
        if isinstance(part, (Mapping, list, tuple)):
            limits.check("filter_depth", depth, "levels of a 'contains' filter")
            items = part.values() if isinstance(part, Mapping) else part
            pending += [(item, depth + 1) for item in items]
            if isinstance(part, Mapping) and not all(isinstance(key, str) for key in part):
                raise InvalidFilter("the keys of an object in a 'contains' filter must be text", field="value")
        else:
            scalar_kind(part)


class _Contained:
    """``@>`` on SQLite: a subquery for each part of the value. Values and keys are parameters."""

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        self._name, self._params, self._number = name, params, 0

    def anywhere(self, document: str, value: Any) -> str:
        """Return the condition that the document contains the value or, if the value is an object, has an element that does."""
        whole = self._within(document, value, f"json_type({document})")
        if not isinstance(value, Mapping):
            return whole
        return f"({whole} OR {self._within(document, [value], f'json_type({document})')})"

    def _within(self, document: str, value: Any, type_: str) -> str:
        """Return the condition that a JSON text of a type contains an object or an array."""
        kind = "object" if isinstance(value, Mapping) else "array"
        entries = [*value.items()] if isinstance(value, Mapping) else [(None, item) for item in value]
        # The type is checked first: json_each treats a scalar as an array of one.
        parts = [self._entry(f"CASE {type_} WHEN '{kind}' THEN {document} ELSE '[]' END", *entry) for entry in entries]
        return "(" + " AND ".join([f"{type_} = '{kind}'", *parts]) + ")"

    def _entry(self, document: str, key: str | None, value: Any) -> str:
        self._number += 1
        entry = f"part_{self._number}"
        named = "" if key is None else f"{entry}.key = :{self._param(text.escape(str.__str__(key)))} AND "
        return f"EXISTS (SELECT 1 FROM json_each({document}) AS {entry} WHERE {named}{self._matches(entry, value)})"

    def _matches(self, entry: str, value: Any) -> str:
        if isinstance(value, (Mapping, list, tuple)):
            return self._within(f"{entry}.value", value, f"{entry}.type")
        kind = scalar_kind(value)
        if kind in ("true", "false", "null"):
            return f"{entry}.type = '{kind}'"
        types = "('text')" if kind == "text" else "('integer', 'real')"
        return f"{entry}.type IN {types} AND {entry}.atom = :{self._param(plain_param(value))}"

    def _param(self, value: Any) -> str:
        self._number += 1
        name = f"{self._name}_{self._number}"
        self._params[name] = value
        return name


def filter_list(filters: Any) -> Sequence[Filter]:
    """Return filters that were passed as a list.

    Raises:
        InvalidFilter: the value is not a list.
    """
    if isinstance(filters, str) or not isinstance(filters, Sequence):
        raise InvalidFilter("filters must be a list", field="where")
    return cast("Sequence[Filter]", filters)


def equal_metadata(metadata: Mapping[str, Any] | None) -> list[Filter]:
    """Return the filters for a plain dictionary: each key equal to its value."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidFilter("metadata to filter by must be a dictionary", field="metadata")
    return [meta(key).eq(value) for key, value in (metadata or {}).items()]


def id_list(ids: Sequence[str], dialect: Dialect) -> Any:
    """Return ids in their stored form as the one parameter that ``sql_fragments.any_of`` takes."""
    return json.encode(list(ids)).decode() if dialect is Dialect.SQLITE else list(ids)


def _cast(kind: str, dialect: Dialect) -> str:
    if dialect is Dialect.SQLITE:
        return ""
    return {"time": "::timestamptz", "number": "::bigint", "bool": "::boolean", "id": "::uuid", "text": "::text"}[kind]


def _false(dialect: Dialect) -> str:
    return "0" if dialect is Dialect.SQLITE else "FALSE"


__all__ = [
    "Filter",
    "FilterColumns",
    "Operator",
    "any_of",
    "column",
    "content",
    "equal_metadata",
    "filter_list",
    "id_list",
    "meta",
]
