"""The promises of every record store. ``records.py`` checks them on every store of a handle."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec import UNSET, structs

from holdfast.clock import FixedClock, from_us
from holdfast.core.crypto import Secret
from holdfast.core.filters import column, meta
from holdfast.core.records.fields import Field, Filterable, Limited, Metadata, Names, References, Searchable, Tags
from holdfast.errors import AlreadyExists, Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from tests.contract.cases.record_samples import Samples, Store, given, large_value, value_of, wrong_values
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS, documents, same
from tests.contract.cases.world import flat, raises


class Kit:
    """One record store, opened for two tenants."""

    def __init__(
        self, kind: type[Store], tenant: str, store: Any, other: Any, clock: FixedClock, limits: Limits
    ) -> None:
        self.kind, self.tenant, self.store, self.other, self.clock = kind, tenant, store, other, clock
        self.limits = limits
        self.samples = Samples(kind)
        self.declared = kind.declared

    @property
    def now(self) -> Any:
        """The current time in its stored form."""
        return from_us(self.clock.now_us())


Promise = Callable[[Kit], Coroutine[Any, Any, None]]


async def records_are_returned_as_they_were_created(kit: Kit) -> None:
    """create, get, find and list return every value, for any text."""
    created = []
    for number, text in enumerate(TEXTS):
        strange = {item.name: text for item in kit.samples.texts}
        new = kit.samples.new(number, **strange)
        row = await kit.store.create(new)
        for name, value in given(new).items():
            if name in kit.declared.fields:
                existing = getattr(row, name)
                assert existing == value if isinstance(value, Secret) else same(existing, value), (
                    f"{name}: {existing!r}, not {value!r}"
                )
        for name, value in (("version", 1), ("created_at", kit.now), ("updated_at", kit.now)):
            assert name not in kit.declared.fields or getattr(row, name) == value, name
        assert await kit.store.get(*kit.samples.key(new)) == row
        assert await kit.store.find(*kit.samples.name(new)) == row
        created.append(row)
    assert sorted(await kit.store.list(), key=kit.samples.key) == sorted(created, key=kit.samples.key)
    for field in kit.declared.new_fields:
        if field.marker(Metadata):
            row = await kit.store.create(kit.samples.new(-1, **{field.name: documents()}))
            assert same(getattr(row, field.name), documents())


async def records_without_a_key_get_a_new_one(kit: Kit) -> None:
    """The store sets fields that the caller leaves out."""
    optional = {field.name for field in structs.fields(kit.kind.new_type) if not field.required}
    generated = [
        item.name for item in kit.declared.key if item.name in optional and item.name not in kit.declared.defaults
    ]
    if not generated:
        return
    created = [await kit.store.create(kit.samples.new(number, **dict.fromkeys(generated, UNSET))) for number in (1, 2)]
    assert kit.samples.key(created[0]) != kit.samples.key(created[1])
    required = {name: value for name, value in given(kit.samples.new(3)).items() if name not in optional}
    plain = await kit.store.create(kit.kind.new_type(**required))
    assert await kit.store.get(*kit.samples.key(plain)) == plain


async def create_can_be_repeated_but_replaces_nothing(kit: Kit) -> None:
    """The same key with the same values returns the record; with other values it is rejected."""
    row = await kit.store.create(kit.samples.new(1))
    kit.clock.advance(1)
    assert await kit.store.create(kit.samples.new(1)) == row
    for field in kit.declared.new_fields:
        if field in kit.declared.key:
            continue
        with raises(AlreadyExists, noun=kit.kind.noun):
            await kit.store.create(kit.samples.new(1, **kit.samples.setting(field, 2)))
    assert await kit.store.list() == [row]
    if kit.declared.natural:
        names = {item.name: getattr(row, item.name) for item in kit.declared.natural}
        with raises(AlreadyExists, noun=kit.kind.noun):
            await kit.store.create(kit.samples.new(2, **names))
        assert await kit.store.count() == 1


async def upsert_creates_or_changes(kit: Kit) -> None:
    """A missing record is created; an existing one is changed in its editable fields only."""
    row = await kit.store.upsert(kit.samples.new(1))
    kit.clock.advance(1)
    assert await kit.store.upsert(kit.samples.new(1)) == row, "nothing differs"
    key = {item.name: getattr(row, item.name) for item in kit.declared.key}
    names = {item.name: getattr(row, item.name) for item in kit.declared.natural}
    changed = await kit.store.upsert(kit.samples.new(2, **key, **names))
    expected = structs.asdict(row) | given(kit.samples.change(2))
    assert structs.asdict(changed) == expected | _stamped(kit, row)
    if kit.declared.natural:
        unset = {item.name: UNSET for item in kit.declared.key}
        assert await kit.store.upsert(kit.samples.new(2, **unset, **names)) == changed, "found by its name"
    if kit.samples.can_be_renamed:
        other = await kit.store.create(kit.samples.new(3, **kit.samples.fixed_names(row)))
        with raises(AlreadyExists, noun=kit.kind.noun):
            key = {item.name: getattr(other, item.name) for item in kit.declared.key}
            await kit.store.upsert(kit.samples.new(1, **key))
        await kit.store.delete(*kit.samples.key(other))
    assert await kit.store.list() == [changed]


async def an_update_changes_the_fields_that_are_set(kit: Kit) -> None:
    """Other fields stay; an update without a difference writes nothing."""
    row = await kit.store.create(kit.samples.new(1))
    bystander = await kit.store.create(kit.samples.new(9, **kit.samples.fixed_names(row)))
    key = kit.samples.key(row)
    for number, field in enumerate(kit.samples.plain_editable(), 2):
        kit.clock.advance(1)
        values = kit.samples.setting(field, number if field.kind not in ("bool", "plain") else 2)
        change = kit.kind.change_type(**values)
        before, row = row, await kit.store.update(*key, change=change)
        assert structs.asdict(row) == structs.asdict(before) | values | _stamped(kit, before), field.name
        kit.clock.advance(1)
        assert await kit.store.update(*key, change=change) == row, field.name
        assert await kit.store.get(*key) == row, field.name
    assert await kit.store.update(*key, change=kit.kind.change_type()) == row
    assert await kit.store.get(*kit.samples.key(bystander)) == bystander
    with raises(NotFound, noun=kit.kind.noun):
        await kit.store.update(*kit.samples.key(kit.samples.new(5)), change=kit.samples.change())
    renamed = [item for item in kit.declared.natural if item in kit.declared.editable]
    for field in renamed:
        with raises(AlreadyExists, noun=kit.kind.noun):
            taken = {item.name: getattr(bystander, item.name) for item in renamed}
            await kit.store.update(*key, change=kit.kind.change_type(**taken))
        changed = await kit.store.update(*key, change=kit.kind.change_type(**{field.name: value_of(field, 7)}))
        assert await kit.store.find(*kit.samples.name(changed)) == changed


async def values_equal_only_in_python_are_changes(kit: Kit) -> None:
    """True is not 1, 1 is not 1.0, and the order of a list matters; that of an object's keys does not."""
    row = await kit.store.create(kit.samples.new(1))
    key = kit.samples.key(row)
    editable = [item for item in kit.samples.plain_editable() if item.kind == "json" and item.marker(Limited)]
    objects = [item for item in editable if isinstance(value_of(item, 1), dict)]
    for field in objects:
        seen: list[dict[str, Any]] = [{}, {"n": None}, {"n": 1}, {"n": 1.0}, {"n": True}, {"n": [1, 2]}, {"n": [2, 1]}]
        for value in seen:
            kit.clock.advance(1)
            before, row = row, await kit.store.update(*key, change=kit.kind.change_type(**{field.name: value}))
            assert row != before or not same(getattr(before, field.name), value), value
            assert same(getattr(await kit.store.get(*key), field.name), value), value
        await kit.store.update(*key, change=kit.kind.change_type(**{field.name: {"a": 1, "b": 2}}))
        row = await kit.store.get(*key)
        kit.clock.advance(1)
        assert await kit.store.update(*key, change=kit.kind.change_type(**{field.name: {"b": 2, "a": 1}})) == row


