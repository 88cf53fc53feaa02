"""Named queries: the SQL of a store is in the ``.sql`` file beside it.

A file holds queries. Each starts with ``-- name: list`` and may have a comment on its purpose. Parameters are ``:name``.
The SQL is portable. Where the engines differ, there are three forms:

* a clause for PostgreSQL only: ``/*pg FOR UPDATE */``
* a list as one parameter: ``id /*in ids uuid*/``, which is JSON text on SQLite and an array on PostgreSQL
* two adjacent variants of a query: ``-- name: append @sqlite`` and ``-- name: append @postgres``

Text that several queries share is a part: ``-- part: ready`` defines it, ``/*part ready*/`` includes it. A part may
have variants too, and a file can include the parts of another (``Queries(..., parts=other)``). Conditions that many
queries need, and that differ between the engines, are functions in ``engines/sql_fragments.py``. Every value and every
key is a parameter. A parameter whose name ends in ``_at`` is a time in microseconds.

``/*columns Session*/ *`` expands to the columns of that row type. ``/*where*/`` is replaced by a caller's filters, and
``/*index*/`` after a table by the index that SQLite must use: it has no statistics, and would choose a bad index for a
list.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any

from msgspec import Struct

from ..clock import from_us
from ..engines.dialect import Dialect
from ..engines.protocol import Connection, Row
from .rows import columns

Params = Mapping[str, Any]

_NAME = re.compile(r"^-- (name|part): (\w+)(?: @(sqlite|postgres))?\n", re.MULTILINE)
_PART = re.compile(r"/\*part (\w+)\*/")
_COMMENT = re.compile(r"^\s*--[^\n]*\n", re.MULTILINE)
_IN = re.compile(r"/\*in (\w+) (\w+)\*/")
_PG_CLAUSE = re.compile(r"/\*pg (.*?)\*/", re.DOTALL)
_COLUMNS = re.compile(r"/\*columns (\w+)(?: (\w+))?\*/ \*")
# A parameter, or text in which a colon has no meaning: a string, a comment, a cast.
_TOKEN = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|::|:([a-z_][a-z0-9_]*)", re.DOTALL)
_WRITES = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM)\b")
_OPEN = re.compile(r"/\*(?:where|index)\*/")
_MAX_COMPILED = 512
"""The number of compiled statements to cache; filters have few shapes, so this is only an upper bound."""


class Statement:
    """One query in one dialect: its text with numbered placeholders, and a function that orders its arguments."""

    __slots__ = ("bind", "names", "sql")

    def __init__(self, sql: str, dialect: Dialect) -> None:
        names: list[str] = []

        def number(match: re.Match[str]) -> str:
            name = match.group(1)
            if name is None:
                return match.group()
            if name not in names:
                names.append(name)
            return f"{dialect.placeholder}{names.index(name) + 1}"

        self.sql = _TOKEN.sub(number, sql).strip().rstrip(";")
        self.names = tuple(names)
        self.bind = _binder(self.names, dialect)


class Query:
    """A named query in every dialect. ``params`` may contain more than the query uses."""

    def __init__(self, name: str, texts: Mapping[Dialect, str]) -> None:
        self.name = name
        self.texts = dict(texts)
        self.writes = any(_WRITES.search(text) for text in texts.values())
        self._static = {dialect: Statement(text, dialect) for dialect, text in texts.items() if not _OPEN.search(text)}

    def statement(self, dialect: Dialect, where: str = "", index: str = "") -> Statement:
        """Return the statement for a dialect, with the caller's filters inserted."""
        static = self._static.get(dialect)
        if static is not None:
            return static
        return _compiled(self.texts[dialect], where, index, dialect)

    async def all(self, connection: Connection, params: Params, where: str = "", index: str = "") -> Sequence[Row]:
        """Return all rows."""
        statement = self.statement(connection.dialect, where, index)
        return await connection.fetch(statement.sql, statement.bind(params))

    async def one(self, connection: Connection, params: Params, where: str = "") -> Row | None:
        """Return the first row, or ``None``."""
        statement = self.statement(connection.dialect, where)
        rows = await connection.fetch(statement.sql, statement.bind(params))
        return rows[0] if rows else None

    async def all_of_each(self, connection: Connection, params: Sequence[Params]) -> Sequence[Row]:
        """Run the query once per set of parameters and return all rows; in one round trip, if the connection can pipeline."""
        if len(params) == 1:
            return await self.all(connection, params[0])
        statement = self.statement(connection.dialect)
        bound = [statement.bind(values) for values in params]
        fetch_many = getattr(connection, "fetch_many", None)
        if fetch_many is not None:
            rows: Sequence[Row] = await fetch_many(statement.sql, bound)
            return rows
        return [row for args in bound for row in await connection.fetch(statement.sql, args)]

    async def many(self, connection: Connection, params: Sequence[Params]) -> None:
        """Run the query once for each set of parameters."""
        statement = self.statement(connection.dialect)
        await connection.many(statement.sql, [statement.bind(values) for values in params])

    async def many_in_order(
        self, connection: Connection, order: tuple[str, ...], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Run the query once for each row; ``order`` names its values, in the order in which the statement uses them.

        For many rows: building a dictionary for each takes as long as storing it. Times must be in their stored form.
        """
        statement = self.statement(connection.dialect)
        assert statement.names == order
        await connection.many(statement.sql, rows)


class Queries:
    """The queries of one file, as attributes: ``queries.get``. The file is read when the first query is used.

    ``parts`` are the queries of another file, whose parts this file may include.
    """

    def __init__(self, package: str, file: str, *rows: type[Struct], parts: Queries | None = None) -> None:
        self._source = (package, file, rows, parts)

    @cached_property
    def text(self) -> str:
        data = pkgutil.get_data(*self._source[:2])
        assert data is not None
        return data.decode()

    @cached_property
    def by_name(self) -> dict[str, Query]:
        _, _, rows, parts = self._source
        return parse(self.text, *rows, parts="" if parts is None else parts.text)

    async def run_all(self, prefix: str, connection: Connection, params: Params) -> None:
        """Run every query whose name has this prefix, in the order of the file."""
        for name, query in self.by_name.items():
            if name.startswith(prefix):
                await query.all(connection, params)

    def __getattr__(self, name: str) -> Query:
        if name not in self.by_name:
            raise AttributeError(name)
        vars(self).update(self.by_name)  # later lookups bypass __getattr__
        return self.by_name[name]


def parse(text: str, *rows: type[Struct], parts: str = "") -> dict[str, Query]:
    """Return the queries in the text of a ``.sql`` file; ``parts`` is the text of a file whose parts it may include."""
    types = {row.__name__: row for row in rows}
    parts_of: dict[Dialect, dict[str, str]] = {dialect: {} for dialect in Dialect}
    for kind, name, variant, body in (*_sections(parts), *_sections(text)):
        if kind == "part":
            for dialect in _dialects(variant):
                parts_of[dialect][name] = _COMMENT.sub("", body).strip()
    texts: dict[str, dict[Dialect, str]] = {}
    for kind, name, variant, body in _sections(text):
        if kind == "part":
            continue
        for dialect in _dialects(variant):
            if missing := {*_PART.findall(body)} - parts_of[dialect].keys():
                raise ValueError(f"the query {name} includes unknown parts: {', '.join(sorted(missing))}")
            variants = texts.setdefault(name, {})
            if dialect in variants:
                raise ValueError(f"the query {name} is defined twice for {dialect.value}")
            variants[dialect] = _for_dialect(_expand_parts(body, parts_of[dialect]), dialect, types)
    return {name: Query(name, variants) for name, variants in texts.items()}


def _expand_parts(body: str, parts: Mapping[str, str]) -> str:
    return _PART.sub(lambda match: parts[match[1]], body)


def _sections(text: str) -> list[tuple[str, str, str, str]]:
    """Return kind, name, variant and body of every section of a file."""
    fields = _NAME.split(text)[1:]
    return list(zip(fields[::4], fields[1::4], fields[2::4], fields[3::4], strict=True))


def _dialects(variant: str | None) -> list[Dialect]:
    return [Dialect(variant)] if variant else list(Dialect)


def _for_dialect(body: str, dialect: Dialect, types: Mapping[str, type[Struct]]) -> str:
    body = _COMMENT.sub("", body)
    clause: Callable[[re.Match[str]], str] = lambda match: match[1] if dialect is Dialect.POSTGRES else ""  # noqa: E731
    body = _PG_CLAUSE.sub(clause, body)
    body = _IN.sub(
        r"= ANY(:\1::\2[])" if dialect is Dialect.POSTGRES else r"IN (SELECT value FROM json_each(:\1))", body
    )
    return _COLUMNS.sub(lambda match: columns(types[match[1]], dialect, match[2]), body)


@lru_cache(_MAX_COMPILED)
def _compiled(text: str, where: str, index: str, dialect: Dialect) -> Statement:
    hint = f" INDEXED BY {index}" if index and dialect is Dialect.SQLITE else ""
    return Statement(text.replace("/*where*/", where).replace("/*index*/", hint), dialect)


def _binder(names: tuple[str, ...], dialect: Dialect) -> Callable[[Params], Sequence[Any]]:
    """Return a function from parameters to arguments. Times have names in ``..._at`` and are microseconds above this layer."""
    times = tuple(i for i, name in enumerate(names) if name.endswith("_at")) if dialect.native_time else ()
    pick = _picker(names)
    if not times:
        return pick

    def bind(params: Params) -> Sequence[Any]:
        values = list(pick(params))
        for i in times:
            value = values[i]
            if value is not None:
                values[i] = [from_us(us) for us in value] if isinstance(value, list) else from_us(value)
        return values

    return bind


def _picker(names: tuple[str, ...]) -> Callable[[Params], Sequence[Any]]:
    if not names:
        return lambda params: ()
    if len(names) == 1:
        return lambda params: (params[names[0]],)
    return itemgetter(*names)


def omit_default(values: list[Any], default: Any) -> list[Any]:
    """Return an empty column for ``unnest`` if all values are the default: the server fills it with NULL, and the statement
    replaces NULL by the default. Encoding an array element costs the driver more than it costs the server."""
    return [] if values.count(default) == len(values) else values
