"""Record stores: everything a plain store does, inherited and typed by its row, ``New...`` and ``...Change`` types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar, get_args

from msgspec import UNSET, Struct

from ...engines.protocol import Connection, Row
from ...errors import AlreadyExists, InvalidFilter, InvalidInput, NotFound
from .. import scope as scopes
from .. import text
from ..blocking import Blocking, blocking
from ..filters import Filter
from ..filters import Filterable as FilterColumns
from ..paging import Page, page, rows_to_read
from ..queries import Query
from ..registration import register_tenant
from ..rows import mapper
from ..store import TenantStore, reads, writes
from .fields import Declaration, Field, declare, filter_columns
from .statements import GeneratedQueries, lower_ascii, search_condition
from .values import after, check_version, cursor_of, is_same, stored, stored_again, with_article

R = TypeVar("R", bound=Struct)
N = TypeVar("N", bound=Struct)
C = TypeVar("C", bound=Struct)


class AsyncRecords(TenantStore, Generic[R, N, C]):
    """Records of one kind in one tenant.

    A subclass names its types and its table; ``core/records/fields.py`` says what the types mean::

        class AsyncProviders(AsyncRecords[Provider, NewProvider, ProviderChange]):
            table, noun = "providers", "provider"

    To do more in the same transaction, override ``_after_save`` and ``_before_delete``.
    """

    table: ClassVar[str]
    noun: ClassVar[str]
    nouns: ClassVar[str]
    """Several of them; ``noun`` with an s if it is not given."""
    a_noun: ClassVar[str]
    order: ClassVar[Sequence[str]] = ()
    """Fields that a list is sorted by instead of the key; with ``-`` in front of each, downwards."""
    live: ClassVar[str] = ""
    """A condition in SQL that a record has to meet to be seen."""
    extra: ClassVar[Sequence[str]] = ()
    """Fields of the ``New...`` type that are no columns; ``_after_save`` handles them."""

    declared: ClassVar[Declaration[Any]]
    new_type: ClassVar[type[Struct]]
    change_type: ClassVar[type[Struct]]
    queries: ClassVar[GeneratedQueries]
    filters: ClassVar[FilterColumns]
    _soft: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        base = next(each for each in cls.__orig_bases__ if issubclass(each.__origin__, AsyncRecords))  # type: ignore[attr-defined]
        row, cls.new_type, cls.change_type = get_args(base)
        if isinstance(row, TypeVar):
            return  # not a store, but another base of stores
        cls.declared = declare(row, cls.new_type, cls.change_type, cls.order, cls.extra)
        cls.nouns, cls.a_noun = getattr(cls, "nouns", f"{cls.noun}s"), with_article(cls.noun)
        cls.queries = GeneratedQueries(cls.table, cls.declared, live=cls.live, soft=cls._soft)
        cls.filters = filter_columns(cls.declared)

    @writes
    async def create(self, connection: Connection, new: N) -> R:
        """Create a record. Without a key of the caller's it gets a new id.

        With a key the call can be repeated: if the same record exists already, it is returned.

        Raises:
            AlreadyExists: there is another record with this key or name.
        """
        new = self._checked(new)
        params = self._now(self._new_values(new))
        row = await self._insert(connection, params)
        if row is None:
            row = await self._one(connection, self.queries.get, params)
            if row is None or not all(is_same(each, params[each.column], row) for each in self.declared.given):
                raise await self._in_the_way(connection, params, row)
        await self._after_save(connection, new, row)
        return row

    @writes
    async def upsert(self, connection: Connection, new: N) -> R:
        """Create a record, or change the one with this key or, without a key, this name. A deleted one becomes live again.

        Fields that cannot be changed stay as they were, and so do those that are unset. If nothing differs, nothing is
        written.

        Raises:
            AlreadyExists: another record has this name.
        """
        new = self._checked(new)
        params = self._now(self._new_values(new))
        row = await self._insert(connection, params)
        if row is None:
            by_name = bool(self.declared.natural) and all(
                getattr(new, each.name, UNSET) is UNSET for each in self.declared.key
            )
            row = await self._existing(connection, params, by_name=by_name)
            if row is None:
                raise self._taken(params, "the two differ in their keys")
            given = {each.name for each in self.declared.editable if getattr(new, each.name, UNSET) is not UNSET}
            changes = {name: params[self.declared.fields[name].column] for name in given}
            row = await self._change(connection, row, changes)
        await self._after_save(connection, new, row)
        return row

    @reads
    async def get(self, connection: Connection, *key: str) -> R:
        """One record.

        Raises:
            NotFound: there is none.
        """
        row = await self._one(connection, self.queries.get, self._at(key))
        if row is None:
            raise self._missing(key)
        return row

    @reads
    async def find(self, connection: Connection, *name: str) -> R | None:
        """The record with this name, or ``None``. Records without a name of their own are found by their key."""
        if self.declared.natural:
            return await self._one(connection, self.queries.find, self._at(name, self.declared.natural))
        return await self._one(connection, self.queries.get, self._at(name))

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        where: Sequence[Filter] = (),
        search: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[R]:
        """Records that match all filters. With ``limit``, a page; its ``next`` is the cursor of the next one.

        Raises:
            InvalidFilter: a filter or the cursor is not of this list, or there is nothing to search in.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        clause = self._clause(connection, where, search, params)
        query, order = self.queries.list, self.declared.order
        if cursor is not None:
            query = self.queries.list_after
            params |= after(cursor, self.table, order)
        rows = mapper(self.declared.row, connection.dialect)(await query.all(connection, params, clause))
        return page(rows, limit, limits, self.nouns, lambda row: cursor_of(self.table, order, row))

    @reads
    async def count(self, connection: Connection, *, where: Sequence[Filter] = (), search: str | None = None) -> int:
        """The number of records that match all filters.

        Raises:
            InvalidFilter: a filter is not of this list, or there is nothing to search in.
        """
        params = self._scope.params()
        row = await self.queries.count.one(connection, params, self._clause(connection, where, search, params))
        assert row is not None
        return int(row[0])

    @writes
    async def update(self, connection: Connection, *key: str, change: C, version: int | None = None) -> R:
        """Change the fields that are set. With ``version``, only if the record still has that version.

        Raises:
            NotFound: there is no such record.
            Conflict: it has another version.
            AlreadyExists: another record has this name.
        """
        changes = self._changes(change)
        row = await self._held(connection, key, version)
        row = await self._change(connection, row, changes)
        await self._after_save(connection, change, row)
        return row

    @writes
    async def delete(self, connection: Connection, *key: str, version: int | None = None) -> None:
        """Delete a record. With ``version``, only if it still has that version.

        Raises:
            NotFound: there is no such record.
            Conflict: it has another version.
        """
        await self._held(connection, key, version)
        params = self._at(key) | {"now_at": self._scope.clock.now_us()}
        if not self._soft:
            await self._before_delete(connection, params)
            if self.declared.tags is not None:
                await self.queries.delete_tags.all(connection, params)
        await self.queries.delete.all(connection, params)

    def _prepare(self, new: N) -> N:
        """Called before a record is created: check and fill in what the types do not say."""
        return new

    async def _after_save(self, connection: Connection, given: Struct, row: R) -> None:
        """Called in the transaction of ``create``, ``upsert`` and ``update``, after the record was written."""

    async def _before_delete(self, connection: Connection, params: dict[str, Any]) -> None:
        """Called in the transaction of ``delete``, before a record is removed for good; ``params`` has its key."""

    def _at(self, key: Sequence[str], fields: Sequence[Field] = ()) -> dict[str, Any]:
        """The parameters that identify a record, by its key or by these fields."""
        fields = fields or self.declared.key
        missing = [self.declared.defaults.get(each.name, UNSET) for each in fields[len(key) :]]
        if len(key) > len(fields) or UNSET in missing:
            names = ", ".join(each.name for each in fields)
            raise InvalidInput(f"{self.a_noun} is identified by {names}, not by {len(key)} values: {key!r}")
        limits = self._scope.limits
        pairs = zip(fields, [*key, *missing], strict=True)
        return self._scope.params(**{each.column: stored(each, value, limits, self.noun) for each, value in pairs})

    def _checked(self, new: N) -> N:
        if not isinstance(new, self.new_type):
            wanted = with_article(self.new_type.__name__)
            raise InvalidInput(f"{self.a_noun} is created from {wanted}, not from {type(new).__name__}")
        return self._prepare(new)

    def _new_values(self, new: N) -> dict[str, Any]:
        """The fields of a new record in the form that is stored, by column."""
        found: dict[str, Any] = {}
        for field in self.declared.given:
            value = getattr(new, field.name)
            if value is UNSET and field in self.declared.key:
                value = self._scope.ids.new()
            elif value is UNSET and field.optional:
                value = None
            found[field.column] = stored(field, value, self._scope.limits, self.noun)
        return found

    def _changes(self, change: C) -> dict[str, Any]:
        """The fields that a change sets, in the form that is stored, by name."""
        if not isinstance(change, self.change_type):
            wanted = with_article(self.change_type.__name__)
            raise InvalidInput(f"{self.a_noun} is changed by {wanted}, not by {type(change).__name__}")
        given = [(each, getattr(change, each.name)) for each in self.declared.editable]
        limits = self._scope.limits
        return {each.name: stored(each, value, limits, self.noun) for each, value in given if value is not UNSET}

    def _now(self, values: dict[str, Any]) -> dict[str, Any]:
        return self._scope.params(**values, now_at=self._scope.clock.now_us())

    async def _one(self, connection: Connection, query: Query, params: dict[str, Any]) -> R | None:
        return self._made(connection, await query.one(connection, params))

    def _made(self, connection: Connection, row: Row | None) -> R | None:
        return None if row is None else mapper(self.declared.row, connection.dialect)([row])[0]

    async def _insert(self, connection: Connection, params: dict[str, Any]) -> R | None:
        """The new record, or ``None`` if its key or its name is taken."""
        await register_tenant(connection, params)
        row = await self._one(connection, self.queries.create, params)
        if row is not None:
            await self._add_tags(connection, row)
        return row

    async def _existing(self, connection: Connection, params: dict[str, Any], *, by_name: bool) -> R | None:
        """The record that is in the way of a new one, locked, and live again if it was deleted."""
        query = self.queries.lock_by_natural_key if by_name else self.queries.lock
        row = await self._one(connection, query, params)
        if row is None and self._soft and not by_name:
            row = await self._one(connection, self.queries.restore, params)
        return row

    async def _held(self, connection: Connection, key: Sequence[str], version: int | None) -> R:
        """A record, locked until the transaction ends, if it has this version."""
        row = await self._one(connection, self.queries.lock, self._at(key))
        if row is None:
            raise self._missing(key)
        self._check_version(row, key, version)
        return row

    def _check_version(self, row: R, key: Sequence[str], version: int | None) -> None:
        if version is not None and "version" not in self.declared.fields:
            raise InvalidInput(f"{self.nouns} have no versions; leave version out")
        check_version(getattr(row, "version", 0), version, self._named(key))

    async def _change(self, connection: Connection, row: R, changes: dict[str, Any]) -> R:
        """Write what differs. The record is locked."""
        fields = self.declared.fields
        if all(is_same(fields[name], value, row) for name, value in changes.items()):
            return row
        whole = (*self.declared.key, *self.declared.natural, *self.declared.editable)
        values = {each.column: changes.get(each.name, UNSET) for each in whole}
        for each in whole:
            if values[each.column] is UNSET:
                values[each.column] = stored_again(each, getattr(row, each.name))
        params = self._now(values)
        try:
            changed = await self._one(connection, self.queries.update, params)
        except AlreadyExists:
            raise self._taken(params, "choose another name") from None
        assert changed is not None  # it is locked
        if self.declared.tags is not None and self.declared.tags.name in changes:
            await self.queries.delete_tags.all(connection, params)
            await self._add_tags(connection, changed)
        return changed

    async def _add_tags(self, connection: Connection, row: R) -> None:
        if self.declared.tags is None:
            return
        params = self._at([getattr(row, each.name) for each in self.declared.key])
        tags = [text.escape(tag) for tag in getattr(row, self.declared.tags.name)]
        if tags:
            await self.queries.add_tag.many(connection, [{**params, "tag": tag} for tag in tags])

    def _clause(
        self, connection: Connection, where: Sequence[Filter], search: str | None, params: dict[str, Any]
    ) -> str:
        clause = self.filters.compile(where, params, connection.dialect, self._scope.limits)
        if search is None:
            return clause
        if not self.declared.searchable:
            raise InvalidFilter(f"{self.nouns} have no text to search in; use a filter")
        wanted = scopes.name(search, "search", self._scope.limits, limit="query_chars")
        params["search"] = lower_ascii(wanted)
        return clause + search_condition(connection.dialect, self.declared.searchable)

    async def _in_the_way(self, connection: Connection, params: dict[str, Any], row: R | None) -> AlreadyExists:
        """Why a record could not be created."""
        if row is not None:
            return self._taken(params, "update it, or use upsert", self.declared.key)
        if self._soft and await self.queries.lock_deleted.one(connection, params) is not None:
            return self._taken(params, "it was deleted; restore it, or use upsert", self.declared.key)
        return self._taken(params, "update it, or use upsert")

    def _named(self, key: Sequence[str]) -> str:
        return f"{self.noun} {key[0]!r}" + "".join(
            f", {each.name} {value!r}" for each, value in zip(self.declared.key[1:], key[1:], strict=False)
        )

    def _missing(self, key: Sequence[str]) -> NotFound:
        return NotFound(f"there is no {self._named(key)}")

    def _taken(self, params: dict[str, Any], hint: str, fields: Sequence[Field] = ()) -> AlreadyExists:
        fields = fields or self.declared.natural or self.declared.key
        names = ", ".join(f"{each.name} {text.unescape(str(params[each.column]))!r}" for each in fields)
        return AlreadyExists(f"there is another {self.noun} with {names}: {hint}")