async def a_key_is_compared_as_a_whole(kit: Kit) -> None:
    """Records that differ in one part of their keys are different records."""
    row = await kit.store.create(kit.samples.new(1))
    key = {item.name: getattr(row, item.name) for item in kit.declared.key}
    near = [await kit.store.create(kit.samples.new(2, **key | {name: kit.samples.key_part(name, 2)})) for name in key]
    changed = await kit.store.update(*kit.samples.key(row), change=kit.samples.change(3))
    assert [await kit.store.get(*kit.samples.key(item)) for item in near] == near
    assert await kit.store.get(*kit.samples.key(row)) == changed
    await kit.store.delete(*kit.samples.key(row))
    assert [await kit.store.get(*kit.samples.key(item)) for item in near] == near
    assert await kit.store.count() == len(near)


async def an_outdated_version_changes_nothing(kit: Kit) -> None:
    """Compare and set: updates and deletions with another version are rejected."""
    row = await kit.store.create(kit.samples.new(1))
    key = kit.samples.key(row)
    if not kit.samples.has_version:
        with raises(InvalidInput, field="version"):
            await kit.store.update(*key, change=kit.samples.change(), version=1)
        return
    changed = await kit.store.update(*key, change=kit.samples.change(2), version=1)
    assert changed.version == 2
    for version in (1, 3):
        with raises(Conflict, saying=" 2", reason="version"):
            await kit.store.update(*key, change=kit.samples.change(3), version=version)
        with raises(Conflict, saying=kit.kind.noun, reason="version"):
            await kit.store.delete(*key, version=version)
    for wrong in ("2", 2.0, True):
        with raises(InvalidInput):
            await kit.store.update(*key, change=kit.samples.change(3), version=wrong)
    assert await kit.store.get(*key) == changed
    await kit.store.delete(*key, version=2)
    assert await kit.store.list() == []


