"""SQL conditions that differ between the two dialects, one function for each."""

from __future__ import annotations

from .dialect import Dialect


def any_of(dialect: Dialect, column: str, param: str, type_: str = "text") -> str:
    """Return the condition that ``column`` is one of the values in ``param`` (a JSON array on SQLite, an array on PostgreSQL)."""
    if dialect is Dialect.SQLITE:
        return f"{column} IN (SELECT value FROM json_each(:{param}))"
    return f"{column} = ANY(:{param}::{type_}[])"


def document_contains(document: str, value: str, *, is_object: bool) -> str:
    """Return the condition that a JSON document contains ``value`` or, if that is an object, is an array with such an element.

    PostgreSQL only: on SQLite the condition depends on the value (``core/filters.py``).
    """
    operand = f":{value}::text::jsonb"
    in_array = f" OR {document} @> jsonb_build_array({operand})" if is_object else ""
    return f"({document} @> {operand}{in_array})"


def key_equals(dialect: Dialect, document: str, key: str, value: str, kind: str) -> str:
    """Return the condition that the JSON object ``document`` has, under ``key``, a scalar equal to ``value``.

    The key is compared and never interpreted as a path, as SQLite's ``->>`` does with ``a.b`` and ``$``. The type is
    compared too, because SQLite treats true as 1.
    """
    if dialect is Dialect.POSTGRES:
        return f"{document} -> :{key}::text = :{value}::text::jsonb"
    return _sqlite_entry(document, key, _sqlite_scalar("entry", value, kind))


def key_in(dialect: Dialect, document: str, key: str, values: str) -> str:
    """Return the condition that the JSON object has, under ``key``, a scalar equal to one in the JSON array ``values``."""
    if dialect is Dialect.POSTGRES:
        elements = f"jsonb_array_elements(:{values}::text::jsonb) AS wanted"
        return f"EXISTS (SELECT 1 FROM {elements} WHERE wanted = {document} -> :{key}::text)"
    numbers = "entry.type IN ('integer', 'real') AND wanted.type IN ('integer', 'real')"
    same = f"(entry.type = wanted.type OR ({numbers})) AND entry.atom IS wanted.atom"
    return _sqlite_entry(document, key, f"EXISTS (SELECT 1 FROM json_each(:{values}) AS wanted WHERE {same})")


def key_compares(dialect: Dialect, document: str, key: str, value: str, kind: str, sign: str) -> str:
    """Return the condition that the JSON object has, under ``key``, a number or string for which ``sign value`` holds."""
    if dialect is Dialect.SQLITE:
        types = "('text')" if kind == "text" else "('integer', 'real')"
        return _sqlite_entry(document, key, f"entry.type IN {types} AND entry.atom {sign} :{value}")
    entry = f"{document} -> :{key}::text"
    if kind == "text":
        # Text is compared by code point, as on SQLite; the database's own collation would sort by language.
        comparison = f'({document} ->> :{key}::text) COLLATE "C" {sign} :{value}::text'
        return f"(jsonb_typeof({entry}) = 'string' AND {comparison})"
    return f"(jsonb_typeof({entry}) = 'number' AND {entry} {sign} :{value}::text::jsonb)"


def key_contains(dialect: Dialect, document: str, key: str, value: str, kind: str) -> str:
    """Return the condition that the JSON object has, under ``key``, an array with an element equal to ``value``, or a string
    that contains it."""
    if dialect is Dialect.SQLITE:
        items = "json_each(CASE entry.type WHEN 'array' THEN entry.value ELSE '[]' END) AS item"
        in_array = f"EXISTS (SELECT 1 FROM {items} WHERE {_sqlite_scalar('item', value, kind)})"
        in_text = f" OR (entry.type = 'text' AND instr(entry.atom, :{value}) > 0)" if kind == "text" else ""
        return _sqlite_entry(document, key, f"({in_array}{in_text})")
    entry = f"{document} -> :{key}::text"
    array = f"CASE jsonb_typeof({entry}) WHEN 'array' THEN {entry} ELSE '[]' END"
    in_array = f"EXISTS (SELECT 1 FROM jsonb_array_elements({array}) AS item WHERE item = :{value}::text::jsonb)"
    if kind != "text":
        return in_array
    # The value is sent as a JSON string; #>> extracts its text.
    needle = f"(:{value}::text::jsonb #>> '{{}}')"
    return f"({in_array} OR (jsonb_typeof({entry}) = 'string' AND strpos({document} ->> :{key}::text, {needle}) > 0))"


def _sqlite_entry(document: str, key: str, condition: str) -> str:
    return f"EXISTS (SELECT 1 FROM json_each({document}) AS entry WHERE entry.key = :{key} AND {condition})"


def _sqlite_scalar(entry: str, value: str, kind: str) -> str:
    """Return the condition that an entry of ``json_each`` equals the value, including its type."""
    if kind in ("true", "false", "null"):
        return f"{entry}.type = :{value}"
    types = "('text')" if kind == "text" else "('integer', 'real')"
    return f"{entry}.type IN {types} AND {entry}.atom = :{value}"
