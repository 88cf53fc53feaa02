"""Named queries: the SQL of a store is in the ``.sql`` file beside it.

A file holds queries, each headed by ``-- name: list`` and a line that says what it is for. Parameters are ``:name``. The text is
portable. Where the engines differ, there are three ways to say so:

* a clause for PostgreSQL only: ``/*pg FOR UPDATE */``
* a list as one parameter: ``id /*in ids uuid*/``, which is JSON text on SQLite and an array on PostgreSQL
* two adjacent variants of a query: ``-- name: append @sqlite`` and ``-- name: append @postgres``

Text that several queries share is a part: ``-- part: ready`` defines it, ``/*part ready*/`` includes it. A part may have variants
too, and a file can include the parts of another (``Queries(..., parts=other)``).
``/*columns Session*/ *`` becomes the columns of that row type. ``/*where*/`` is replaced by a caller's filters, and ``/*index*/``
after a table by the index that SQLite has to use: it keeps no statistics, and would choose a bad one for a list.
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
_SAYS = re.compile(r"^\s*--[^\n]*\n", re.MULTILINE)  # the lines that say what it is for
_IN = re.compile(r"/\*in (\w+) (\w+)\*/")
_PG_CLAUSE = re.compile(r"/\*pg (.*?)\*/", re.DOTALL)
_COLUMNS = re.compile(r"/\*columns (\w+)(?: (\w+))?\*/ \*")
# A parameter, or text in which a colon means nothing: a string, a comment, a cast.
_TOKEN = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|::|:([a-z_][a-z0-9_]*)", re.DOTALL)
_WRITES = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM)\b")
_OPEN = re.compile(r"/\*(?:where|index)\*/")
_MAX_COMPILED = 512
"""Compiled statements kept; the shapes of filters are few, so this is only a bound."""


class Statement:
    """One query in one dialect: its text with numbered placeholders, and how to put arguments in their order."""

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
    """A named query, in every dialect. ``params`` may hold more than the query uses."""

    def __init__(self, name: str, texts: Mapping[Dialect, str]) -> None:
        self.name = name
        self.texts = dict(texts)
        self.writes = any(_WRITES.search(text) for text in texts.values())
        self._plain = {dialect: Statement(text, dialect) for dialect, text in texts.items() if not _OPEN.search(text)}

    def statement(self, dialect: Dialect, where: str = "", index: str = "") -> Statement:
        """The statement for a dialect, with the caller's filters in their place."""
        plain = self._plain.get(dialect)
        if plain is not None:
            return plain
        return _compiled(self.texts[dialect], where, index, dialect)

    async def all(self, connection: Connection, params: Params, where: str = "", index: str = "") -> Sequence[Row]:
        """All rows."""
        statement = self.statement(connection.dialect, where, index)
        return await connection.fetch(statement.sql, statement.bind(params))

    async def one(self, connection: Connection, params: Params, where: str = "") -> Row | None:
        """The first row, or ``None``."""
        statement = self.statement(connection.dialect, where)
        rows = await connection.fetch(statement.sql, statement.bind(params))
        return rows[0] if rows else None

    async def all_of_each(self, connection: Connection, params: Sequence[Params]) -> Sequence[Row]:
        """The rows of one execution per set of parameters; in one round trip, if the connection can pipeline them."""
        if len(params) == 1:
            return await self.all(connection, params[0])
        statement = self.statement(connection.dialect)
        bound = [statement.bind(one) for one in params]
        fetch_many = getattr(connection, "fetch_many", None)
        if fetch_many is not None:
            rows: Sequence[Row] = await fetch_many(statement.sql, bound)
            return rows
        return [row for args in bound for row in await connection.fetch(statement.sql, args)]

    async def many(self, connection: Connection, params: Sequence[Params]) -> None:
        """Run once for each set of parameters."""
        statement = self.statement(connection.dialect)
        await connection.many(statement.sql, [statement.bind(each) for each in params])

    async def many_in_order(
        self, connection: Connection, order: tuple[str, ...], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Run once for each row; each has its values in the order in which the statement first names them, which is ``order``.

        For many rows at once: a dictionary for each takes as long as storing it. Times must be in the form that is stored.
        """
        statement = self.statement(connection.dialect)
        assert statement.names == order
        await connection.many(statement.sql, rows)


class Queries:
    """The queries of one file, as attributes: ``queries.get``. The file is read when the first of them is used.

    ``parts`` are the queries of another file, whose parts this one may include.
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
        """Run every query whose name begins so, in the order of the file."""
        for name, query in self.by_name.items():
            if name.startswith(prefix):
                await query.all(connection, params)

    def __getattr__(self, name: str) -> Query:
        if name not in self.by_name:
            raise AttributeError(name)
        vars(self).update(self.by_name)  # later lookups do not come here
        return self.by_name[name]


def parse(text: str, *rows: type[Struct], parts: str = "") -> dict[str, Query]:
    """The queries in the text of a ``.sql`` file, which may include the parts of another."""
    types = {row.__name__: row for row in rows}
    known: dict[Dialect, dict[str, str]] = {dialect: {} for dialect in Dialect}
    for kind, name, variant, body in (*_headed(parts), *_headed(text)):
        if kind == "part":
            for dialect in _dialects(variant):
                known[dialect][name] = _SAYS.sub("", body).strip()
    texts: dict[str, dict[Dialect, str]] = {}
    for kind, name, variant, body in _headed(text):
        if kind == "part":
            continue
        for dialect in _dialects(variant):
            if missing := {*_PART.findall(body)} - known[dialect].keys():
                raise ValueError(f"the query {name} has parts that are not there: {', '.join(sorted(missing))}")
            variants = texts.setdefault(name, {})
            if dialect in variants:
                raise ValueError(f"the query {name} is there twice for {dialect.value}")
            variants[dialect] = _for_dialect(_with_parts(body, known[dialect]), dialect, types)
    return {name: Query(name, variants) for name, variants in texts.items()}


def _with_parts(body: str, parts: Mapping[str, str]) -> str:
    return _PART.sub(lambda match: parts[match[1]], body)


def _headed(text: str) -> list[tuple[str, str, str, str]]:
    """Kind, name, variant and body of everything in a file."""
    found = _NAME.split(text)[1:]
    return list(zip(found[::4], found[1::4], found[2::4], found[3::4], strict=True))


def _dialects(named: str | None) -> list[Dialect]:
    return [Dialect(named)] if named else list(Dialect)


def _for_dialect(body: str, dialect: Dialect, types: Mapping[str, type[Struct]]) -> str:
    body = _SAYS.sub("", body)
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
    """Parameters to arguments. Times are named ``..._at`` and given in microseconds everywhere above this line."""
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


def unless_usual(values: list[Any], usual: Any) -> list[Any]:
    """A column for ``unnest``, or an empty one if nothing but the usual is in it: that is filled up with NULL, and the statement
    puts what is usual in its place. Each value of an array costs the driver more than the server."""
    return [] if values.count(usual) == len(values) else values