async def deleted_records_are_invisible_and_soft_deletions_can_be_undone(kit: Kit) -> None:
    """No method returns a deleted record; where deletion can be undone, it is restored unchanged."""
    row, stays = await kit.store.create(kit.samples.new(1)), await kit.store.create(kit.samples.new(2))
    key = kit.samples.key(row)
    await kit.store.delete(*key)
    assert await kit.store.list() == [stays]
    assert await kit.store.count() == 1
    assert await kit.store.find(*kit.samples.name(row)) is None
    calls = [kit.store.get, kit.store.delete, partial(kit.store.update, change=kit.samples.change())]
    for call in calls:
        with raises(NotFound, noun=kit.kind.noun, key=str(key[0])):
            await call(*key)
    if not kit.samples.is_soft:
        again = await kit.store.create(kit.samples.new(1))
        assert kit.samples.key(again) == key
        return
    assert await kit.store.restore(*key) == row
    assert await kit.store.restore(*key) == row, "a live record is returned unchanged"
    assert await kit.store.get(*key) == row
    assert await kit.store.count() == 2
    with raises(NotFound, noun=kit.kind.noun):
        await kit.store.restore(*kit.samples.key(kit.samples.new(7)))
    await kit.store.delete(*key)
    if kit.declared.natural:
        names = {item.name: getattr(row, item.name) for item in kit.declared.natural}
        namesake = await kit.store.create(kit.samples.new(8, **names))
        assert await kit.store.find(*kit.samples.name(row)) == namesake
        with raises(AlreadyExists, noun=kit.kind.noun):
            await kit.store.restore(*key)
        await kit.store.delete(*kit.samples.key(namesake))
    revived = await kit.store.upsert(kit.samples.new(1))
    assert structs.replace(revived, **_stamps(row)) == row, "upsert makes a deleted record live again"


async def lists_are_sorted_filtered_and_paged(kit: Kit) -> None:
    """Pages of any size contain the same records in the declared order; unknown filters are rejected."""
    for place, number in enumerate((4, 2, 6, 1, 5, 3)):
        kit.clock.advance(place % 2)  # some were created at the same time
        await kit.store.create(kit.samples.new(number))
    rows = await kit.store.list()
    assert len(rows) == await kit.store.count() == 6
    assert [*rows] == sorted(rows, key=kit.samples.place, reverse=kit.declared.descending)
    for limit in range(1, 8):
        pages = [await kit.store.list(limit=limit)]
        while pages[-1].next is not None:
            assert len(pages) < 10, "the pages do not end"
            pages.append(await kit.store.list(limit=limit, cursor=pages[-1].next))
        assert flat(pages) == rows, f"pages of {limit}"
    for cursor in GARBAGE_CURSORS:
        with raises(InvalidFilter):
            await kit.store.list(cursor=cursor)
    for wrong in (0, -1, "3", True):
        with raises(InvalidInput):
            await kit.store.list(limit=wrong)
    await _filters_choose(kit, rows)
    with raises(InvalidFilter, saying="no_such_field", field="column"):
        await kit.store.list(where=[column("no_such_field").eq(1)])
    with raises(InvalidFilter):
        await kit.store.count(where="text")


