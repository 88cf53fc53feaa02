"""The rows of a record store: reading and writing them, and the errors that name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from ...engines.protocol import Connection, Row
from ...errors import AlreadyExists, NotFound, Unavailable
from .. import text
from ..actor_context import ActorContext
from ..encrypted_columns import EncryptedColumn
from ..queries import Query
from ..rows import mapper
from ..store import TenantStore
from .fields import Declaration, Field
from .secrets import wrap_secrets
from .statements import GeneratedQueries
from .values import encode_row_value

R = TypeVar("R", bound=Struct)
_TRIES = 100
"""How often a record is written again after concurrent calls flagged others; each time, one of them succeeded."""


class _NothingWritten(Exception):
    """A statement has written no record."""


class RecordRows(TenantStore, Generic[R]):
    """The part of a record store below its methods."""

    noun: ClassVar[str]
    nouns: ClassVar[str]
    """The plural of ``noun``; by default ``noun`` with an s."""
    a_noun: ClassVar[str]
    declared: ClassVar[Declaration[Any]]
    queries: ClassVar[GeneratedQueries]
    secrets: ClassVar[dict[str, EncryptedColumn]]

    async def _on_change(
        self, connection: Connection, acting: ActorContext, action: str, row: R, fields: Sequence[str]
    ) -> None:
        """Called in the transaction of every change of a record, and when its secrets are revealed.

        Args:
            action: created, changed, deleted, restored or revealed.
            fields: the names of the fields that were changed or revealed.
        """

    async def _one(self, connection: Connection, query: Query, params: dict[str, Any]) -> R | None:
        row = await query.one(connection, params)
        return None if row is None else self._rows(connection, [row])[0]

    def _rows(self, connection: Connection, rows: Sequence[Row]) -> Sequence[R]:
        records: Sequence[R] = mapper(self.declared.row, connection.dialect)(rows)
        return wrap_secrets(records, self.declared, self.secrets, self._scope) if self.secrets else records

    async def _write(
        self, connection: Connection, acting: ActorContext, query: Query, params: dict[str, Any]
    ) -> R | None:
        """Run the statement that creates or changes a record. If the record gets the flag, another one loses it."""
        flag, params = self.declared.flag, self._encrypted(params)
        if flag is None or not params[flag.column]:
            return await self._one(connection, query, params)
        for _ in range(_TRIES):
            cleared: list[R] = []
            try:
                async with connection.savepoint():
                    cleared += self._rows(connection, await self.queries.clear_flag.all(connection, params))
                    for other in cleared:
                        await self._on_change(connection, acting, "changed", other, [flag.name])
                    row = await self._one(connection, query, params)
                    if row is None:
                        raise _NothingWritten
                    return row
            except _NothingWritten:
                if not await self._was_outrun(connection, params, cleared):
                    return None
            except AlreadyExists:
                if not await self._was_outrun(connection, params, cleared):
                    raise
        raise Unavailable(f"other callers keep changing {flag.name} of {self.nouns}; nothing was changed, try again")

    async def _was_outrun(self, connection: Connection, params: dict[str, Any], cleared: Sequence[R]) -> bool:
        """Return whether a concurrent call has flagged another record, so that the unique index refused this one."""
        flagged = await self._one(connection, self.queries.flagged, params)
        known = [[params[field.column] for field in self.declared.key], *map(self._key_of, cleared)]
        return flagged is not None and self._key_of(flagged) not in known

    def _key_of(self, row: R) -> list[Any]:
        """Return the key of a record in its stored form."""
        return [encode_row_value(field, getattr(row, field.name)) for field in self.declared.key]

    def _encrypted(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters with their secrets encrypted."""
        key = [params[field.column] for field in self.declared.key]
        scope = self._scope
        return params | {name: column.encrypt(scope, key, params[name]) for name, column in self.secrets.items()}

    def _named(self, key: Sequence[str]) -> str:
        return f"{self.noun} {key[0]!r}" + "".join(
            f", {field.name} {value!r}" for field, value in zip(self.declared.key[1:], key[1:], strict=False)
        )

    def _missing(self, key: Sequence[str]) -> NotFound:
        return NotFound(f"{self._named(key)} does not exist", noun=self.noun, key=str(key[0]))

    def _taken(self, params: Mapping[str, Any], hint: str, fields: Sequence[Field] = ()) -> AlreadyExists:
        fields = fields or self.declared.natural or self.declared.key
        values = [text.unescape(str(params[field.column])) for field in fields]
        names = ", ".join(f"{field.name} {value!r}" for field, value in zip(fields, values, strict=True))
        return AlreadyExists(f"{self.a_noun} with {names} exists: {hint}", noun=self.noun, key=values[0])
