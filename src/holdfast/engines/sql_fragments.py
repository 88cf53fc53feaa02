"""The dialect gaps that recur, one function each, both engines side by side."""

from __future__ import annotations

from .dialect import Dialect


def any_of(dialect: Dialect, column: str, param: str, type_: str = "text") -> str:
    """``column`` is one of the values in ``param`` (a JSON array on SQLite, an array on PostgreSQL)."""
    if dialect is Dialect.SQLITE:
        return f"{column} IN (SELECT value FROM json_each(:{param}))"
    return f"{column} = ANY(:{param}::{type_}[])"


def document_contains(document: str, value: str, *, is_object: bool) -> str:
    """The JSON document contains ``value`` or, if that is an object, is an array with an element that contains it. PostgreSQL
    only: on SQLite the condition follows from the value (``core/filters.py``)."""
    wanted = f":{value}::text::jsonb"
    inside = f" OR {document} @> jsonb_build_array({wanted})" if is_object else ""
    return f"({document} @> {wanted}{inside})"


def key_equals(dialect: Dialect, document: str, key: str, value: str, kind: str) -> str:
    """The JSON object ``document`` has, under ``key``, a scalar equal to ``value``.

    The key is compared, never read as a path: SQLite's ``->>`` takes ``a.b`` and ``$`` for paths. The type is
    compared too, because SQLite takes true for 1.
    """
    if dialect is Dialect.POSTGRES:
        return f"{document} -> :{key}::text = :{value}::text::jsonb"
    return _sqlite_entry(document, key, _sqlite_scalar("entry", value, kind))


def key_in(dialect: Dialect, document: str, key: str, values: str) -> str:
    """The JSON object has, under ``key``, a scalar equal to one in the JSON array ``values``."""
    if dialect is Dialect.POSTGRES:
        wanted = f"jsonb_array_elements(:{values}::text::jsonb) AS wanted"
        return f"EXISTS (SELECT 1 FROM {wanted} WHERE wanted = {document} -> :{key}::text)"
    numbers = "entry.type IN ('integer', 'real') AND wanted.type IN ('integer', 'real')"
    same = f"(entry.type = wanted.type OR ({numbers})) AND entry.atom IS wanted.atom"
    return _sqlite_entry(document, key, f"EXISTS (SELECT 1 FROM json_each(:{values}) AS wanted WHERE {same})")


def key_compares(dialect: Dialect, document: str, key: str, value: str, kind: str, sign: str) -> str:
    """The JSON object has, under ``key``, a number or a string that compares so with ``value``."""
    if dialect is Dialect.SQLITE:
        types = "('text')" if kind == "text" else "('integer', 'real')"
        return _sqlite_entry(document, key, f"entry.type IN {types} AND entry.atom {sign} :{value}")
    found = f"{document} -> :{key}::text"
    if kind == "text":
        # Text goes by code point, as on SQLite; the database's own collation would sort by language.
        compared = f'({document} ->> :{key}::text) COLLATE "C" {sign} :{value}::text'
        return f"(jsonb_typeof({found}) = 'string' AND {compared})"
    return f"(jsonb_typeof({found}) = 'number' AND {found} {sign} :{value}::text::jsonb)"


def key_contains(dialect: Dialect, document: str, key: str, value: str, kind: str) -> str:
    """The JSON object has, under ``key``, an array with an element equal to ``value``, or a string containing it."""
    if dialect is Dialect.SQLITE:
        items = "json_each(CASE entry.type WHEN 'array' THEN entry.value ELSE '[]' END) AS item"
        found = f"EXISTS (SELECT 1 FROM {items} WHERE {_sqlite_scalar('item', value, kind)})"
        inside = f" OR (entry.type = 'text' AND instr(entry.atom, :{value}) > 0)" if kind == "text" else ""
        return _sqlite_entry(document, key, f"({found}{inside})")
    at = f"{document} -> :{key}::text"
    array = f"CASE jsonb_typeof({at}) WHEN 'array' THEN {at} ELSE '[]' END"
    found = f"EXISTS (SELECT 1 FROM jsonb_array_elements({array}) AS item WHERE item = :{value}::text::jsonb)"
    if kind != "text":
        return found
    # The value arrives as a JSON string; taking it apart again yields the text to look for.
    needle = f"(:{value}::text::jsonb #>> '{{}}')"
    return f"({found} OR (jsonb_typeof({at}) = 'string' AND strpos({document} ->> :{key}::text, {needle}) > 0))"


def _sqlite_entry(document: str, key: str, condition: str) -> str:
    return f"EXISTS (SELECT 1 FROM json_each({document}) AS entry WHERE entry.key = :{key} AND {condition})"


def _sqlite_scalar(entry: str, value: str, kind: str) -> str:
    """An entry of ``json_each`` equals the value, in type as well."""
    if kind in ("true", "false", "null"):
        return f"{entry}.type = :{value}"
    types = "('text')" if kind == "text" else "('integer', 'real')"
    return f"{entry}.type IN {types} AND {entry}.atom = :{value}"
