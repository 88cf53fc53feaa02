"""Record stores: the methods that every plain store inherits, typed by its row, ``New...`` and ``...Change`` types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from msgspec import UNSET, Struct

from ...engines.protocol import Connection
from ...errors import AlreadyExists, InvalidFilter, InvalidInput
from .. import scope as scopes
from .. import text
from ..actor_context import ActorContext
from ..filters import Filter, FilterColumns
from ..paging import Page, page, rows_to_read
from ..registration import register_tenant
from ..store import reads, writes_with_actor
from .fields import DefaultsTo, Field, declare, filter_columns
from .record_rows import R, RecordRows
from .references import check_references, live_condition
from .secrets import encrypted_column, merge_changes
from .statements import GeneratedQueries, lower_ascii, search_condition
from .values import check_version, cursor_of, cursor_params, encode_row_value, encode_value, is_same, with_article
from .variants import check_variants

N = TypeVar("N", bound=Struct)
C = TypeVar("C", bound=Struct)


class AsyncRecords(RecordRows[R], Generic[R, N, C]):
    """Base of stores that keep records of one kind in one tenant.

    A subclass names its types and its table; ``core/records/fields.py`` explains the types::

        class AsyncProviders(AsyncRecords[Provider, NewProvider, ProviderChange]):
            table, noun = "providers", "provider"

    To do more in the same transaction, override ``_after_save``, ``_before_delete`` and ``_on_change``.
    """

    table: ClassVar[str]
    order: ClassVar[Sequence[str]] = ()
    """Fields that a list is sorted by instead of the key; with ``-`` before each, in descending order."""
    live: ClassVar[str] = ""
    """An SQL condition that a record must meet to be visible, in addition to those of the records that it names."""
    extra: ClassVar[Sequence[str]] = ()
    """Fields of the ``New...`` and ``...Change`` types that are not columns; ``_after_save`` handles them."""

    new_type: ClassVar[type[Struct]]
    change_type: ClassVar[type[Struct]]
    filters: ClassVar[FilterColumns]
    _soft: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        base = next(base for base in cls.__orig_bases__ if issubclass(get_origin(base) or object, AsyncRecords))  # type: ignore[attr-defined]
        row, cls.new_type, cls.change_type = get_args(base)
        if isinstance(row, TypeVar):
            return  # not a store, but another base of stores
        cls.declared = declare(row, cls.new_type, cls.change_type, cls.order, cls.extra)
        cls.nouns, cls.a_noun = getattr(cls, "nouns", f"{cls.noun}s"), with_article(cls.noun)
        conditions = [cls.live, *(live_condition(cls.table, field) for field in cls.declared.references)]
        live = " AND ".join(condition for condition in conditions if condition)
        cls.queries = GeneratedQueries(cls.table, cls.declared, live=live, soft=cls._soft)
        cls.filters = filter_columns(cls.declared)
        cls.secrets = {field.column: encrypted_column(cls.table, field, cls.declared) for field in cls.declared.secrets}

    @writes_with_actor
    async def create(self, connection: Connection, acting: ActorContext, new: N) -> R:
        """Create a record. Without a key it gets a new id.

        With a key the call can be repeated: if the same record exists already, it is returned.

        Raises:
            AlreadyExists: another record has this key or name.
        """
        new = self._checked(new)
        params = self._now(self._new_values(new, acting))
        row = await self._insert(connection, acting, params)
        if row is None:
            row = await self._one(connection, self.queries.get, params)
            if row is None or not all(is_same(field, params[field.column], row) for field in self.declared.new_fields):
                raise await self._creation_conflict(connection, params, row)
            return await self._change(connection, acting, row, {}, new)
        await self._after_save(connection, new, row)
        await self._on_change(connection, acting, "created", row, ())
        return row

    @writes_with_actor
    async def upsert(self, connection: Connection, acting: ActorContext, new: N) -> R:
        """Create a record, or change the one with this key or, without a key, this name. A deleted record becomes live again.

        Fields that cannot be changed keep their values, and so do fields that are unset. If nothing differs, nothing is
        written.

        Raises:
            AlreadyExists: another record has this name.
        """
        new = self._checked(new)
        params = self._now(self._new_values(new, acting))
        row = await self._insert(connection, acting, params)
        if row is None:
            by_name = bool(self.declared.natural) and all(
                getattr(new, field.name, UNSET) is UNSET for field in self.declared.key
            )
            row = await self._existing(connection, acting, params, by_name=by_name)
            if row is None:
                raise self._taken(params, "it has another key")
            names = {field.name for field in self.declared.editable if getattr(new, field.name, UNSET) is not UNSET}
            changes = {name: params[self.declared.fields[name].column] for name in names}
            return await self._change(connection, acting, row, changes, new)
        await self._after_save(connection, new, row)
        await self._on_change(connection, acting, "created", row, ())
        return row

    @reads
    async def get(self, connection: Connection, *key: str) -> R:
        """Return one record.

        Raises:
            NotFound: it does not exist.
        """
        row = await self._one(connection, self.queries.get, self._at(key))
        if row is None:
            raise self._missing(key)
        return row

    @reads
    async def find(self, connection: Connection, *name: str) -> R | None:
        """Return the record with this name, or ``None``. Records without a natural key are found by their key."""
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
        """List records that match all filters. With ``limit``, a page; its ``next`` is the cursor of the next page.

        Raises:
            InvalidFilter: a filter or the cursor does not belong to this list, or the records have no text to search.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        clause = self._clause(connection, where, search, params)
        query, order = self.queries.list, self.declared.order
        if cursor is not None:
            query = self.queries.list_after
            params |= cursor_params(cursor, self.table, order)
        rows = self._rows(connection, await query.all(connection, params, clause))
        return page(rows, limit, limits, self.nouns, lambda row: cursor_of(self.table, order, row))

    @reads
    async def count(self, connection: Connection, *, where: Sequence[Filter] = (), search: str | None = None) -> int:
        """Return the number of records that match all filters.

        Raises:
            InvalidFilter: a filter does not belong to this list, or the records have no text to search.
        """
        params = self._scope.params()
        row = await self.queries.count.one(connection, params, self._clause(connection, where, search, params))
        assert row is not None
        return int(row[0])

    @writes_with_actor
    async def update(
        self, connection: Connection, acting: ActorContext, *key: str, change: C, version: int | None = None
    ) -> R:
        """Change the fields that are set. With ``version``, only if the record still has that version.

        Raises:
            NotFound: the record does not exist.
            Conflict: it has another version.
            AlreadyExists: another record has this name.
        """
        changes = self._changes(change)
        row = await self._lock_row(connection, key, version)
        return await self._change(connection, acting, row, merge_changes(self.declared, row, changes), change)

    @writes_with_actor
    async def delete(self, connection: Connection, acting: ActorContext, *key: str, version: int | None = None) -> None:
        """Delete a record. With ``version``, only if it still has that version.

        Raises:
            NotFound: the record does not exist.
            Conflict: it has another version.
        """
        row = await self._lock_row(connection, key, version)
        params = self._at(key) | {"now_at": self._scope.clock.now_us()}
        if not self._soft:
            await self._before_delete(connection, acting, params)
            if self.declared.tags is not None:
                await self.queries.delete_tags.all(connection, params)
        await self.queries.delete.all(connection, params)
        await self._on_change(connection, acting, "deleted", row, ())

    def _prepare(self, new: N) -> N:
        """Check and complete a new record beyond what the types check; called before it is created."""
        return new

    async def _after_save(self, connection: Connection, given: Struct, row: R) -> Sequence[str]:
        """Called in the transaction of ``create``, ``upsert`` and ``update``, after the record was written.

        Returns the names of the ``extra`` fields that it changed.
        """
        return ()

    async def _before_delete(self, connection: Connection, acting: ActorContext, params: dict[str, Any]) -> None:
        """Called in the transaction of ``delete``, before a record is removed permanently; ``params`` contains its key."""

    def _subject(self, row: R) -> tuple[str, Sequence[str]]:
        """Return the noun and the key of a record, for the activity log."""
        return self.noun, [getattr(row, field.name) for field in self.declared.key]

    def _at(self, key: Sequence[str], fields: Sequence[Field] = ()) -> dict[str, Any]:
        """Return the parameters that identify a record, by its key or by these fields."""
        fields = fields or self.declared.key
        defaults = [self.declared.defaults.get(field.name, UNSET) for field in fields[len(key) :]]
        if len(key) > len(fields) or UNSET in defaults:
            names = ", ".join(field.name for field in fields)
            raise InvalidInput(
                f"{self.a_noun} is identified by {names}, not by {len(key)} values: {key!r}", field=fields[0].name
            )
        pairs = zip(fields, [*key, *defaults], strict=True)
        encoded = {field.column: encode_value(field, value, self._scope.limits, self.noun) for field, value in pairs}
        return self._scope.params(**encoded)

    def _checked(self, new: N) -> N:
        if not isinstance(new, self.new_type):
            expected = with_article(self.new_type.__name__)
            raise InvalidInput(f"{self.a_noun} is created from {expected}, not from {type(new).__name__}", field="new")
        return self._prepare(new)

    def _new_values(self, new: N, acting: ActorContext) -> dict[str, Any]:
        """Return the fields of a new record in their stored form, by column."""
        given = {field.name: getattr(new, field.name) for field in self.declared.new_fields}
        given |= {field.name: self._scope.ids.new() for field in self.declared.key if given[field.name] is UNSET}
        values: dict[str, Any] = {}
        for field in self.declared.new_fields:
            value, default = given[field.name], field.marker(DefaultsTo)
            if value is UNSET and default is not None:
                value = given[default.field] if default.field else getattr(acting, default.actor) or ""
            elif value is UNSET and field.optional:
                value = None
            values[field.column] = encode_value(field, value, self._scope.limits, self.noun)
        return values

    def _changes(self, change: C) -> dict[str, Any]:
        """Return the fields that a change sets, in their stored form, by name."""
        if not isinstance(change, self.change_type):
            expected = with_article(self.change_type.__name__)
            raise InvalidInput(
                f"{self.a_noun} is changed by {expected}, not by {type(change).__name__}", field="change"
            )
        values = [(field, getattr(change, field.name)) for field in self.declared.editable]
        limits = self._scope.limits
        return {
            field.name: encode_value(field, value, limits, self.noun) for field, value in values if value is not UNSET
        }

    def _now(self, values: dict[str, Any]) -> dict[str, Any]:
        return self._scope.params(**values, now_at=self._scope.clock.now_us())

    async def _insert(self, connection: Connection, acting: ActorContext, params: dict[str, Any]) -> R | None:
        """Insert a record; return ``None`` if its key or its name is taken."""
        await register_tenant(connection, params)
        await check_references(connection, self.queries.by_name, self.declared.references, params, self.noun)
        row = await self._write(connection, acting, self.queries.create, params)
        if row is not None:
            check_variants(self.declared, row, self.a_noun)
            await self._add_tags(connection, row)
        return row

    async def _existing(
        self, connection: Connection, acting: ActorContext, params: dict[str, Any], *, by_name: bool
    ) -> R | None:
        """Lock and return the record that has the key or name of a new one; restore it if it was deleted."""
        query = self.queries.lock_by_natural_key if by_name else self.queries.lock
        row = await self._one(connection, query, params)
        if row is None and self._soft and not by_name:
            row = await self._one(connection, self.queries.restore, params)
            if row is not None:
                await self._on_change(connection, acting, "restored", row, ())
        return row

    async def _lock_row(self, connection: Connection, key: Sequence[str], version: int | None) -> R:
        """Return a record, locked until the transaction ends, after checking its version."""
        row = await self._one(connection, self.queries.lock, self._at(key))
        if row is None:
            raise self._missing(key)
        self._check_version(row, key, version)
        return row

    def _check_version(self, row: R, key: Sequence[str], version: int | None) -> None:
        if version is not None and "version" not in self.declared.fields:
            raise InvalidInput(f"{self.nouns} have no versions; leave version out", field="version")
        check_version(getattr(row, "version", 0), version, self._named(key))

    async def _change(
        self, connection: Connection, acting: ActorContext, row: R, changes: dict[str, Any], given: Struct
    ) -> R:
        """Write the changes that differ from the record, which is locked, and the extra fields that were given."""
        fields = self.declared.fields
        different = [name for name, value in changes.items() if not is_same(fields[name], value, row)]
        if different:
            row = await self._update(connection, acting, row, changes, different)
        different += await self._after_save(connection, given, row)
        if different:
            await self._on_change(connection, acting, "changed", row, different)
        return row

    async def _update(
        self, connection: Connection, acting: ActorContext, row: R, changes: dict[str, Any], different: Sequence[str]
    ) -> R:
        columns = (*self.declared.key, *self.declared.natural, *self.declared.editable)
        values = {field.column: changes.get(field.name, UNSET) for field in columns}
        for field in columns:
            if values[field.column] is UNSET:
                values[field.column] = encode_row_value(field, getattr(row, field.name))
        params = self._now(values)
        changed_references = [field for field in self.declared.references if field.name in different]
        await check_references(connection, self.queries.by_name, changed_references, params, self.noun)
        try:
            changed = await self._write(connection, acting, self.queries.update, params)
        except AlreadyExists:
            raise self._taken(params, "choose another name") from None
        assert changed is not None  # the row is locked
        check_variants(self.declared, changed, self.a_noun)
        if self.declared.tags is not None and self.declared.tags.name in changes:
            await self.queries.delete_tags.all(connection, params)
            await self._add_tags(connection, changed)
        return changed

    async def _add_tags(self, connection: Connection, row: R) -> None:
        if self.declared.tags is None:
            return
        params = self._at([getattr(row, field.name) for field in self.declared.key])
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
            raise InvalidFilter(f"{self.nouns} have no text to search in; use a filter", field="search")
        term = scopes.name(search, "search", self._scope.limits, limit="query_chars")
        params["search"] = lower_ascii(term)
        return clause + search_condition(connection.dialect, self.declared.searchable)

    async def _creation_conflict(self, connection: Connection, params: dict[str, Any], row: R | None) -> AlreadyExists:
        """Return the error for a record that could not be created."""
        if row is not None:
            return self._taken(params, "update it, or use upsert", self.declared.key)
        if self._soft and await self.queries.lock_deleted.one(connection, params) is not None:
            return self._taken(params, "it was deleted; restore it, or use upsert", self.declared.key)
        return self._taken(params, "update it, or use upsert")
