"""A table with a row type: what the shapes of stores (grants, overlays, transitions, logs, tokens) have in common.

A shape writes its statements once, as a template in the form of a ``.sql`` file (``core/queries.py``); a store declares the table
and its row type. The statements of a table can be listed (``by_name``), so that the checks that walk all queries see them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from ..engines.protocol import Connection, Row
from ..errors import InvalidInput, NotFound
from ..ids import parse as parse_id
from ..limits import Limits
from .filters import Filter, Filterable, listed
from .paging import Page, page, rows_to_read
from .queries import Query, parse
from .records.fields import fields_of
from .records.values import after, cursor_of, stored, with_article
from .rows import mapper
from .scope import Scope

R = TypeVar("R", bound=Struct)


class Table(Generic[R]):
    """The statements of one shape for one table.

    Args:
        name: the table; its first column is ``tenant_id``.
        row: the row type; its fields are columns. Text and JSON fields are annotated with their limit, see
            ``core/records/fields.py``.
        noun: what error messages call a row.
        condition: SQL that a row must also meet to be seen, such as that its session is live. It calls the table by its name,
            and compares the ``tenant_id`` of every other table with ``:tenant_id``.
    """

    template: ClassVar[str]

    def __init__(self, name: str, row: type[R], *, noun: str, nouns: str | None = None, condition: str = "") -> None:
        self.name, self.row, self.noun, self.nouns = name, row, noun, nouns or f"{noun}s"
        self.fields = fields_of(row)
        self.parts = {
            "table": name,
            "returned": f"/*columns {row.__name__}*/ *",
            "columns": ", ".join(field.column for field in self.fields.values()),
            "values": ", ".join(f":{self.parameter(name)}" for name in self.fields),
            "visible": f"\n  AND {condition}" if condition else "",
        }

    @cached_property
    def by_name(self) -> dict[str, Query]:
        """All statements of this table."""
        return parse(self.template.format_map(self.parts), self.row)

    @cached_property
    def filters(self) -> Filterable:
        """What can be filtered: every field that is not JSON, and the keys of the first JSON field."""
        kinds = {"plain": "text"}
        fields = self.fields.values()
        plain = {each.name: (each.column, kinds.get(each.kind, each.kind)) for each in fields if each.kind != "json"}
        return Filterable(plain, metadata=next((each.column for each in fields if each.kind == "json"), None))

    def column(self, field: str) -> str:
        """The column of a field."""
        return self.fields[field].column

    def parameter(self, field: str) -> str:
        """The name under which a field's value is bound; times are bound by a name that ends in ``_at``."""
        column = self.column(field)
        return f"{column}_at" if self.fields[field].kind == "time" and not column.endswith("_at") else column

    def params(self, values: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        """Checked values of fields, as parameters in the form that is stored.

        Raises:
            InvalidInput: a value is not of its field's type, or there is no such field.
            LimitExceeded: a value is too large.
        """
        unknown = [field for field in values if field not in self.fields]
        if unknown:
            has = ", ".join(self.fields)
            raise InvalidInput(f"{with_article(self.noun)} has no field {', '.join(unknown)}; it has {has}")
        return {
            self.parameter(name): stored(self.fields[name], value, limits, self.noun) for name, value in values.items()
        }

    def rows(self, connection: Connection, rows: Sequence[Row]) -> list[R]:
        """Rows of the database as objects."""
        return mapper(self.row, connection.dialect)(rows)

    async def one(self, connection: Connection, query: str, params: Mapping[str, Any]) -> R | None:
        """The first row of a statement, or ``None``."""
        row = await self.by_name[query].one(connection, params)
        return None if row is None else self.rows(connection, [row])[0]

    def missing(self, key: object) -> NotFound:
        """The error for a row that does not exist."""
        return NotFound(f"there is no {self.noun} {key} here")

    def where(
        self,
        equal: Mapping[str, Any],
        where: Sequence[Filter],
        params: dict[str, Any],
        connection: Connection,
        scope: Scope,
    ) -> str:
        """SQL for equality with the values that are not ``None``, and for the caller's filters.

        Raises:
            InvalidFilter: a filter is not part of the language.
        """
        exact = [Filter("eq", value, column=field) for field, value in equal.items() if value is not None]
        return self.filters.compile([*exact, *listed(where)], params, connection.dialect, scope.limits)

    def after(self, cursor: str | None, order: Sequence[str], params: dict[str, Any], sign: str = ">") -> str:
        """SQL that starts a page after a cursor, in a list sorted by these fields; ``<`` for a list in descending order.

        Raises:
            InvalidFilter: the cursor is not one of this list.
        """
        if cursor is None:
            return ""
        params |= after(cursor, self.name, [self.fields[field] for field in order])
        columns = [self.column(field) for field in order]
        return f"\n  AND ({', '.join(columns)}) {sign} ({', '.join(f':after_{column}' for column in columns)})"

    def page(self, rows: Sequence[R], limit: int | None, limits: Limits, order: Sequence[str]) -> Page[R]:
        """A page of rows that were read with ``rows_to_read``, with the cursor of the next one.

        Raises:
            LimitExceeded: there is no ``limit``, and there are more than ``list_rows``.
        """
        fields = [self.fields[field] for field in order]
        return page(rows, limit, limits, self.nouns, lambda row: cursor_of(self.name, fields, row))


class ListTable(Table[R]):
    """A table whose rows are read by id, listed in one order, filtered and counted.

    Args:
        order: the fields that a list is sorted by, the last one unique.
        descending: whether it is sorted downwards.
        indexes: for SQLite, which keeps no statistics: the index to use when a field is filtered by equality, in order of
            preference; the one under ``""`` is used otherwise.
    """

    template = """
-- name: get
SELECT {returned} FROM {table} WHERE tenant_id = :tenant_id AND id = :id{visible};

-- name: list
SELECT {returned} FROM {table}/*index*/
WHERE tenant_id = :tenant_id{visible}/*where*/
ORDER BY {order}
LIMIT :limit;

-- name: count
SELECT COUNT(*) FROM {table}/*index*/
WHERE tenant_id = :tenant_id{visible}/*where*/;
"""

    def __init__(
        self,
        name: str,
        row: type[R],
        *,
        noun: str,
        nouns: str | None = None,
        condition: str = "",
        order: Sequence[str] = ("created_at", "id"),
        descending: bool = False,
        indexes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, row, noun=noun, nouns=nouns, condition=condition)
        self._order, self._descending, self._indexes = order, descending, indexes or {}
        self.parts["order"] = ", ".join(f"{self.column(field)}{' DESC' if descending else ''}" for field in order)

    async def get(self, connection: Connection, scope: Scope, id: str) -> R:
        """The row with this id.

        Raises:
            NotFound: there is none.
        """
        row = await self.one(connection, "get", scope.params(id=parse_id(id, f"{self.noun} id")))
        if row is None:
            raise self.missing(id)
        return row

    async def list(
        self,
        connection: Connection,
        scope: Scope,
        equal: Mapping[str, Any],
        *,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[R]:
        """Rows with these values in these fields; ``None`` means any. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor is not understood.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        params = scope.params(limit=rows_to_read(limit, scope.limits))
        clause = self.where(equal, where, params, connection, scope)
        clause += self.after(cursor, self._order, params, "<" if self._descending else ">")
        rows = await self.by_name["list"].all(connection, params, clause, self._index(equal))
        return self.page(self.rows(connection, rows), limit, scope.limits, self._order)

    async def count(
        self, connection: Connection, scope: Scope, equal: Mapping[str, Any], *, where: Sequence[Filter] = ()
    ) -> int:
        """The number of rows that ``list`` would return without a limit.

        Raises:
            InvalidFilter: a filter is not understood.
        """
        params = scope.params()
        clause = self.where(equal, where, params, connection, scope)
        rows = await self.by_name["count"].all(connection, params, clause, self._index(equal))
        return int(rows[0][0])

    def _index(self, equal: Mapping[str, Any]) -> str:
        used = (index for field, index in self._indexes.items() if equal.get(field) is not None)
        return next(used, self._indexes.get("", ""))
