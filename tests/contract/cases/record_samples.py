"""Sample values for any record store, generated from its types, so that new stores need no code here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from msgspec import UNSET, Struct, structs

from holdfast.core.crypto import Secret
from holdfast.core.records import AsyncRecords, AsyncSecretRecords, AsyncSoftRecords, Records
from holdfast.core.records.fields import (
    AtLeast,
    AtMostOne,
    Field,
    Format,
    Limited,
    Names,
    Natural,
    OnlyFor,
    References,
    Tags,
    Url,
    choices,
)
from holdfast.handles import Holdfast
from tests.contract.cases.world import uuid_of

Store = AsyncRecords[Any, Any, Any]


@cache
def record_stores() -> dict[str, type[Store]]:
    """Return every record store of a tenant, by its name on a handle."""
    with Holdfast(":memory:") as holdfast:
        handle = holdfast.tenant("acme")
        result = [(name, getattr(handle, name)) for name in dir(handle) if not name.startswith("_")]
        return {name: type(store._async) for name, store in result if isinstance(store, Records)}


@cache
def varied_stores() -> dict[str, type[Store]]:
    """Return a few record stores that together have all that a driver sees of any."""
    chosen: dict[str, type[Store]] = {}
    stores = record_stores()
    missing: set[object] = set().union(*map(_features, stores.values()))
    while missing:
        name = max(stores, key=lambda name: len(_features(stores[name]) & missing))
        chosen[name] = stores[name]
        missing -= _features(stores[name])
    return chosen


def _features(kind: type[Store]) -> set[object]:
    """Return what a driver sees of a store: values of each kind, with the markers that decide how they are stored and compared,
    and a key of one column or of several."""
    declared = kind.declared
    columns = {(item.kind, type(marker)) for item in declared.fields.values() for marker in (None, *item.markers)}
    optional = {("optional", item.kind) for item in declared.fields.values() if item.optional}
    shape = {("key", len(declared.key) > 1), ("natural", bool(declared.natural))}
    shape |= {("live references", any(field.marker(References).live for field in declared.references))}
    return {*columns, *optional, *shape, ("soft", issubclass(kind, AsyncSoftRecords))}


class Samples:
    """Sample values for one store. Equal numbers give equal values; different numbers give different values."""

    def __init__(self, kind: type[Store]) -> None:
        self.kind, self.declared = kind, kind.declared
        self.is_soft = issubclass(kind, AsyncSoftRecords)
        self.has_secrets = issubclass(kind, AsyncSecretRecords)
        self.has_version = "version" in self.declared.fields
        self.can_be_renamed = any(item in self.declared.editable for item in self.declared.natural)
        self.texts = [
            new_field
            for new_field in self.declared.new_fields
            if new_field.marker(Limited)
            and new_field.kind == "text"
            and not any(new_field.marker(kind) for kind in (References, Url, OnlyFor, Format))
        ]

    def new(self, number: int = 1, **values: Any) -> Any:
        """Return a new record."""
        created = {new_field.name: value_of(new_field, number) for new_field in self.declared.new_fields}
        created |= self._variant(number, created)
        hints = get_type_hints(self.kind.new_type)
        created |= {name: [_part(_item_type(hints[name]), number)] for name in self.kind.extra}
        return self.kind.new_type(**(created | values))

    def setting(self, field: Field, number: int, value: Any = UNSET) -> dict[str, Any]:
        """Return a value for one field, with the fields that must change with it."""
        values = {field.name: value_of(field, number) if value is UNSET else value}
        selectors = {item.marker(OnlyFor).of for item in self.declared.variants}
        if field.marker(OnlyFor):
            values[field.marker(OnlyFor).of] = field.marker(OnlyFor).values[0]
        elif field.name not in selectors:
            return values
        return self._variant(number, values) | values

    def _variant(self, number: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values for the fields that only some records can have; empty ones for all other records."""
        return {
            item.name: value_of(item, number)
            if values[item.marker(OnlyFor).of] in item.marker(OnlyFor).values
            else empty_value(item)
            for item in self.declared.variants
            if item.marker(OnlyFor).of in values
        }

    def change(self, number: int = 2, only: Sequence[str] | None = None) -> Any:
        """Return a change of all editable fields except the name, or of some of them."""
        expected = [item.name for item in self.plain_editable()] if only is None else only
        values = {name: value_of(self.declared.fields[name], number) for name in expected}
        return self.kind.change_type(**values | self._variant(number, values))

    def plain_editable(self) -> list[Field]:
        """The editable fields that are not part of the record's name."""
        return [item for item in self.declared.editable if not item.marker(Natural)]

    def fixed_names(self, record: Struct) -> dict[str, Any]:
        """The parts of a record's name that are not editable."""
        fixed = [item for item in self.declared.natural if item not in self.declared.editable]
        return {item.name: getattr(record, item.name) for item in fixed}

    def key(self, record: Struct) -> tuple[str, ...]:
        """Return the key of a record, or of a new one."""
        return tuple(getattr(record, item.name) for item in self.declared.key)

    def key_part(self, name: str, number: int) -> Any:
        """Return a value for a part of the key."""
        return value_of(self.declared.fields[name], number)

    def name(self, record: Struct) -> tuple[str, ...]:
        """Return the arguments of ``find``."""
        return tuple(getattr(record, item.name) for item in self.declared.natural or self.declared.key)

    def place(self, record: Struct) -> tuple[Any, ...]:
        """Return the sort key of a record."""
        return tuple(getattr(record, item.name) for item in self.declared.order)