async def _filters_choose(kit: Kit, rows: Sequence[Any]) -> None:
    for field in kit.declared.fields.values():
        wanted = getattr(rows[2], field.name)
        if field.marker(Filterable):
            expected = [row for row in rows if getattr(row, field.name) == wanted]
            assert await kit.store.list(where=[column(field.name).eq(wanted)]) == expected, field.name
            assert await kit.store.count(where=[column(field.name).eq(wanted)]) == len(expected), field.name
            page = await kit.store.list(where=[column(field.name).ne(wanted)], limit=2)
            rest = await kit.store.list(where=[column(field.name).ne(wanted)], limit=10, cursor=page.next)
            assert flat([page, rest if page.next else []]) == [row for row in rows if row not in expected], field.name
        elif not field.marker(Tags):
            with raises(InvalidFilter, saying=field.name, field="column"):
                await kit.store.list(where=[column(field.name).eq(wanted)])
        if field.marker(Tags):
            for tag in wanted:
                expected = [row for row in rows if tag in getattr(row, field.name)]
                assert await kit.store.list(where=[column(field.name).contains(tag)]) == expected
            with raises(InvalidFilter):
                await kit.store.list(where=[column(field.name).eq(wanted[0])])
        if field.marker(Metadata):
            assert await kit.store.list(where=[meta("number").eq(wanted["number"])]) == [rows[2]]
    searched = [field for field in kit.declared.fields.values() if field.marker(Searchable)]
    for field in searched:
        result = await kit.store.list(search=getattr(rows[2], field.name).upper())
        assert rows[2] in result
        assert len(result) == await kit.store.count(search=getattr(rows[2], field.name)) < len(rows)
    if not searched:
        with raises(InvalidFilter, field="search"):
            await kit.store.list(search="text")


async def records_are_found_by_their_current_tags(kit: Kit) -> None:
    """A record is found by its current tags only."""
    if kit.declared.tags is None:
        return
    name = kit.declared.tags.name
    row = await kit.store.create(kit.samples.new(1, **{name: ["b", "a", "b"]}))
    assert getattr(row, name) == ["b", "a"], "without duplicates, in the order given"
    if kit.declared.tags in kit.declared.editable:
        await kit.store.update(*kit.samples.key(row), change=kit.kind.change_type(**{name: ["c"]}))
        assert await kit.store.count(where=[column(name).contains("a")]) == 0
        assert await kit.store.count(where=[column(name).contains("c")]) == 1
    await kit.store.delete(*kit.samples.key(row))
    assert await kit.store.count(where=[column(name).contains("c")]) == 0


async def records_of_tenants_are_separate(kit: Kit) -> None:
    """The same keys and names in two tenants are two records."""
    row = await kit.store.create(kit.samples.new(1))
    key = kit.samples.key(row)
    assert await kit.other.list() == []
    assert await kit.other.count() == 0
    assert await kit.other.find(*kit.samples.name(row)) is None
    for call in (kit.other.get, kit.other.delete, partial(kit.other.update, change=kit.samples.change())):
        with raises(NotFound):
            await call(*key)
    if kit.samples.is_soft:
        await kit.store.delete(*key)
        with raises(NotFound):
            await kit.other.restore(*key)
        await kit.store.restore(*key)
    theirs = await kit.other.create(kit.samples.new(1))
    tags = kit.declared.tags
    await kit.other.update(*key, change=kit.samples.change(2))
    assert await kit.store.get(*key) == row
    await kit.store.create(kit.samples.new(2))
    assert len(await kit.other.list()) == await kit.other.count() == 1
    beyond = await kit.other.list(limit=3, cursor=(await kit.store.list(limit=1)).next)
    everything = await kit.other.list()
    assert all(item in everything for item in beyond), "a cursor grants no access"
    await kit.other.delete(*key)
    assert await kit.store.get(*key) == row
    assert theirs == row, "they differ only in the tenant"
    if tags is not None:
        assert await kit.store.count(where=[column(tags.name).contains(getattr(row, tags.name)[0])]) == 1


