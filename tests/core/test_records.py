"""Record stores on test tables with every kind of field, on both engines; and the detection of defects by their promises."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Annotated, Any, Literal
from unittest import mock

import apsw
import psycopg
import pytest
from msgspec import UNSET, Struct, UnsetType

from holdfast import FixedClock, Holdfast, Limits
from holdfast.core import filters, paging
from holdfast.core.crypto import PREFIX, Secret
from holdfast.core.encrypted_columns import _DECLARED
from holdfast.core.queries import Query
from holdfast.core.records import (
    AsyncRecords,
    AsyncSoftRecords,
    Filterable,
    Key,
    Limited,
    Metadata,
    Names,
    Natural,
    Records,
    Searchable,
    SoftRecords,
    Tags,
    statements,
    store,
    values,
)
from holdfast.core.rows import Column
from holdfast.engines.dialect import Dialect
from holdfast.errors import DecryptionFailed
from holdfast.ids import Id
from holdfast.sync_runner import step
from tests.contract.cases.record_promises import (
    PROMISES,
    Kit,
    values_over_a_limit_or_of_another_type_are_rejected,
)
from tests.contract.cases.records import SMALL
from tests.contract.legs import KEY


class Gadget(Struct, frozen=True):
    """A record with an id and a natural key, whose deletion can be undone."""

    id: Annotated[Id, Key()]
    shelf: Annotated[str, Natural(), Limited("name_bytes")]
    name: Annotated[str, Natural(), Limited("name_bytes", empty=False), Filterable(), Searchable()]
    colour: Annotated[Literal["red", "blue"], Filterable()]
    price: Annotated[int | None, Filterable()]
    weight: float
    is_active: Annotated[bool, Filterable()]
    parts: Annotated[list[str], Names("tools")]
    tags: Annotated[list[str], Tags("gadget_tags", "gadget_id")]
    extra: Annotated[dict[str, Any], Limited("metadata_bytes"), Metadata()]
    sold_at: Annotated[datetime | None, Filterable()]
    maker: Annotated[str, Column("made_by"), Limited("name_bytes"), Searchable()]
    code: Secret[str] | None
    version: int
    created_at: datetime
    updated_at: datetime


class NewGadget(Struct, frozen=True):
    """A gadget to create."""

    name: str
    id: str | UnsetType = UNSET
    shelf: str = ""
    colour: Literal["red", "blue"] = "red"
    price: int | None = None
    weight: float = 0.0
    is_active: bool = True
    parts: list[str] = []
    tags: list[str] = []
    extra: dict[str, Any] = {}
    sold_at: datetime | UnsetType | None = UNSET
    maker: str = ""
    code: Secret[str] | None = None


class GadgetChange(Struct, frozen=True):
    """The fields of a gadget to change."""

    name: str | UnsetType = UNSET
    colour: Literal["red", "blue"] | UnsetType = UNSET
    price: int | UnsetType | None = UNSET
    weight: float | UnsetType = UNSET
    is_active: bool | UnsetType = UNSET
    parts: list[str] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    extra: dict[str, Any] | UnsetType = UNSET
    sold_at: datetime | UnsetType | None = UNSET
    code: Secret[str] | UnsetType | None = UNSET


class AsyncGadgets(AsyncSoftRecords[Gadget, NewGadget, GadgetChange]):
    """Gadgets of one tenant."""

    table, noun = "gadgets", "gadget"


_DECLARED.pop(("gadgets", "code"))  # a table of this test only: rotation and exports must not include it


class Gadgets(SoftRecords[Gadget, NewGadget, GadgetChange]):
    """Gadgets of one tenant."""


class Entry(Struct, frozen=True):
    """A record with a composite key, newest first, without a version."""

    area: Annotated[str, Key(), Limited("name_bytes", empty=False), Filterable()]
    name: Annotated[str, Key(), Limited("name_bytes", empty=False)]
    kind: Annotated[str, Key(), Limited("name_bytes")]
    value: Annotated[dict[str, Any], Limited("metadata_bytes")]
    created_at: datetime


class NewEntry(Struct, frozen=True):
    """An entry to create."""

    area: str
    name: str
    kind: str = ""
    value: dict[str, Any] = {}


class EntryChange(Struct, frozen=True):
    """The fields of an entry to change."""

    value: dict[str, Any] | UnsetType = UNSET


class AsyncEntries(AsyncRecords[Entry, NewEntry, EntryChange]):
    """Entries of one tenant."""

    table, noun, nouns = "entries", "entry", "entries"
    order = ("-created_at",)
    live = "is_hidden = 0"


class Entries(Records[Entry, NewEntry, EntryChange]):
    """Entries of one tenant."""


TABLES = """
CREATE TABLE gadgets (tenant_id {text} NOT NULL, id {id} NOT NULL, shelf {text} NOT NULL, name {text} NOT NULL,
    colour {text} NOT NULL, price BIGINT, weight {float} NOT NULL, is_active {bool} NOT NULL, parts {json} NOT NULL,
    tags {json} NOT NULL, extra {json} NOT NULL, sold_at {time}, made_by {text} NOT NULL, code {text},
    version BIGINT NOT NULL DEFAULT 1, created_at {time} NOT NULL, updated_at {time} NOT NULL, deleted_at {time},
    PRIMARY KEY (tenant_id, id));