def _item_type(hint: Any) -> type[Struct]:
    """Return the type of the items of a list, or of a list that can be unset."""
    lists = [arg for arg in (hint, *get_args(hint)) if get_origin(arg) is list]
    item: type[Struct] = get_args(lists[0])[0]
    return item


def _part(kind: type[Struct], number: int) -> Struct:
    """Return an item that a record has in addition to its fields, such as a tool of a tool server."""
    return kind(**{field.name: f"{field.name} {number}" for field in structs.fields(kind) if field.required})


FLAGGED = 2
"""The number of the sample that has the flag of at most one record."""
REFERENCED = 3
"""The number of records that the references of samples name."""


def value_of(field: Field, number: int) -> Any:
    """Return a value for a field. ``create_referenced`` creates the records that references name."""
    if field.marker(References):
        _, target = referenced_store(field)
        return value_of(target.declared.key[0], number % REFERENCED)
    if field.marker(Names) or field.marker(Tags):
        return [f"{field.name} {number}", "shared"]
    if field.kind == "plain":
        allowed = choices(field.type)
        return allowed[number % len(allowed)]
    if field.kind == "secret":
        return Secret({"token": f"{field.name} {number}"} if _is_object(field) else f"{field.name} {number}")
    if field.marker(Url):
        return f"https://example.com/{number:03}"
    if field.marker(Format):
        return f"{field.marker(Format).example}{number:03}"
    if field.marker(AtMostOne):
        return number == FLAGGED
    if field.marker(AtLeast):
        return field.marker(AtLeast).minimum + abs(number) % 1_000
    if get_origin(field.type) is list:
        return [f"{field.name} {number}", ""]
    created: dict[str, Any] = {
        "id": uuid_of(f"{field.name} {number}"),
        "text": f"{field.name} {number:03}",
        "number": number + 0.5 if field.type is float else number,
        "bool": bool(number % 2),
        "time": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number),
        "json": {"number": number, "text": f"{field.name} {number}"},
    }
    return created[field.kind]


def referenced_store(field: Field) -> tuple[str, type[Store]]:
    """Return the name and the class of the store whose records a field refers to."""
    table = field.marker(References).table
    return next((name, store) for name, store in record_stores().items() if store.table == table)


async def create_referenced(tenant: Any, kind: type[Store]) -> None:
    """Create the records that samples of a store refer to."""
    for field in kind.declared.references:
        name, target = referenced_store(field)
        await create_referenced(tenant, target)
        for number in range(REFERENCED):
            await getattr(tenant, name).upsert(Samples(target).new(number))


def empty_value(field: Field) -> Any:
    """Return the value of a field that a record does not have."""
    if field.kind in ("text", "json"):
        return "" if field.kind == "text" else get_origin(field.type)()
    return None


def _is_object(field: Field) -> bool:
    """Return whether a secret is an object and not a text."""
    return "dict" in str(field.type)


def large_value(field: Field, most: int) -> Any:
    """Return a value of about this size."""
    if field.kind == "secret":
        return Secret({"x": "x" * most} if _is_object(field) else "x" * most)
    if field.marker(Url):
        return "https://example.com/".ljust(most, "x")
    if field.marker(Format):
        return field.marker(Format).example.ljust(most, "x")
    if field.kind == "number":
        return most
    if get_origin(field.type) is list:
        return ["x" * most]
    return "x" * most if field.kind == "text" else {"x": "x" * most}


def wrong_values(field: Field) -> list[Any]:
    """Return values that are not of the field's type."""
    anything: dict[str, list[Any]] = {
        "id": ["not an id", 7],
        "text": [7, b"bytes", ["list"]],
        "plain": ["nothing of the kind", 7],
        "number": [
            "7",
            True,
            float("nan") if field.type is float else 2**63,
            *([field.marker(AtLeast).minimum - 1] if field.marker(AtLeast) else []),
        ],
        "bool": [1, "true"],
        "time": ["2026-01-01", datetime(2026, 1, 1)],  # noqa: DTZ001
        "json": ["text", 7, {1: 2}],
        "secret": ["text", {"token": "x"}, Secret("text" if _is_object(field) else {"x": 1})],
    }
    more: list[Any] = ["\x00"] if field.marker(Format) else []
    if field.marker(Url):
        more += [
            "text",
            "/path",
            "ftp://example.com",
            "https://",
            "https://u:p@example.com",
            "https://a b",
            "http://a:x",
        ]
    if field.marker(AtLeast):
        more.append(field.marker(AtLeast).minimum - 1)
    if get_origin(field.type) is list and not field.is_list_of_names:
        more.append([7])
    limited = field.marker(Limited)
    empty = [""] if field.kind == "text" and not limited.empty else []
    return [*anything[field.kind], *more, *empty, *([] if field.optional else [None])]


def given(new: Struct) -> dict[str, Any]:
    """Return the fields of a Struct that are set."""
    return {name: value for name, value in structs.asdict(new).items() if value is not UNSET}
