"""Plain records: create, get, list, update, upsert and delete, built from a row type.

Configuration (tenants, providers, tools, channels, keys ...) needs no forty hand-written queries. A ``Records`` is given the
table, the row type, what identifies a record and what may be edited, and writes the SQL itself, once, from names that are in
the source. Values always travel as parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from ..engines.dialect import Dialect
from ..engines.protocol import Connection
from ..errors import AlreadyExists, InvalidInput, LimitExceeded, NotFound
from ..limits import Limits
from .paging import Page, decode_cursor, encode_cursor, rows_to_read
from .queries import Query
from .rows import column_names, columns, mapper
from .text import escape, unescape

R = TypeVar("R", bound=Struct)


class Records(Generic[R]):
    """The records of one table.

    Args:
        table: its name.
        row: the type of its rows; fields are columns.
        key: the fields that identify a record; the first ones are the scope, the last one the name.
        editable: the fields that ``update`` may change.
        soft_delete: the time column that marks a record as deleted, if deletion can be undone. The key is then unique among
            those that are not deleted: the table has a unique index on it ``WHERE`` that column ``IS NULL``.
    """

    def __init__(
        self, table: str, row: type[R], *, key: Sequence[str], editable: Sequence[str], soft_delete: str | None = None
    ) -> None:
        self._table, self._row = table, row
        self._columns = column_names(row)
        self._key, self._editable, self._soft_delete = tuple(key), frozenset(editable), soft_delete
        self._queries: dict[tuple[str, ...], Query] = {}

    async def create(self, connection: Connection, values: Mapping[str, Any]) -> R:
        """A new record.

        Raises:
            AlreadyExists: there is one by that name.
        """
        fields = tuple(values)
        query = self._query(
            "create",
            fields,
            lambda dialect: f"{self._insert(fields)}\nON CONFLICT DO NOTHING {self._returning(dialect)}",
        )
        row = await query.one(connection, self._params(values))
        if row is None:
            raise AlreadyExists(f"{self._table}: there is already {self._name(values)}")
        return self._one(connection, row)

    async def upsert(self, connection: Connection, values: Mapping[str, Any]) -> R:
        """The record by that name, made or changed to these values; what makes it what it is stays."""
        fields = tuple(values)
        changed = [field for field in fields if field in self._editable or field == "updated_at"]
        # With nothing to change, the name is set to itself, because only a row that is changed is returned.
        sets = ", ".join(
            f"{self._columns[field]} = excluded.{self._columns[field]}" for field in changed or self._key[-1:]
        )
        taken = f"({self._key_columns()})" + (f" WHERE {self._soft_delete} IS NULL" if self._soft_delete else "")
        query = self._query(
            "upsert",
            fields,
            lambda dialect: (
                f"{self._insert(fields)}\nON CONFLICT {taken} DO UPDATE SET {sets} {self._returning(dialect)}"
            ),
        )
        row = await query.one(connection, self._params(values))
        assert row is not None
        return self._one(connection, row)

    async def find(self, connection: Connection, key: Mapping[str, Any]) -> R | None:
        """The record by that name, or ``None``."""
        query = self._query(
            "find",
            (),
            lambda dialect: (
                f"SELECT {columns(self._row, dialect)} FROM {self._table} WHERE {self._by_key()}{self._live()}"
            ),
        )
        row = await query.one(connection, self._params(key))
        return None if row is None else self._one(connection, row)

    async def get(self, connection: Connection, key: Mapping[str, Any]) -> R:
        """The record by that name.

        Raises:
            NotFound: there is none.
        """
        found = await self.find(connection, key)
        if found is None:
            raise self._missing(key)
        return found

    async def list(
        self,
        connection: Connection,
        scope: Mapping[str, Any],
        limits: Limits,
        *,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[R]:
        """Records by name. With ``limit``, a page."""
        *leading, name = self._key
        (after,) = decode_cursor(cursor, self._table, str) if cursor is not None else ("",)
        params = {**self._params(scope), "after": escape(after), "limit": rows_to_read(limit, limits)}
        within = "".join(f"{self._columns[field]} = :{field} AND " for field in leading)
        column = self._columns[name]
        query = self._query(
            "list",
            (),
            lambda dialect: (
                f"SELECT {columns(self._row, dialect)} FROM {self._table} WHERE {within}{column} > :after{self._live()} "
                f"ORDER BY {column} LIMIT :limit"
            ),
        )
        rows = mapper(self._row, connection.dialect)(await query.all(connection, params))
        return self._page(rows, limit, limits.list_rows, name)

    async def update(self, connection: Connection, key: Mapping[str, Any], changes: Mapping[str, Any]) -> R:
        """Change these fields of a record.

        Raises:
            InvalidInput: a field may not be changed.
            NotFound: there is no such record.
        """
        fixed = [field for field in changes if field not in self._editable and field != "updated_at"]
        if fixed:
            raise InvalidInput(
                f"{self._table}: {', '.join(fixed)} cannot be changed; {', '.join(sorted(self._editable))} can"
            )
        fields = tuple(changes)
        sets = ", ".join(f"{self._columns[field]} = :{field}" for field in fields)
        query = self._query(
            "update",
            fields,
            lambda dialect: (
                f"UPDATE {self._table} SET {sets} WHERE {self._by_key()}{self._live()} {self._returning(dialect)}"
            ),
        )
        row = await query.one(connection, self._params({**key, **changes}))
        if row is None:
            raise self._missing(key)
        return self._one(connection, row)

    async def delete(self, connection: Connection, key: Mapping[str, Any], *, now_us: int) -> None:
        """Remove a record, or mark it deleted where that can be undone.

        Raises:
            NotFound: there is none.
        """
        if self._soft_delete:
            text = f"UPDATE {self._table} SET {self._soft_delete} = :now_at WHERE {self._by_key()}{self._live()} RETURNING 1"
        else:
            text = f"DELETE FROM {self._table} WHERE {self._by_key()} RETURNING 1"
        query = self._query("delete", (), lambda dialect: text)
        if await query.one(connection, {**self._params(key), "now_at": now_us}) is None:
            raise self._missing(key)

    def all_queries(self) -> Sequence[Query]:
        """The queries made so far; for the test that checks every statement we send."""
        return [*self._queries.values()]

    def _query(self, name: str, fields: tuple[str, ...], text: Any) -> Query:
        found = self._queries.get((name, *fields))
        if found is None:
            texts = {dialect: str(text(dialect)) for dialect in Dialect}
            found = self._queries[(name, *fields)] = Query(f"{self._table}.{name}", texts)
        return found

    def _insert(self, fields: Sequence[str]) -> str:
        names = ", ".join(self._columns[field] for field in fields)
        return f"INSERT INTO {self._table} ({names}) VALUES ({', '.join(f':{field}' for field in fields)})"

    def _returning(self, dialect: Dialect) -> str:
        return f"RETURNING {columns(self._row, dialect)}"

    def _by_key(self) -> str:
        return " AND ".join(f"{self._columns[field]} = :{field}" for field in self._key)

    def _key_columns(self) -> str:
        return ", ".join(self._columns[field] for field in self._key)

    def _live(self) -> str:
        return f" AND {self._soft_delete} IS NULL" if self._soft_delete else ""

    def _params(self, values: Mapping[str, Any]) -> dict[str, Any]:
        unknown = [field for field in values if field not in self._columns]
        if unknown:
            raise InvalidInput(f"{self._table} has no field {', '.join(unknown)}")
        return dict(values)

    def _one(self, connection: Connection, row: tuple[Any, ...]) -> R:
        return mapper(self._row, connection.dialect)([row])[0]

    def _page(self, rows: Sequence[R], limit: int | None, most: int, name: str) -> Page[R]:
        if limit is None:
            if len(rows) > most:
                raise LimitExceeded(f"{self._table}: there are more than list_rows = {most:,}: page them with limit=")
            return Page(rows)
        if len(rows) <= limit:
            return Page(rows)
        return Page(rows[:limit], encode_cursor(self._table, getattr(rows[limit - 1], name)))

    def _name(self, values: Mapping[str, Any]) -> str:
        name = values.get(self._key[-1], "one like it")
        return repr(unescape(name) if isinstance(name, str) else name)

    def _missing(self, key: Mapping[str, Any]) -> NotFound:
        return NotFound(f"{self._table}: there is no {self._name(key)}")
