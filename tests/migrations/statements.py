"""Every statement that a store can send, found by reflection, so that new stores are included."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, NamedTuple

import holdfast.core
import holdfast.stores
from holdfast.core.filters import Filter, FilterColumns
from holdfast.core.grants import AsyncGrants
from holdfast.core.queries import Queries, Query
from holdfast.core.records import AsyncRecords
from holdfast.core.records.statements import search_condition
from holdfast.core.tables import TypedTable
from holdfast.engines.dialect import Dialect
from holdfast.errors import InvalidFilter
from holdfast.limits import Limits
from holdfast.stores.lifecycle import purge_statements

_VALUES: Sequence[Any] = (
    "text", 7, 1.5, True, None, datetime(2026, 1, 1, tzinfo=UTC), "01890000-0000-7000-8000-000000000001"
)  # fmt: skip


class Named(NamedTuple):
    """A statement with the name of its query and, if the caller supplies them, the filters."""

    name: str
    text: str
    """With ``:name`` parameters."""
    sql: str
    """With the parameters of its dialect."""
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def modules() -> list[ModuleType]:
    """Yield every module of the stores and of the code they share."""
    packages = (holdfast.core, holdfast.stores)
    actual = [item for package in packages for item in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [importlib.import_module(item.name) for item in actual]


def all_statements(dialect: Dialect) -> list[Named]:
    """Return every statement of a dialect."""
    result = {(item.name, item.sql): item for module in modules() for item in _of_module(module, dialect)}
    purges = [*purge_statements.bounded(), *purge_statements.unbounded(), purge_statements.anything()]
    return [*result.values(), *(_named(f"lifecycle.{query.name}", query, dialect, "") for query in purges)]


def _of_module(module: ModuleType, dialect: Dialect) -> Iterator[Named]:
    filters = [value for value in vars(module).values() if isinstance(value, FilterColumns)]
    for value in vars(module).values():
        if isinstance(value, Queries):
            for query in value.by_name.values():
                yield from _of_query(query, dialect, filters, module.__name__)
        elif isinstance(value, TypedTable):
            yield from of_table(value, dialect, module.__name__)
        elif isinstance(value, type) and issubclass(value, AsyncRecords) and value.__module__ == module.__name__:
            yield from of_records(value, dialect)
        elif isinstance(value, type) and issubclass(value, AsyncGrants):
            for table in vars(value).get("grants", ()):
                yield from of_table(table, dialect, module.__name__)


def of_table(table: TypedTable[Any], dialect: Dialect, where: str) -> Iterator[Named]:
    """Return the statements that a shape generates for a table."""
    for query in table.by_name.values():
        yield from _of_query(query, dialect, [table.filters], f"{where}.{table.name}")


def _of_query(query: Query, dialect: Dialect, filters: Sequence[FilterColumns], where: str) -> Iterator[Named]:
    text = query.texts.get(dialect)
    if text is None:
        return
    name = f"{where.removeprefix('holdfast.stores.')}.{query.name}"
    yield _named(name, query, dialect, "")
    if "/*where*/" in text:
        for item in filters:
            for label, clause in clauses(item, dialect):
                yield _named(f"{name} where {label}", query, dialect, clause)


def _named(name: str, query: Query, dialect: Dialect, clause: str) -> Named:
    statement = query.statement(dialect, clause)
    text = query.texts[dialect].replace("/*where*/", clause).replace("/*index*/", "").strip()
    return Named(name, text, statement.sql, statement.names)


def clauses(filters: FilterColumns, dialect: Dialect) -> Iterator[tuple[str, str]]:
    """Return the conditions on every column and on a metadata key, with every operator and kind of value."""
    for column in [*filters._columns, None]:
        for op in ("eq", "ne", "lt", "ge", "in", "contains"):
            for value in _VALUES:
                expected = Filter(op, [value, value] if op == "in" else value, **_target(column))
                try:
                    yield f"{column or 'metadata'} {op} {value!r}", filters.compile([expected], {}, dialect, Limits())
                except InvalidFilter:
                    continue  # not part of the language


def _target(column: str | None) -> Mapping[str, Any]:
    return {"meta": "key"} if column is None else {"column": column}


def of_records(store: type[AsyncRecords[Any, Any, Any]], dialect: Dialect) -> Iterator[Named]:
    """Return the statements generated from the declaration of a record store."""
    if not hasattr(store, "queries"):
        return  # a base of stores
    for query in store.queries.by_name.values():
        yield from _of_query(query, dialect, [store.filters], store.table)
        if "/*where*/" in query.texts[dialect] and store.declared.searchable:
            yield _named(
                f"{store.table}.{query.name}, searched",
                query,
                dialect,
                search_condition(dialect, store.declared.searchable),
            )


_TABLE = re.compile(r"\bINTO\s+([a-z_]+)|\b(?:FROM|JOIN|UPDATE)\s+(?:ONLY\s+)?([a-z_]+)\b(?!\s*\()", re.IGNORECASE)
_CTE = re.compile(r"\b(?:WITH|,)\s*(?:RECURSIVE\s+)?([a-z_]+)\s+AS\s*(?:NOT\s+)?(?:MATERIALIZED\s*)?\(", re.IGNORECASE)


def tables_in(text: str) -> set[str]:
    """Return the tables that a statement names."""
    text = re.sub(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"\b(?:DISTINCT FROM|DO UPDATE|FOR UPDATE|EXTRACT\s*\([^)]*\))", "", text, flags=re.IGNORECASE)
    return {first or second for first, second in _TABLE.findall(text)} - set(_CTE.findall(text))
