"""The SQL of a record store, written from its declaration.

It is the text of a ``.sql`` file that nobody has to write (see ``core/queries.py``). Names come from the source; values are
parameters. Every statement names the tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from ...engines.dialect import Dialect
from ..queries import Queries
from .fields import Declaration, Field, Tags


class GeneratedQueries(Queries):
    """The queries of one record store."""

    def __init__(self, table: str, declared: Declaration[Any], *, live: str, soft: bool) -> None:
        super().__init__("", f"{table}.sql", declared.row)
        self._declared, self._table, self._live, self._soft = declared, table, live, soft

    @cached_property
    def text(self) -> str:
        """All of them, as they would stand in a ``.sql`` file."""
        found = {**self._reading(), **self._writing()}
        if self._declared.natural:
            found |= self._by_natural_key()
        if self._soft:
            found |= self._deleting_softly()
        if self._declared.tags is not None:
            found |= self._tagging(self._declared.tags)
        return "".join(f"-- name: {name}\n{sql};\n\n" for name, sql in found.items())

    def _reading(self) -> dict[str, str]:
        declared = self._declared
        names, after = _columns(declared.order), ", ".join(f":after_{each.column}" for each in declared.order)
        sign, way = ("<", " DESC") if declared.descending else (">", "")
        order = ", ".join(f"{each.column}{way}" for each in declared.order)
        rows = f"{self._select()} WHERE {self._all_live()}"
        return {
            "get": f"{self._select()} WHERE {self._one_live()}",
            "lock": f"{self._select()} WHERE {self._one_live()} /*pg FOR UPDATE*/",
            "list": f"{rows}/*where*/\nORDER BY {order}\nLIMIT :limit",
            "list_after": f"{rows} AND ({names}) {sign} ({after})/*where*/\nORDER BY {order}\nLIMIT :limit",
            "count": f"SELECT count(*) FROM {self._table} WHERE {self._all_live()}/*where*/",
        }

    def _writing(self) -> dict[str, str]:
        declared = self._declared
        stamps = [each for each in ("created_at", "updated_at") if each in declared.fields]
        columns = ", ".join(["tenant_id", *(each.column for each in declared.given), *stamps])
        values = ", ".join(
            [":tenant_id", *(f":{each.column}" for each in declared.given), *(":now_at" for _ in stamps)]
        )
        sets = [f"{each.column} = :{each.column}" for each in declared.editable]
        sets += ["version = version + 1"] if "version" in declared.fields else []
        sets += ["updated_at = :now_at"] if "updated_at" in declared.fields else []
        create = (
            f"INSERT INTO {self._table} ({columns})\nVALUES ({values})\nON CONFLICT DO NOTHING\n{self._returning()}"
        )
        update = f"UPDATE {self._table} SET {', '.join(sets)}\nWHERE {self._one_live()}\n{self._returning()}"
        gone = f"DELETE FROM {self._table} WHERE {self._one_live()} RETURNING 1"
        hidden = f"UPDATE {self._table} SET deleted_at = :now_at WHERE {self._one_live()} RETURNING 1"
        return {"create": create, "update": update, "delete": hidden if self._soft else gone}

    def _by_natural_key(self) -> dict[str, str]:
        same = f"{self._all_live()}{_equal(self._declared.natural)}"
        return {
            "find": f"{self._select()} WHERE {same}",
            "lock_by_natural_key": f"{self._select()} WHERE {same} /*pg FOR UPDATE*/",
        }

    def _deleting_softly(self) -> dict[str, str]:
        deleted = f"tenant_id = :tenant_id AND deleted_at IS NOT NULL{_equal(self._declared.key)}"
        return {
            "lock_deleted": f"{self._select()} WHERE {deleted} /*pg FOR UPDATE*/",
            "restore": f"UPDATE {self._table} SET deleted_at = NULL WHERE {deleted}\n{self._returning()}",
        }

    def _tagging(self, field: Field) -> dict[str, str]:
        tags, (key,) = field.marker(Tags), self._declared.key
        return {
            "add_tag": f"INSERT INTO {tags.table} (tenant_id, tag, {tags.column}) VALUES (:tenant_id, :tag, :{key.column})",
            # Said in so many words, because a caller's own SQLite connection may have foreign keys switched off.
            "delete_tags": f"DELETE FROM {tags.table} WHERE tenant_id = :tenant_id AND {tags.column} = :{key.column}",
        }

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
    return "".join(f" AND {each.column} = :{each.column}" for each in fields)


def _columns(fields: Sequence[Field]) -> str:
    return ", ".join(each.column for each in fields)


def search_condition(dialect: Dialect, fields: Sequence[Field]) -> str:
    """A field contains the text ``search``, whose ASCII letters are in lower case.

    Only those are compared without case: engines and languages differ in what they do to the others.
    """
    if dialect is Dialect.SQLITE:
        found = [f"instr(lower({each.column}), :search) > 0" for each in fields]
    else:
        found = [f'strpos(lower({each.column} COLLATE "C"), :search::text) > 0' for each in fields]
    return f"\n  AND ({' OR '.join(found)})"


def lower_ascii(wanted: str) -> str:
    """The text with its ASCII letters in lower case."""
    return "".join(each.lower() if each.isascii() else each for each in wanted)