CREATE UNIQUE INDEX gadgets_name ON gadgets (tenant_id, shelf, name) WHERE deleted_at IS NULL;
CREATE TABLE gadget_tags (tenant_id {text} NOT NULL, tag {text} NOT NULL, gadget_id {id} NOT NULL,
    PRIMARY KEY (tenant_id, tag, gadget_id));
CREATE TABLE entries (tenant_id {text} NOT NULL, area {text} NOT NULL, name {text} NOT NULL, kind {text} NOT NULL,
    value {json} NOT NULL, created_at {time} NOT NULL, is_hidden BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, area, name, kind));
"""
SQLITE = {"text": "TEXT", "id": "TEXT", "json": "TEXT", "bool": "INTEGER", "time": "INTEGER", "float": "REAL"}
POSTGRES = {
    "text": 'TEXT COLLATE "C"',
    "id": "UUID",
    "json": "JSONB",
    "bool": "BOOLEAN",
    "time": "TIMESTAMPTZ",
    "float": "DOUBLE PRECISION",
}
STORES: dict[str, tuple[Any, Any]] = {"gadgets": (AsyncGadgets, Gadgets), "entries": (AsyncEntries, Entries)}
Kits = Callable[[str], Kit]


class Awaited:
    """A synchronous store whose methods can be awaited, as the promises await them."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        async def method(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._found, name)(*args, **kwargs)

        return method


def kit_of(holdfast: Holdfast, clock: FixedClock, name: str, limits: Limits) -> Kit:
    kind, face = STORES[name]
    acme, zenith = (holdfast.tenant(value) for value in ("acme", "zenith"))
    mine, theirs = (Awaited(face(kind(value._engine, value._scope))) for value in (acme, zenith))
    return Kit(kind, "acme", mine, theirs, clock, limits)


def in_memory(name: str, limits: Limits | None = None) -> Generator[Kit]:
    """A kit on SQLite in memory."""
    clock = FixedClock()
    with Holdfast(":memory:", clock=clock, limits=limits, encryption_key=KEY) as holdfast:
        raw: apsw.Connection = holdfast._engine._connection  # type: ignore[attr-defined]
        raw.execute(TABLES.format(**SQLITE))
        yield kit_of(holdfast, clock, name, limits or Limits())


