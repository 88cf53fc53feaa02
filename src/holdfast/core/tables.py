"""Tables with a row type: the common part of the patterns grants, overlays, transitions, logs and tokens.

A pattern defines its statements once, as a template in the form of a ``.sql`` file (``core/queries.py``); a store
declares the table and its row type. ``by_name`` lists the statements of a table, so that the checks of all queries
include them. The methods of a table take a connection, so that several patterns can share a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from ..engines.protocol import Connection, Row
from ..errors import Conflict, InvalidInput, NotFound
from ..ids import parse as parse_id
from ..limits import Limits
from .filters import Filter, FilterColumns, filter_list
from .paging import Page, page, rows_to_read
from .queries import Query, parse
from .records.fields import fields_of
from .records.values import cursor_of, cursor_params, encode_value, is_same, with_article
from .rows import mapper
from .scope import Scope

R = TypeVar("R", bound=Struct)


class TypedTable(Generic[R]):
    """The statements of one pattern for one table.

    Args:
        name: the table; its first column is ``tenant_id``.
        row: the row type; its fields are columns. Text and JSON fields are annotated with their limit, see
            ``core/records/fields.py``.
        noun: the name of a row in error messages.
        condition: SQL that a row must also meet to be visible, for example that its session is live. It qualifies its
            columns with the table's name, and compares the ``tenant_id`` of every other table with ``:tenant_id``.
    """

    template: ClassVar[str]

    def __init__(self, name: str, row: type[R], *, noun: str, nouns: str | None = None, condition: str = "") -> None:
        self.name, self.row, self.noun, self.nouns = name, row, noun, nouns or f"{noun}s"
        self.a_noun = with_article(noun)
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
    def filters(self) -> FilterColumns:
        """The columns that filters may use: every field that is not JSON, and the keys of the first JSON field."""
        kinds = {"plain": "text"}
        fields = self.fields.values()
        plain = {
            field.name: (field.column, kinds.get(field.kind, field.kind)) for field in fields if field.kind != "json"
        }
        metadata = next((field.column for field in fields if field.kind == "json"), None)
        return FilterColumns(plain, metadata=metadata)

    def column(self, field: str) -> str:
        """Return the column of a field."""
        return self.fields[field].column

    def parameter(self, field: str) -> str:
        """Return the parameter that a field's value is bound to; parameters of times end in ``_at``."""
        column = self.column(field)
        return f"{column}_at" if self.fields[field].kind == "time" and not column.endswith("_at") else column

    def params(self, values: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        """Check values of fields and return them as parameters in their stored form.

        Raises:
            InvalidInput: a value is not of its field's type, or a field does not exist.
            LimitExceeded: a value is too large.
        """
        unknown = [field for field in values if field not in self.fields]
        if unknown:
            raise InvalidInput(
                f"{with_article(self.noun)} has no field {', '.join(unknown)}; its fields: {', '.join(self.fields)}",
                field=unknown[0],
            )
        return {
            self.parameter(name): encode_value(self.fields[name], value, limits, self.noun)
            for name, value in values.items()
        }

    def rows(self, connection: Connection, rows: Sequence[Row]) -> list[R]:
        """Return rows of the database as objects."""
        return mapper(self.row, connection.dialect)(rows)

    async def one(self, connection: Connection, query: str, params: Mapping[str, Any]) -> R | None:
        """Return the first row of a statement, or ``None``."""
        row = await self.by_name[query].one(connection, params)
        return None if row is None else self.rows(connection, [row])[0]

    def missing(self, key: object) -> NotFound:
        """Return the error for a row that does not exist."""
        return NotFound(f"{self.noun} {key} does not exist", noun=self.noun, key=str(key))

    def where(
        self,
        equal: Mapping[str, Any],
        where: Sequence[Filter],
        params: dict[str, Any],
        connection: Connection,
        scope: Scope,
    ) -> str:
        """Return SQL for equality with the values that are not ``None``, and for the caller's filters.

        Raises:
            InvalidFilter: a filter is not part of the language.
        """
        exact = [Filter("eq", value, column=field) for field, value in equal.items() if value is not None]
        return self.filters.compile([*exact, *filter_list(where)], params, connection.dialect, scope.limits)

    def after(self, cursor: str | None, order: Sequence[str], params: dict[str, Any], sign: str = ">") -> str:
        """Return SQL that starts a page after a cursor, in a list sorted by these fields; ``sign`` is ``<`` for descending order.

        Raises:
            InvalidFilter: the cursor belongs to another list.
        """
        if cursor is None:
            return ""
        params |= cursor_params(cursor, self.name, [self.fields[field] for field in order])
        columns = [self.column(field) for field in order]
        return f"\n  AND ({', '.join(columns)}) {sign} ({', '.join(f':after_{column}' for column in columns)})"

    def page(self, rows: Sequence[R], limit: int | None, limits: Limits, order: Sequence[str]) -> Page[R]:
        """Return a page of the rows read with ``rows_to_read``, with the cursor of the next page.

        Raises:
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        fields = [self.fields[field] for field in order]
        return page(rows, limit, limits, self.nouns, lambda row: cursor_of(self.name, fields, row))


class ListTable(TypedTable[R]):
    """A table whose rows are added once under an id, read by id, listed in one order, filtered and counted.

    Args:
        order: the fields that a list is sorted by; the last one is unique.
        descending: whether the order is descending.
        indexes: for SQLite, which has no statistics: the index to use when a field is filtered by equality, in order of
            preference; the index under ``""`` is used otherwise.
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

-- name: add
INSERT INTO {table} (tenant_id, {columns}) VALUES (:tenant_id, {values})
ON CONFLICT (tenant_id, id) DO NOTHING
RETURNING {returned};
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

    async def add(self, connection: Connection, params: Mapping[str, Any], given: Sequence[str]) -> tuple[R, bool]:
        """Add a row; return it, and whether it is new. If the id exists with the same values in the given fields, it is not.

        Raises:
            Conflict: a row with this id and other content exists.
        """
        row = await self.one(connection, "add", params)
        if row is not None:
            return row, True
        existing = await self.one(connection, "get", params)
        fields = [self.fields[name] for name in given]
        if existing is None or not all(
            is_same(field, params[self.parameter(field.name)], existing) for field in fields
        ):
            raise Conflict(f"{self.noun} {params['id']} exists with other content", reason="other_content")
        return existing, False

    async def get(self, connection: Connection, scope: Scope, id: str) -> R:
        """Return the row with this id.

        Raises:
            NotFound: it does not exist.
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
        """Return rows with these values in these fields; ``None`` means any value. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor is not valid.
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
        """Return the number of rows that ``list`` would return without a limit.

        Raises:
            InvalidFilter: a filter is not valid.
        """
        params = scope.params()
        clause = self.where(equal, where, params, connection, scope)
        rows = await self.by_name["count"].all(connection, params, clause, self._index(equal))
        return int(rows[0][0])

    def _index(self, equal: Mapping[str, Any]) -> str:
        usable = (index for field, index in self._indexes.items() if equal.get(field) is not None)
        return next(usable, self._indexes.get("", ""))