@contextmanager
def _rejected(error: type[Exception], field: Field, noun: str) -> Iterator[None]:
    """Check that a value is rejected with an error that names its field and, apart from secrets, the noun."""
    with raises(error, saying="" if field.kind == "secret" else noun) as caught:
        yield
    assert isinstance(caught.error, InvalidInput)
    assert caught.error.field.split()[0] == field.name


async def values_over_a_limit_or_of_another_type_are_rejected(kit: Kit) -> None:
    """Rejected values are not stored, and the error names the field and the noun."""
    row = await kit.store.create(kit.samples.new(1))
    for number, field in enumerate(kit.declared.new_fields, 10):
        wrong: list[tuple[Any, type[Exception]]] = [(wrong_value, InvalidInput) for wrong_value in wrong_values(field)]
        if field.marker(Limited) or field.kind == "secret":
            most = getattr(kit.limits, field.marker(Limited).limit if field.kind != "secret" else "secret_bytes")
            wrong.append((large_value(field, most + 1), LimitExceeded))
            if not field.marker(References):
                as_large = large_value(field, most if field.kind in ("text", "number") else most - 20)
                large = await kit.store.create(kit.samples.new(number, **kit.samples.setting(field, number, as_large)))
                await kit.store.delete(*kit.samples.key(large))
        elif field.marker(Names) or field.marker(Tags):
            wrong += [(["a", "b", "c"], LimitExceeded), ([""], InvalidInput), ([7], InvalidInput)]
        for value, error in wrong:
            with _rejected(error, field, kit.kind.noun):
                await kit.store.create(kit.samples.new(2, **{field.name: value}))
            with _rejected(error, field, kit.kind.noun):
                await kit.store.upsert(kit.samples.new(1, **{field.name: value}))
            if field in kit.declared.editable:
                with _rejected(error, field, kit.kind.noun):
                    await kit.store.update(*kit.samples.key(row), change=kit.kind.change_type(**{field.name: value}))
    not_new: list[Any] = [{}, None, "text", kit.samples.change()]
    for new in not_new:
        with raises(InvalidInput, field="new"):
            await kit.store.create(new)
        with raises(InvalidInput, field="change"):
            await kit.store.update(*kit.samples.key(row), change=new if isinstance(new, (dict, str)) else row)
    with raises(InvalidInput, saying=kit.kind.noun, field=kit.declared.key[0].name):
        await kit.store.get(*kit.samples.key(row), "too many")
    with raises(InvalidInput, saying=kit.kind.noun, field=kit.declared.key[0].name):
        await kit.store.get()
    assert await kit.store.list() == [row]
    for number in range(2, 5):
        await kit.store.create(kit.samples.new(number))
    with raises(LimitExceeded, limit="list_rows"):
        await kit.store.list()
    assert len(await kit.store.list(limit=4)) == 4


def _stamped(kit: Kit, before: Any) -> dict[str, Any]:
    """Return the fields that the store sets in an update."""
    result: dict[str, Any] = {"updated_at": kit.now} if "updated_at" in kit.declared.fields else {}
    return result | ({"version": before.version + 1} if kit.samples.has_version else {})


def _stamps(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("version", "updated_at") if hasattr(row, name)}


PROMISES: tuple[Promise, ...] = (
    records_are_returned_as_they_were_created,
    records_without_a_key_get_a_new_one,
    create_can_be_repeated_but_replaces_nothing,
    upsert_creates_or_changes,
    an_update_changes_the_fields_that_are_set,
    values_equal_only_in_python_are_changes,
    a_key_is_compared_as_a_whole,
    an_outdated_version_changes_nothing,
    deleted_records_are_invisible_and_soft_deletions_can_be_undone,
    lists_are_sorted_filtered_and_paged,
    records_are_found_by_their_current_tags,
    records_of_tenants_are_separate,
)
"""The promises that hold under the default limits."""