@pytest.fixture(params=["sqlite", "postgres"])
def kits(request: pytest.FixtureRequest) -> Iterator[Callable[..., Kit]]:
    clock = FixedClock()
    opened: list[Any] = []

    def kit(name: str, limits: Limits | None = None) -> Kit:
        if request.param == "sqlite":
            result = in_memory(name, limits)
            opened.append(result)
            return next(result)
        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLES.format(**POSTGRES).encode())
        opened.append(Holdfast(url, clock=clock, limits=limits, encryption_key=KEY))
        return kit_of(opened[-1], clock, name, limits or Limits())

    yield kit
    for item in opened:
        item.close()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", STORES)
def test_a_declared_store_keeps_every_promise(kits: Callable[..., Kit], name: str, promise: Any) -> None:
    step(promise(kits(name)))


@pytest.mark.parametrize("name", STORES)
def test_a_declared_store_checks_every_limit(kits: Callable[..., Kit], name: str) -> None:
    step(values_over_a_limit_or_of_another_type_are_rejected(kits(name, SMALL)))


def query(kind: type[AsyncRecords[Any, Any, Any]], name: str, old: str, new: str) -> AbstractContextManager[Any]:
    """Patch a statement of a store."""
    result = kind.queries.by_name[name]
    texts = {dialect: text.replace(old, new) for dialect, text in result.texts.items()}
    assert texts != result.texts, f"{name} does not contain {old!r}: {result.texts[Dialect.SQLITE]}"
    planted: AbstractContextManager[Any] = mock.patch.multiple(result, **vars(Query(name, texts)))
    return planted


def unchecked(field: Any, value: Any, *more: Any) -> Any:
    return values.encode_row_value(field, value)