class AsyncSoftRecords(AsyncRecords[R, N, C]):
    """Records whose deletion can be undone. Their table has a column ``deleted_at``."""

    _soft = True

    @writes
    async def restore(self, connection: Connection, *key: str) -> R:
        """Undo the deletion of a record. A live one is returned unchanged.

        Raises:
            NotFound: there never was such a record.
            AlreadyExists: another record has its name by now.
        """
        params = self._at(key)
        row = await self._one(connection, self.queries.lock, params)
        if row is None:
            try:
                row = await self._one(connection, self.queries.restore, params)
            except AlreadyExists:
                raise AlreadyExists(
                    f"another {self.noun} has the name of {self._named(key)}: rename or delete it first"
                ) from None
        if row is None:
            raise self._missing(key)
        return row


class Records(Blocking[AsyncRecords[R, N, C]], Generic[R, N, C]):
    """Records of one kind in one tenant, for synchronous programs."""

    create = blocking(AsyncRecords[R, N, C].create)
    upsert = blocking(AsyncRecords[R, N, C].upsert)
    get = blocking(AsyncRecords[R, N, C].get)
    find = blocking(AsyncRecords[R, N, C].find)
    list = blocking(AsyncRecords[R, N, C].list)
    count = blocking(AsyncRecords[R, N, C].count)
    update = blocking(AsyncRecords[R, N, C].update)
    delete = blocking(AsyncRecords[R, N, C].delete)


class SoftRecords(Records[R, N, C]):
    """Records whose deletion can be undone, for synchronous programs."""

    restore = blocking(AsyncSoftRecords[R, N, C].restore)
