"""Contacts: the senders seen on channels, and which of them are the same person."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.clock import from_us
from holdfast.core.filters import column, meta
from holdfast.core.paging import encode_cursor
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import SEARCH_CHARS, Limits
from holdfast.stores.conversation.contacts import Contact
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS
from tests.contract.cases.world import World, flat, raises, uuid_of

GIVEN = {
    "channel_instance": "bot-1",
    "user": "ada",
    "display_name": "Ada Lovelace",
    "username": "countess",
    "avatar_url": "https://example.org/ada.png",
    "peer_kind": "direct",
    "metadata": {"lang": "en"},
}


async def people(acme: AsyncTenantHandle, *names: str) -> list[Contact]:
    """Create contacts with these names."""
    return [await acme.contacts.upsert("telegram", name, display_name=name) for name in names]


async def groups(acme: AsyncTenantHandle) -> set[frozenset[str]]:
    """Return the groups of merged contacts, as sets of sender ids."""
    results: dict[str, set[str]] = {}
    for contact in await acme.contacts.list():
        if contact.merged_id is not None:
            results.setdefault(contact.merged_id, set()).add(contact.sender_id)
    return {frozenset(members) for members in results.values()}


async def searched(acme: AsyncTenantHandle, search: str) -> set[str]:
    """Return the sender ids that a search finds; check that the count agrees."""
    contacts = await acme.contacts.list(search=search)
    assert await acme.contacts.count(search=search) == len(contacts)
    return {contact.sender_id for contact in contacts}


@contract()
async def a_contact_is_created_when_it_is_first_seen(world: World) -> None:
    acme = world.tenant()
    created = await acme.contacts.upsert("telegram", "7", **GIVEN)  # type: ignore[arg-type]
    assert (created.channel_type, created.sender_id, created.merged_id) == ("telegram", "7", None)
    assert {name: getattr(created, name) for name in GIVEN} == GIVEN
    assert created.first_seen_at == created.last_seen_at == from_us(world.clock.now_us())
    assert await acme.contacts.get(created.id) == created
    assert await acme.contacts.find("telegram", "7") == created
    plain = await acme.contacts.upsert("discord", "7")
    assert plain.id != created.id
    assert {name: getattr(plain, name) for name in GIVEN} == {**dict.fromkeys(GIVEN, ""), "metadata": {}}
    assert await acme.contacts.find("telegram", "8") is None
    assert await world.tenant("zenith").contacts.find("telegram", "7") is None
    with raises(NotFound):
        await world.tenant("zenith").contacts.get(created.id)
    with raises(NotFound):
        await acme.contacts.get(uuid_of("missing"))


@contract()
async def empty_arguments_never_replace_stored_values(world: World) -> None:
    acme = world.tenant()
    created = await acme.contacts.upsert("telegram", "7", **GIVEN)  # type: ignore[arg-type]
    world.clock.advance(60)
    nothing: dict[str, Any] = {**dict.fromkeys(GIVEN, ""), "metadata": {}}
    for value in ({}, nothing, dict.fromkeys(GIVEN)):
        again = await acme.contacts.upsert("telegram", "7", **value)
        assert {name: getattr(again, name) for name in GIVEN} == GIVEN
        assert (again.id, again.first_seen_at) == (created.id, created.first_seen_at)
        assert again.last_seen_at == from_us(world.clock.now_us())
    assert await searched(acme, "ada") == {"7"}
    changed = await acme.contacts.upsert("telegram", "7", display_name="Augusta", metadata={"n": 1})
    assert (changed.display_name, changed.username, changed.metadata) == ("Augusta", "countess", {"n": 1})
    assert await searched(acme, "ada") == set()
    assert await searched(acme, "augusta") == {"7"}
    assert await acme.contacts.count() == 1


@contract()
async def any_text_may_be_part_of_a_contact(world: World) -> None:
    acme = world.tenant()
    for text in TEXTS:
        created = await acme.contacts.upsert(
            text, text, display_name=text, username=text, user=text, peer_kind=text, metadata={text: text}
        )
        assert (created.channel_type, created.sender_id, created.display_name, created.user) == (text, text, text, text)
        assert await acme.contacts.find(text, text) == created
        assert await acme.contacts.list(channel_type=text, peer_kind=text, search=text) == [created]
    assert {*await acme.contacts.get_many(TEXTS)} == {*TEXTS}


@contract()
async def invalid_contacts_are_rejected(world: World) -> None:
    acme = world.tenant()
    wrong: list[Any] = ["", None, 7, b"x"]
    for name in wrong:
        with raises(InvalidInput):
            await acme.contacts.upsert(name, "7")
        with raises(InvalidInput):
            await acme.contacts.upsert("telegram", name)
        with raises(InvalidInput):
            await acme.contacts.find("telegram", name)
        with raises(InvalidInput):
            await acme.contacts.get_many([name])
    for field in GIVEN:
        with raises(InvalidInput):
            await acme.contacts.upsert("telegram", "7", **{field: 7})  # type: ignore[arg-type]
    with raises(InvalidInput):
        await acme.contacts.get("no id")
    with raises(InvalidInput):
        await acme.contacts.get_many("7")
    assert await acme.contacts.count() == 0


@contract(limits=Limits(name_bytes=4, display_bytes=300, url_bytes=5, metadata_bytes=20, batch_rows=2, list_rows=2))
async def contacts_have_limits(world: World) -> None:
    acme = world.tenant()
    too_much: list[tuple[dict[str, Any], tuple[str, int]]] = [
        ({"display_name": "x" * 301}, ("display_bytes", 300)),
        ({"username": "Grace"}, ("name_bytes", 4)),
        ({"avatar_url": "http:/"}, ("url_bytes", 5)),
        ({"metadata": {"k": "x" * 20}}, ("metadata_bytes", 20)),
    ]
    for arguments, (limit, maximum) in too_much:
        with raises(LimitExceeded, limit=limit, maximum=maximum):
            await acme.contacts.upsert("t", "7", **arguments)
    with raises(LimitExceeded, limit="batch_rows", maximum=2):
        await acme.contacts.get_many(["1", "2", "3"])
    for call in (acme.contacts.merge, acme.contacts.unmerge):
        with raises(LimitExceeded, limit="batch_rows", maximum=2):
            await call([uuid_of(n) for n in range(3)])
    for name in "abc":
        await acme.contacts.upsert("t", name)
    with raises(LimitExceeded, limit="list_rows", maximum=2):
        await acme.contacts.list()


@contract()
async def contacts_are_listed_most_recently_seen_first(world: World) -> None:
    acme = world.tenant()
    for number in range(7):
        await acme.contacts.upsert("telegram" if number % 3 else "discord", str(number), display_name=f"n{number}")
        world.clock.advance(number % 2)
    world.clock.advance(1)
    await acme.contacts.upsert("telegram", "2")
    whole = [*await acme.contacts.list()]
    assert whole[0].sender_id == "2"
    assert whole == sorted(whole, key=lambda contact: (contact.last_seen_at, contact.id), reverse=True)
    filters: list[dict[str, Any]] = [{}, {"search": "N"}, {"channel_type": "telegram"}, {"search": "", "peer_kind": ""}]
    for filter_ in filters:
        expected = await acme.contacts.list(**filter_)
        assert await acme.contacts.count(**filter_) == len(expected) > 3
        for limit in (1, 2, 3, 8):
            page = await acme.contacts.list(limit=limit, **filter_)
            pages: list[Any] = [page]
            while page.next is not None:
                page = await acme.contacts.list(limit=limit, cursor=page.next, **filter_)
                pages.append(page)
            assert flat(pages) == expected
    for cursor in [*GARBAGE_CURSORS, encode_cursor("contacts", "x", "y"), encode_cursor("sessions", 1, uuid_of(1))]:
        with raises(InvalidFilter):
            await acme.contacts.list(cursor=cursor)


@contract()
async def a_search_finds_prefixes_and_ignores_case(world: World) -> None:
    acme = world.tenant()
    await acme.contacts.upsert("telegram", "U1", display_name="Ada Lovelace", username="Countess")
    await acme.contacts.upsert("telegram", "U2", display_name="ADALBERT", username="bertie")
    await acme.contacts.upsert("telegram", "x", display_name="lada", username="ada")
    await acme.contacts.upsert("telegram", "ada-3", peer_kind="group")
    assert await searched(acme, "ada") == await searched(acme, "ADA") == {"U1", "U2", "x", "ada-3"}
    assert await searched(acme, "Ada L") == {"U1"}
    assert await searched(acme, "lovelace") == set()
    assert await searched(acme, "COUNT") == {"U1"}
    assert await searched(acme, "u") == {"U1", "U2"}
    assert await searched(acme, "") == {"U1", "U2", "x", "ada-3"}
    assert [contact.sender_id for contact in await acme.contacts.list(search="ADA", peer_kind="group")] == ["ada-3"]
    assert await acme.contacts.count(search="ADA", channel_type="discord") == 0
    assert await searched(world.tenant("zenith"), "a") == set()
    assert await world.tenant("zenith").contacts.list() == []


@contract()
async def a_search_has_no_special_characters(world: World) -> None:
    acme = world.tenant()
    names = [
        "100%",
        "100 percent",
        "a_b",
        "aXb",
        "back\\slash",
        "back/slash",
        "[x]",
        "\U0010ffff",
        "\U0010ffff\U0010ffffz",
    ]
    names += ["\x00nul", "\ud800lone", "STRASSE", "straße", "İstanbul", "ΑΣ", "ας", "\U0010f801", "\U0010f800x"]
    for number, name in enumerate(names):
        await acme.contacts.upsert("telegram", f"#{number}", display_name=name)
    for search in {
        *names,
        *(name[:1] for name in names),
        *(name[:2].swapcase() for name in names),
        "%",
        "_",
        "\\",
        "?*",
    }:
        expected = {f"#{n}" for n, name in enumerate(names) if name.casefold().startswith(search.casefold())}
        assert await searched(acme, search) == expected, ascii(search)
    assert await searched(acme, "100%") == {"#0"}
    assert await searched(acme, "A_") == {"#2"}
    assert await searched(acme, "straSSE") == {"#11", "#12"}
    with raises(InvalidInput):
        await acme.contacts.list(search=7)  # type: ignore[arg-type]


@contract()
async def a_long_name_is_found_by_the_longest_search(world: World) -> None:
    acme = world.tenant()
    most = "ß" * (SEARCH_CHARS // 2)  # two characters each when folded
    await acme.contacts.upsert("telegram", "1", display_name=most + "x" * 500)
    await acme.contacts.upsert("telegram", "2", display_name=most[:-1] + "y" * 500)
    await acme.contacts.upsert("telegram", "3", display_name="\U0010ffff" * 200)
    assert await searched(acme, most) == {"1"}
    assert await searched(acme, most[:-1]) == {"1", "2"}
    assert await searched(acme, "\U0010ffff" * SEARCH_CHARS) == {"3"}
    for call in (acme.contacts.list, acme.contacts.count):
        with raises(LimitExceeded, limit="SEARCH_CHARS", maximum=SEARCH_CHARS):
            await call(search=most + "x")


@contract()
async def contacts_can_be_filtered(world: World) -> None:
    acme = world.tenant()
    await people(acme, "a", "b")
    await acme.contacts.upsert("discord", "c", user="ada", metadata={"vip": True})
    where = [column("user").eq("ada"), meta("vip").eq(True)]
    assert [contact.sender_id for contact in await acme.contacts.list(where=where)] == ["c"]
    assert await acme.contacts.count(where=[column("channel_type").is_in(["telegram"])], search="B") == 1
    with raises(InvalidFilter):
        await acme.contacts.list(where=[column("search_name").eq("a")])


@contract()
async def several_contacts_are_looked_up_in_one_call(world: World) -> None:
    acme = world.tenant()
    await people(acme, "1", "2", "3")
    world.clock.advance(1)
    newer = await acme.contacts.upsert("discord", "2")
    contacts = await acme.contacts.get_many(["2", "1", "unknown", "1"])
    assert {*contacts} == {"1", "2"}
    assert contacts["2"] == newer, "with several channels, the contact seen last"
    assert contacts["1"] == await acme.contacts.find("telegram", "1")
    world.clock.advance(1)
    again = await acme.contacts.upsert("telegram", "2")
    assert (await acme.contacts.get_many(["2"]))["2"] == again
    assert await acme.contacts.get_many([]) == {}
    assert await world.tenant("zenith").contacts.get_many(["1"]) == {}


@contract()
async def merging_makes_one_person(world: World) -> None:
    acme = world.tenant()
    a, b, c = await people(acme, "a", "b", "c")
    merged_id = await acme.contacts.merge([a.id, b.id.upper()])
    assert merged_id is not None
    assert await groups(acme) == {frozenset("ab")}
    assert {contact.sender_id for contact in await acme.contacts.list(merged_id=merged_id)} == {"a", "b"}
    assert await acme.contacts.count(merged_id=merged_id) == 2
    assert await acme.contacts.merge([b.id, a.id]) == merged_id
    assert await acme.contacts.merge([c.id, b.id]) == merged_id
    assert await groups(acme) == {frozenset("abc")}
    seen = await acme.contacts.upsert("telegram", "a", display_name="still the same person")
    assert seen.merged_id == merged_id
    assert await acme.contacts.list(merged_id=uuid_of("missing")) == []


@contract()
async def merging_joins_whole_groups(world: World) -> None:
    acme = world.tenant()
    created = {person.sender_id: person.id for person in await people(acme, *"abcdefg")}
    first = await acme.contacts.merge([created["a"], created["b"], created["c"]])
    await acme.contacts.merge([created["d"], created["e"]])
    assert await groups(acme) == {frozenset("abc"), frozenset("de")}
    assert await acme.contacts.merge([created["e"], created["c"], created["f"]]) == first
    assert await groups(acme) == {frozenset("abcdef")}, "every member is in the merged group"


@contract()
async def merging_needs_two_contacts(world: World) -> None:
    acme = world.tenant()
    (a,) = await people(acme, "a")
    assert await acme.contacts.merge([]) is None
    assert await acme.contacts.merge([a.id]) is None
    assert await acme.contacts.merge([a.id, a.id.upper()]) is None
    assert await acme.contacts.merge([uuid_of("missing")]) is None
    with raises(NotFound, noun="contact", key=uuid_of("missing")):
        await acme.contacts.merge([a.id, uuid_of("missing")])
    theirs = await world.tenant("zenith").contacts.upsert("telegram", "z")
    with raises(NotFound):
        await acme.contacts.merge([a.id, theirs.id])
    wrong: list[Any] = [a.id, None, 7, ["no id", "none either"]]
    for ids in wrong:
        for call in (acme.contacts.merge, acme.contacts.unmerge):
            with raises(InvalidInput):
                await call(ids)
    assert await groups(acme) == set()


@contract()
async def unmerging_removes_exactly_the_given_contacts(world: World) -> None:
    acme = world.tenant()
    created = {person.sender_id: person.id for person in await people(acme, *"abcdefx")}
    await acme.contacts.merge([created[letter] for letter in "abcd"])
    await acme.contacts.merge([created["e"], created["f"]])
    assert await acme.contacts.unmerge([created["a"], created["x"], uuid_of("missing"), created["a"]]) == 1
    assert await groups(acme) == {frozenset("bcd"), frozenset("ef")}
    assert await acme.contacts.unmerge([created["b"], created["c"], created["e"]]) == 3
    assert await groups(acme) == set(), "a group of one is dissolved"
    assert (await acme.contacts.get(created["d"])).merged_id is None
    assert await acme.contacts.unmerge([]) == 0
    await acme.contacts.merge([created["a"], created["b"]])
    assert await world.tenant("zenith").contacts.unmerge([created["a"], created["b"]]) == 0
    assert await groups(acme) == {frozenset("ab")}
    assert await acme.contacts.unmerge([created["a"], created["b"]]) == 2


@contract("tenants")
async def a_contact_registers_its_tenant_and_is_deleted_with_it(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    for handle in (acme, zenith):
        await people(handle, "a", "b")
    assert (await world.tenants.get("acme")).id == "acme"
    with raises(Conflict):
        await world.tenants.delete("acme")
    await world.tenants.delete("acme", cascade=True)
    assert await acme.contacts.count() == 0
    assert await zenith.contacts.count() == 2


@contract("concurrency")
async def concurrent_upserts_of_one_sender_create_one_contact(world: World) -> None:
    acme = world.tenant()
    results: list[Any] = await world.together(
        *[partial(acme.contacts.upsert, "telegram", "7", username=f"n{n}") for n in range(10)]
    )
    assert len({result.id for result in results}) == 1, results
    assert await acme.contacts.count() == 1


@contract("concurrency")
async def concurrent_merges_neither_deadlock_nor_split_groups(world: World) -> None:
    acme = world.tenant()
    contacts = [person.id for person in await people(acme, *"abcdefghijkl")]
    for n in range(0, 12, 2):
        await acme.contacts.merge(contacts[n : n + 2])
    pairs = [(contacts[n], contacts[(n * 5 + 3) % 12]) for n in range(12)] + [
        (contacts[11 - n], contacts[n]) for n in range(6)
    ]
    results = await world.together(
        *[partial(acme.contacts.merge, pair) for pair in pairs],
        *[partial(acme.contacts.upsert, "telegram", letter) for letter in "abcdef"],
    )
    assert not any(isinstance(result, Exception) for result in results), results
    assert await groups(acme) == {frozenset("abcdefghijkl")}


@contract("concurrency")
async def concurrent_merges_and_unmerges_leave_whole_groups(world: World) -> None:
    acme = world.tenant()
    contacts = [person.id for person in await people(acme, *"abcdefgh")]
    for turn in range(3):
        merges: list[Any] = [
            partial(acme.contacts.merge, [contacts[n], contacts[(n + turn + 1) % 8]]) for n in range(8)
        ]
        results = await world.together(
            *merges, *[partial(acme.contacts.unmerge, [contacts[n]]) for n in range(0, 8, 3)]
        )
        assert not any(isinstance(result, Exception) for result in results), results
        assert all(len(group) > 1 for group in await groups(acme))