TENANT = "tenant_id = :tenant_id AND "
LIVE = "deleted_at IS NULL AND "
DEFECTS: dict[str, tuple[str, AbstractContextManager[Any]]] = {
    **{
        f"{name} of gadgets forgets the tenant": ("gadgets", query(AsyncGadgets, name, TENANT, ""))
        for name in ("get", "lock", "find", "list", "list_after", "count", "update", "delete", "restore", "delete_tags")
    },
    **{
        f"{name} of entries forgets the tenant": ("entries", query(AsyncEntries, name, TENANT, ""))
        for name in ("get", "lock", "list", "list_after", "count", "update", "delete")
    },
    **{
        f"{name} shows deleted records": ("gadgets", query(AsyncGadgets, name, LIVE, ""))
        for name in ("get", "lock", "find")
    },
    **{
        f"{name} lists deleted records": ("gadgets", query(AsyncGadgets, name, "deleted_at IS NULL", "TRUE"))
        for name in ("list", "count")
    },
    "a deletion that removes a gadget": (
        "gadgets",
        query(AsyncGadgets, "delete", "UPDATE gadgets SET deleted_at = :now_at", "DELETE FROM gadgets"),
    ),
    "a restoration that counts as a change": (
        "gadgets",
        query(AsyncGadgets, "restore", "= NULL", "= NULL, updated_at = updated_at + 1"),
    ),
    "a version that is not compared": ("gadgets", mock.patch.object(AsyncGadgets, "_check_version")),
    "a version that stays": ("gadgets", query(AsyncGadgets, "update", "version = version + 1, ", "")),
    "a change without its time": ("gadgets", query(AsyncGadgets, "update", "updated_at = :now_at", "tags = :tags")),
    "a change of every gadget": ("gadgets", query(AsyncGadgets, "update", " AND id = :id", "")),
    "a change of a part of the key": ("entries", query(AsyncEntries, "update", " AND kind = :kind", "")),
    "a deletion by a part of the key": ("entries", query(AsyncEntries, "delete", " AND name = :name", "")),
    "a page that starts at its cursor": ("gadgets", query(AsyncGadgets, "list_after", "(id) >", "(id) >=")),
    "a cursor of a part of the order": (
        "entries",
        query(AsyncEntries, "list_after", "(created_at, area, name", "(created_at, name, area"),
    ),
    "the other way round": ("entries", query(AsyncEntries, "list", " DESC", "")),
    "pages the other way round": ("entries", query(AsyncEntries, "list_after", "<", ">")),
    "any cursor": ("gadgets", mock.patch.object(values, "decode_cursor", return_value=[""])),
    "pages that never end": (
        "gadgets",
        mock.patch.object(store, "page", lambda rows, limit, *more: paging.Page(rows[:limit], limit and more[-1](rows[0]))),
    ),
    "pages that end early": ("gadgets", mock.patch.object(store, "page", lambda rows, limit, *more: paging.Page(rows[:limit]))),
    "a filter that is ignored": ("gadgets", mock.patch.object(filters.FilterColumns, "compile", return_value="")),
    "a search with case": ("gadgets", mock.patch.object(store, "lower_ascii", lambda text: text)),
    "a search of the first field only": (
        "gadgets",
        mock.patch.object(store, "search_condition", lambda dialect, fields: statements.search_condition(dialect, fields[:1])),
    ),
    "everything is the same": ("gadgets", mock.patch.object(store, "is_same", return_value=True)),
    "nothing is the same": ("gadgets", mock.patch.object(store, "is_same", return_value=False)),
    "tags that stay": ("gadgets", query(AsyncGadgets, "delete_tags", "tenant_id =", "FALSE AND tenant_id =")),
    "tags that are not kept": ("gadgets", mock.patch.object(AsyncGadgets, "_add_tags", mock.AsyncMock())),
    "creating replaces": (
        "gadgets",
        query(AsyncGadgets, "create", "DO NOTHING", "(tenant_id, id) DO UPDATE SET name = excluded.name"),
    ),
    "an upsert that renews the time of creation": (
        "entries",
        query(AsyncEntries, "update", "SET value", "SET created_at = :now_at, value"),
    ),
    "an upsert that leaves deleted records deleted": (
        "gadgets",
        query(AsyncGadgets, "restore", "deleted_at IS NOT NULL", "FALSE"),
    ),
    "values that are not checked": ("gadgets", mock.patch.object(store, "encode_value", unchecked)),
    "limits that are not checked": ("gadgets", mock.patch.object(Limits, "check")),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_promises_detect(defect: str) -> None:
    name, planted = DEFECTS[defect]
    with planted:
        for promise in PROMISES:
            for kit in in_memory(name):
                try:
                    step(promise(kit))
                except Exception:
                    return
        for kit in in_memory(name, SMALL):
            with pytest.raises(Exception):  # noqa: B017
                step(values_over_a_limit_or_of_another_type_are_rejected(kit))


def test_a_secret_is_stored_encrypted_for_its_row_alone() -> None:
    with Holdfast(":memory:", encryption_key=KEY) as holdfast:
        raw: Any = holdfast._engine._connection  # type: ignore[attr-defined]
        raw.execute(TABLES.format(**SQLITE))
        acme = holdfast.tenant("acme")
        gadgets = Gadgets(AsyncGadgets(acme._engine, acme._scope))
        one, other = (gadgets.create(NewGadget(name, code=Secret(f"{name} code"))) for name in "ab")
        encoded = [code for (code,) in raw.execute("SELECT code FROM gadgets ORDER BY name")]
        assert all(code.startswith(PREFIX) and "code" not in code for code in encoded)
        raw.execute("UPDATE gadgets SET code = ? WHERE id = ?", (encoded[0], other.id))
        moved = gadgets.get(other.id).code
        assert moved is not None
        with pytest.raises(DecryptionFailed):
            moved.reveal()
        raw.execute("UPDATE gadgets SET code = 'plain' WHERE id = ?", (one.id,))
        assert gadgets.get(one.id).code == Secret("plain"), "stored before a key was configured"
        gadgets.update(one.id, change=GadgetChange(price=3))
        ((code,),) = raw.execute("SELECT code FROM gadgets WHERE id = ?", (one.id,))
        assert code.startswith(PREFIX), "encrypted with the next update"


def test_the_promises_hold_without_a_defect() -> None:
    for name in STORES:
        for kit in in_memory(name, SMALL):
            step(values_over_a_limit_or_of_another_type_are_rejected(kit))
