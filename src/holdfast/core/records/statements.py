"""The SQL of a record store, generated from its declaration.

The result is the text of a ``.sql`` file (see ``core/queries.py``). Names come from the source code; values are
parameters. Every statement names the tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from ...engines.dialect import Dialect
from ..queries import Queries
from .fields import STAMPS, AtMostOne, Declaration, Field, Tags
from .references import reference_queries


class GeneratedQueries(Queries):
    """The queries of one record store."""

    def __init__(self, table: str, declared: Declaration[Any], *, live: str, soft: bool) -> None:
        super().__init__("", f"{table}.sql", declared.row)
        self._declared, self._table, self._live, self._soft = declared, table, live, soft

    @cached_property
    def text(self) -> str:
        """All queries, in the form of a ``.sql`` file."""
        statements = {**self._read_queries(), **self._write_queries()}
        if self._declared.natural:
            statements |= self._natural_key_queries()
        if self._soft:
            statements |= self._soft_delete_queries()
        if self._declared.flag is not None:
            statements |= self._flag_queries(self._declared.flag)
        if self._declared.tags is not None:
            statements |= self._tag_queries(self._declared.tags)
        statements |= reference_queries(self._declared.references)
        return "".join(f"-- name: {name}\n{sql};\n\n" for name, sql in statements.items())

    def _read_queries(self) -> dict[str, str]:
        declared = self._declared
        names, after = _columns(declared.order), ", ".join(f":after_{field.column}" for field in declared.order)
        sign, direction = ("<", " DESC") if declared.descending else (">", "")
        order = ", ".join(f"{field.column}{direction}" for field in declared.order)
        rows = f"{self._select()} WHERE {self._all_live()}"
        return {
            "get": f"{self._select()} WHERE {self._one_live()}",
            "lock": f"{self._select()} WHERE {self._one_live()} /*pg FOR UPDATE*/",
            "list": f"{rows}/*where*/\nORDER BY {order}\nLIMIT :limit",
            "list_after": f"{rows} AND ({names}) {sign} ({after})/*where*/\nORDER BY {order}\nLIMIT :limit",
            "count": f"SELECT count(*) FROM {self._table} WHERE {self._all_live()}/*where*/",
        }

    def _write_queries(self) -> dict[str, str]:
        declared = self._declared
        stamps = [name for name in STAMPS if name in declared.fields]
        columns = ", ".join(["tenant_id", *(field.column for field in declared.new_fields), *stamps])
        values = ", ".join(
            [":tenant_id", *(f":{field.column}" for field in declared.new_fields), *(":now_at" for _ in stamps)]
        )
        sets = [*(f"{field.column} = :{field.column}" for field in declared.editable), *self._stamps()]
        create = (
            f"INSERT INTO {self._table} ({columns})\nVALUES ({values})\nON CONFLICT DO NOTHING\n{self._returning()}"
        )
        update = f"UPDATE {self._table} SET {', '.join(sets)}\nWHERE {self._one_live()}\n{self._returning()}"
        hard_delete = f"DELETE FROM {self._table} WHERE {self._one_live()} RETURNING 1"
        drop = "" if declared.flag is None else f", {declared.flag.column} = FALSE"
        soft_delete = f"UPDATE {self._table} SET deleted_at = :now_at{drop} WHERE {self._one_live()} RETURNING 1"
        return {"create": create, "update": update, "delete": soft_delete if self._soft else hard_delete}

    def _natural_key_queries(self) -> dict[str, str]:
        same = f"{self._all_live()}{_equal(self._declared.natural)}"
        return {
            "find": f"{self._select()} WHERE {same}",
            "lock_by_natural_key": f"{self._select()} WHERE {same} /*pg FOR UPDATE*/",
        }

    def _soft_delete_queries(self) -> dict[str, str]:
        deleted = f"tenant_id = :tenant_id AND deleted_at IS NOT NULL{_equal(self._declared.key)}"
        return {
            "lock_deleted": f"{self._select()} WHERE {deleted} /*pg FOR UPDATE*/",
            "restore": f"UPDATE {self._table} SET deleted_at = NULL WHERE {deleted}\n{self._returning()}",
        }

    def _flag_queries(self, flag: Field) -> dict[str, str]:
        within = [self._declared.fields[name] for name in flag.marker(AtMostOne).within]
        flagged = f"{self._all_live()}{_equal(within)} AND {flag.column}"
        this = " AND ".join(f"{field.column} = :{field.column}" for field in self._declared.key)
        sets = ", ".join([f"{flag.column} = FALSE", *self._stamps()])
        return {
            "flagged": f"{self._select()} WHERE {flagged}",
            "clear_flag": f"UPDATE {self._table} SET {sets}\nWHERE {flagged} AND NOT ({this})\n{self._returning()}",
        }

    def _tag_queries(self, field: Field) -> dict[str, str]:
        tags, (key,) = field.marker(Tags), self._declared.key
        return {
            "add_tag": f"INSERT INTO {tags.table} (tenant_id, tag, {tags.column}) VALUES (:tenant_id, :tag, :{key.column})",
            # Deleted explicitly, because a caller's own SQLite connection may have foreign keys switched off.
            "delete_tags": f"DELETE FROM {tags.table} WHERE tenant_id = :tenant_id AND {tags.column} = :{key.column}",
        }

    def _stamps(self) -> list[str]:
        """Return the assignments of the fields that every change sets."""
        stamps = {"version": "version = version + 1", "updated_at": "updated_at = :now_at"}
        return [assignment for name, assignment in stamps.items() if name in self._declared.fields]

    def _select(self) -> str:
        return f"SELECT /*columns {self._declared.row.__name__}*/ * FROM {self._table}"

    def _returning(self) -> str:
        return f"RETURNING /*columns {self._declared.row.__name__}*/ *"

    def _all_live(self) -> str:
        live = [*(["deleted_at IS NULL"] if self._soft else []), *([self._live] if self._live else [])]
        return " AND ".join(["tenant_id = :tenant_id", *live])

    def _one_live(self) -> str:
        return f"{self._all_live()}{_equal(self._declared.key)}"


def _equal(fields: Iterable[Field]) -> str:
    return "".join(f" AND {field.column} = :{field.column}" for field in fields)


def _columns(fields: Sequence[Field]) -> str:
    return ", ".join(field.column for field in fields)


def search_condition(dialect: Dialect, fields: Sequence[Field]) -> str:
    """Return the condition that a field contains the text ``search``, whose ASCII letters are in lower case.

    Only ASCII letters are compared without case: engines and languages differ on the others.
    """
    if dialect is Dialect.SQLITE:
        conditions = [f"instr(lower({field.column}), :search) > 0" for field in fields]
    else:
        conditions = [f'strpos(lower({field.column} COLLATE "C"), :search::text) > 0' for field in fields]
    return f"\n  AND ({' OR '.join(conditions)})"


def lower_ascii(search: str) -> str:
    """Return the text with its ASCII letters in lower case."""
    return "".join(char.lower() if char.isascii() else char for char in search)
