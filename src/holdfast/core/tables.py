"""A table of one of the shapes: grants, overlays, transitions, logs, tokens.

A shape writes its statements once, as a template in the form of a ``.sql`` file (``core/queries.py``); a store declares the table
and its row type. The statements of a table can be listed (``by_name``), so that the checks that walk all queries see them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Struct

from ..clock import to_us
from ..engines.protocol import Connection, Row
from ..errors import InvalidInput, LimitExceeded, NotFound
from ..ids import parse as parse_id
from ..limits import Limits
from . import scope as scopes
from . import text
from .filters import Filter, Filterable, listed
from .paging import Page, decode_cursor, encode_cursor
from .queries import Query, parse
from .rows import column_names, kind_of, mapper
from .scope import Scope

R = TypeVar("R", bound=Struct)
NUMBER_BOUND = 2**62
"""Whole numbers are stored in 64 bits on both engines; larger ones are refused before they reach a driver."""


class Limited(Struct, frozen=True):
    """Annotation of a text or JSON field: the limit it is checked against, and whether it may be empty."""

    limit: str
    empty: bool = True


class Table(Generic[R]):
    """The statements of one shape for one table.

    Args:
        name: the table; its first column is ``tenant_id``.
        row: the row type; its fields are columns. Text and JSON fields are annotated with their limit.
        noun: what error messages call a row.
        condition: SQL that a row must also meet to be seen, such as that its session is live. It names the table's columns
            with the table's name, and ``:tenant_id`` for every other table in it.
    """

    template: ClassVar[str]

    def __init__(self, name: str, row: type[R], *, noun: str, condition: str = "", **parts: str) -> None:
        self.name, self.row, self.noun = name, row, noun
        self.columns = column_names(row)
        self.hints = get_type_hints(row, include_extras=True)
        fields = [*self.columns]
        self.parts = {
            "table": name,
            "returned": f"/*columns {row.__name__}*/ *",
            "columns": ", ".join(self.columns[field] for field in fields),
            "values": ", ".join(f":{self.parameter(field)}" for field in fields),
            "visible": f"\n  AND {condition}" if condition else "",
            **parts,
        }

    @cached_property
    def by_name(self) -> dict[str, Query]:
        """All statements of this table."""
        return parse(self.template.format_map(self.parts), self.row)

    @cached_property
    def filters(self) -> Filterable:
        """What can be filtered: every field that is not JSON, and the keys of the first JSON field."""
        kinds = {field: kind_of(hint) for field, hint in self.hints.items()}
        plain = {
            field: (self.columns[field], "text" if kind == "plain" else kind)
            for field, kind in kinds.items()
            if kind != "json"
        }
        return Filterable(plain, metadata=next((self.columns[f] for f, kind in kinds.items() if kind == "json"), None))

    def parameter(self, field: str) -> str:
        """The name under which a field's value is bound; times are bound by a name that ends in ``_at``."""
        is_time = kind_of(self.hints[field]) == "time"
        return f"{field}_at" if is_time and not field.endswith("_at") else field

    def params(self, values: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        """Checked values of fields, as parameters in the form that is stored.

        Raises:
            InvalidInput: a value is not of its field's type, or there is no such field.
            LimitExceeded: a value is too large.
        """
        unknown = [field for field in values if field not in self.columns]
        if unknown:
            raise InvalidInput(f"a {self.noun} has no field {', '.join(unknown)}; it has {', '.join(self.columns)}")
        return {
            self.parameter(field): stored(value, self.hints[field], field, limits) for field, value in values.items()
        }

    def rows(self, connection: Connection, rows: Sequence[Row]) -> list[R]:
        """Rows of the database as objects."""
        return mapper(self.row, connection.dialect)(rows)

    async def one(self, connection: Connection, query: str, params: Mapping[str, Any]) -> R | None:
        """The first row of a statement, or ``None``."""
        row = await self.by_name[query].one(connection, params)
        return None if row is None else self.rows(connection, [row])[0]

    def missing(self, what: object) -> NotFound:
        """The error for a row that does not exist."""
        return NotFound(f"there is no {self.noun} {what} here")

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

    def after(
        self, cursor: str | None, fields: Sequence[str], params: dict[str, Any], connection: Connection, sign: str = ">"
    ) -> str:
        """SQL that starts a page after a cursor, in a list sorted by these fields; ``<`` for a list in descending order.

        Raises:
            InvalidFilter: the cursor is not one of this list.
        """
        if cursor is None:
            return ""
        kinds = [kind_of(self.hints[field]) for field in fields]
        values = decode_cursor(cursor, self.name, *(int if kind in ("time", "number") else str for kind in kinds))
        casts = {"id": "::uuid", "time": "::timestamptz", "text": "::text"} if connection.dialect.native_time else {}
        bound = []
        for field, kind, value in zip(fields, kinds, values, strict=True):
            name = f"after_{self.parameter(field)}"
            params[name] = (
                parse_id(value, "cursor") if kind == "id" else text.escape(value) if kind == "text" else value
            )
            bound.append(f":{name}{casts.get(kind, '')}")
        return f"\n  AND ({', '.join(self.columns[field] for field in fields)}) {sign} ({', '.join(bound)})"

    def page(self, rows: list[R], limit: int | None, limits: Limits, fields: Sequence[str]) -> Page[R]:
        """A page of rows that were read with ``rows_to_read``, with the cursor of the next one.

        Raises:
            LimitExceeded: there is no ``limit``, and more than ``list_rows``.
        """
        if limit is None:
            if len(rows) > limits.list_rows:
                raise LimitExceeded(
                    f"more than list_rows = {limits.list_rows:,} {self.noun} rows: page them with limit= and cursor="
                )
            return Page(rows)
        if len(rows) <= limit:
            return Page(rows)
        last = [getattr(rows[limit - 1], field) for field in fields]
        sort = [to_us(value) if isinstance(value, datetime) else value for value in last]
        return Page(rows[:limit], encode_cursor(self.name, *sort))


def stored(value: Any, hint: Any, field: str, limits: Limits) -> Any:
    """A value of a field in the form that is stored.

    Raises:
        InvalidInput: it is not of the field's type.
        LimitExceeded: it is too large.
    """
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    inner = get_args(hint)[0] if notes else hint
    if value is None and type(None) in get_args(inner):
        return None
    kind = kind_of(hint)
    if kind == "id":
        return parse_id(value, field)
    if kind == "text":
        limited = next(note for note in notes if isinstance(note, Limited))
        check = scopes.free_text if limited.empty else scopes.name
        return check(value, field, limits, limit=limited.limit)
    if kind == "json":
        return _stored_json(value, inner, field, limits)
    if kind == "time" and isinstance(value, datetime) and value.tzinfo is not None:
        return to_us(value, field)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "number" and isinstance(value, int) and not isinstance(value, bool) and abs(value) < NUMBER_BOUND:
        return value
    choices = [choice for part in (inner, *get_args(inner)) if get_origin(part) is Literal for choice in get_args(part)]
    if kind == "plain" and isinstance(value, str) and value in choices:
        return value
    expected = {"time": "a datetime with a time zone", "bool": "true or false", "number": "a whole number below 2**62"}
    raise InvalidInput(f"{field} must be {expected.get(kind, 'one of ' + ', '.join(map(str, choices)))}, not {value!r}")


def _stored_json(value: Any, hint: Any, field: str, limits: Limits) -> str:
    if get_origin(hint) is not list:
        return scopes.metadata(value, limits, field)
    if not isinstance(value, (list, tuple)):
        raise InvalidInput(f"{field} must be a list, not {value!r}")
    dumped = text.dump(value, depth=limits.json_depth)
    limits.check("metadata_bytes", text.size(dumped), field)
    return dumped
