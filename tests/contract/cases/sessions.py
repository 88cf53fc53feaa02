"""Sessions: creating, finding, changing, deleting."""

from __future__ import annotations

from collections import OrderedDict
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import AlreadyExists, Conflict, InvalidInput, InvalidText, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.conversation.keys import SessionKey
from tests.contract.cases.suite import contract
from tests.contract.cases.values import NOT_JSON, nested
from tests.contract.cases.world import World, everything, raises, raises_kind_of, uuid_of

BAD_IDS: tuple[Any, ...] = ("", "42", "not-a-uuid", "x" * 36, None, 7, uuid_of("a") + "0", "'; --")


@contract()
async def create_stores_the_given_fields(world: World) -> None:
    acme = world.tenant()
    created = await acme.sessions.create(key="support:42", agent="helper", user="ada", metadata={"plan": "pro"})
    assert (created.key, created.agent, created.user, created.metadata) == (
        "support:42",
        "helper",
        "ada",
        {"plan": "pro"},
    )
    assert (created.message_count, created.token_count, created.compaction_count, created.deleted_at) == (0, 0, 0, None)
    assert created.created_at == created.updated_at == from_us(world.clock.now_us())
    assert created.created_at.utcoffset() == timedelta(0)
    assert await acme.sessions.get(created.id) == created
    assert await acme.sessions.find("support:42", user="ada") == created
    assert await acme.sessions.list() == [created]


@contract()
async def without_a_key_the_id_is_the_key(world: World) -> None:
    acme = world.tenant()
    one, other = await acme.sessions.create(), await acme.sessions.create()
    assert (one.key, one.user, one.agent, one.metadata) == (one.id, "", "", {})
    assert one.id != other.id
    assert (len(one.id), one.id) == (36, one.id.lower())
    assert await acme.sessions.find(one.id) == one


@contract()
async def a_repeated_create_with_the_same_id_returns_the_first_session(world: World) -> None:
    acme, id = world.tenant(), uuid_of("mine")
    first = await acme.sessions.create(id=id, key="k", user="u", agent="a", metadata={"n": 1})
    world.clock.advance(60)
    assert await acme.sessions.create(id=id, key="k", user="u", agent="a", metadata={"n": 2}) == first
    assert await acme.sessions.create(id=id.upper(), key="k", user="u", agent="a") == first
    assert await acme.sessions.create(id=f"{{{id}}}", key="k", user="u", agent="a") == first
    assert await everything(acme) == [(first, [])]


@contract()
async def an_id_with_other_arguments_is_a_conflict(world: World) -> None:
    acme, id = world.tenant(), uuid_of("mine")
    await acme.sessions.create(id=id, key="k", user="u", agent="a")
    before = await everything(acme)
    other: list[dict[str, Any]] = [
        {"key": "other"},
        {"user": "other"},
        {"user": None},
        {"agent": "other"},
        {"key": None},
    ]
    for change in other:
        with raises(Conflict):
            await acme.sessions.create(**{"id": id, "key": "k", "user": "u", "agent": "a", **change})
    assert await everything(acme) == before
    await acme.sessions.delete(id)
    with raises(Conflict):
        await acme.sessions.create(id=id, key="k", user="u", agent="a")


@contract()
async def a_user_has_one_live_session_per_key(world: World) -> None:
    acme = world.tenant()
    await acme.sessions.create(key="k", user="ada")
    before = await everything(acme)
    for user in ("ada", "ada"):
        with raises(AlreadyExists):
            await acme.sessions.create(key="k", user=user)
        with raises(AlreadyExists):
            await acme.sessions.create(key="k", user=user, id=uuid_of("new"))
    assert await everything(acme) == before
    await acme.sessions.create(key="k", user="bob")
    await acme.sessions.create(key="k")
    await acme.sessions.create(key="K", user="ada")
    with raises(AlreadyExists):
        await acme.sessions.create(key="k")
    await world.tenant("zenith").sessions.create(key="k", user="ada")
    assert await acme.sessions.count() == 4


@contract()
async def names_must_be_text_and_not_empty(world: World) -> None:
    acme = world.tenant()
    wrong: list[Any] = ["", 7, b"bytes", ["list"], True]
    for value in wrong:
        with raises(InvalidInput):
            await acme.sessions.create(key=value)
        with raises(InvalidInput):
            await acme.sessions.create(user=value)
        with raises(InvalidInput):
            await acme.sessions.create(agent=value)
        with raises(InvalidInput):
            await acme.sessions.upsert(value)
        with raises(InvalidInput):
            await acme.sessions.find(value)
        with raises(InvalidInput):
            world.tenant(value)
    assert await everything(acme) == []


@contract(limits=Limits(key_bytes=20, name_bytes=12, tenant_bytes=9))
async def names_may_be_as_long_as_the_limit(world: World) -> None:
    acme = world.tenant()
    for fill in ("x", "é", "漢", "\U0001f600"):
        size = len(fill.encode())
        await acme.sessions.create(key=fill * (20 // size), user=fill * (12 // size), agent=fill * (12 // size))
        with raises(LimitExceeded, limit="key_bytes", maximum=20):
            await acme.sessions.create(key=fill * (20 // size + 1))
        with raises(LimitExceeded, limit="key_bytes", maximum=20):
            await acme.sessions.upsert(fill * (20 // size + 1))
        with raises(LimitExceeded, limit="name_bytes", maximum=12):
            await acme.sessions.create(user=fill * (12 // size + 1))
        with raises(LimitExceeded, limit="name_bytes", maximum=12):
            await acme.sessions.create(agent=fill * (12 // size + 1))
        await world.tenant(fill * (9 // size)).sessions.create()
        with raises(LimitExceeded, limit="tenant_bytes", maximum=9):
            world.tenant(fill * (9 // size + 1))
    assert await acme.sessions.count() == 4


@contract()
async def the_longest_default_names_fit_into_every_index(world: World) -> None:
    # Not one letter repeated: an engine that compresses would accept that and reject real text.
    letters = "".join(chr(0x4E00 + (i * 2_654_435_761 >> 7) % 20_000) for i in range(400))
    acme = world.tenant(letters[:85])
    created = await acme.sessions.create(key=letters[100:266], user=letters[5:90], agent=letters[300:385])
    assert await acme.sessions.find(letters[100:266], user=letters[5:90]) == created
    assert await acme.sessions.list(agent=letters[300:385]) == [created]


@contract()
async def metadata_must_be_an_object_with_text_keys(world: World) -> None:
    acme = world.tenant()
    wrong: list[Any] = [["a"], "text", 7, True, {1: 2}, {None: 1}, [("a", 1)]]
    for value in wrong:
        with raises(InvalidInput):
            await acme.sessions.create(metadata=value)
        with raises(InvalidInput):
            await acme.sessions.upsert("k", metadata=value)
    for value in NOT_JSON:
        with raises_kind_of(InvalidText):
            await acme.sessions.create(metadata={"v": value})
        with raises_kind_of(InvalidText):
            await acme.sessions.create(metadata={"v": ["\ud800", value]})
    assert await everything(acme) == []
    for arguments in (OrderedDict(a=1), MappingProxyType({"a": 1})):
        assert (await acme.sessions.create(metadata=arguments)).metadata == {"a": 1}


@contract(limits=Limits(metadata_bytes=30, json_depth=5))
async def metadata_may_be_as_large_and_deep_as_the_limits(world: World) -> None:
    acme = world.tenant()
    exact = {"k": "x" * 22}  # {"k":"..."} is eight characters around the text
    assert (await acme.sessions.create(metadata=exact)).metadata == exact
    assert (await acme.sessions.create(metadata={"k": "漢" * 7})).metadata == {"k": "漢" * 7}
    for over in ({"k": "x" * 23}, {"k": "漢" * 8}):
        with raises(LimitExceeded, limit="metadata_bytes", maximum=30):
            await acme.sessions.create(metadata=over)
    assert (await acme.sessions.create(metadata={"d": nested(4)})).metadata == {"d": nested(4)}
    with raises(LimitExceeded, limit="json_depth"):
        await acme.sessions.create(metadata={"d": nested(5)})


@contract()
async def upsert_creates_a_missing_session_and_keeps_fields_that_are_not_given(world: World) -> None:
    acme = world.tenant()
    created = await acme.sessions.upsert("k", user="ada", agent="a", metadata={"n": 1})
    assert (created.key, created.user, created.agent, created.metadata) == ("k", "ada", "a", {"n": 1})
    await acme.messages.append(created.id, role="user", content="stays")
    world.clock.advance(90)
    again = await acme.sessions.upsert("k", user="ada")
    assert (again.id, again.agent, again.metadata, again.message_count) == (created.id, "a", {"n": 1}, 1)
    assert (again.created_at, again.updated_at) == (created.created_at, from_us(world.clock.now_us()))
    changed = await acme.sessions.upsert("k", user="ada", agent="b", metadata={})
    assert (changed.id, changed.agent, changed.metadata) == (created.id, "b", {})
    assert await acme.sessions.get(created.id) == changed
    assert [message.seq for message in await acme.messages.list(created.id)] == [1]


@contract()
async def upsert_finds_the_live_session_by_key_and_user(world: World) -> None:
    acme = world.tenant()
    first = await acme.sessions.upsert("k", user="ada")
    assert (await acme.sessions.upsert("k", user="bob")).id != first.id
    assert (await acme.sessions.upsert("k")).id != first.id
    assert (await acme.sessions.upsert("k2", user="ada")).id != first.id
    assert (await acme.sessions.upsert("k", user="ada")).id == first.id
    await acme.sessions.delete(first.id)
    second = await acme.sessions.upsert("k", user="ada")
    assert second.id != first.id
    assert [session.id for session in await acme.sessions.list(deleted=True)] == [first.id]
    count = await acme.sessions.count()
    for none in (None, ""):
        with raises(InvalidInput, field="key"):
            await acme.sessions.upsert(none)  # type: ignore[arg-type]
    assert await acme.sessions.count() == count


@contract()
async def get_returns_exactly_that_session(world: World) -> None:
    acme = world.tenant()
    sessions = [await acme.sessions.create(key=f"k{n}") for n in range(3)]
    assert [await acme.sessions.get(session.id) for session in sessions] == sessions
    assert await acme.sessions.get(sessions[0].id.upper()) == sessions[0]
    with raises(NotFound, noun="session", key=uuid_of("missing")):
        await acme.sessions.get(uuid_of("missing"))
    for bad in BAD_IDS:
        with raises(InvalidInput, field="session id"):
            await acme.sessions.get(bad)


@contract()
async def find_compares_the_whole_key(world: World) -> None:
    acme = world.tenant()
    keys = ["k", "K", "k ", " k", "kk", "k%", "é", "e\u0301", "\U0001f600"]
    created = {key: await acme.sessions.create(key=key, user="ada") for key in keys}
    for key in keys:
        assert await acme.sessions.find(key) == created[key]
        assert await acme.sessions.find(key, user="ada") == created[key]
        assert await acme.sessions.find(key, user="bob") is None
    assert await acme.sessions.find("absent") is None
    assert await acme.sessions.find("_") is None


@contract()
async def a_session_key_object_equals_its_text(world: World) -> None:
    acme = world.tenant()
    key = SessionKey.direct(agent="helper", channel="telegram", peer="5511:9@s.whatsapp.net")
    created = await acme.sessions.create(key=key)
    assert created.key == str(key)
    assert SessionKey.parse(created.key) == key
    assert await acme.sessions.find(key) == await acme.sessions.find(str(key)) == created
    assert (await acme.sessions.upsert(key, agent="helper")).id == created.id
    assert (await acme.sessions.upsert(SessionKey.main(agent="helper", name="main"))).id != created.id
    with raises(AlreadyExists):
        await acme.sessions.create(key=key)


@contract()
async def find_without_a_user_needs_a_key_of_one_user(world: World) -> None:
    acme = world.tenant()
    ada = await acme.sessions.create(key="k", user="ada")
    bob = await acme.sessions.create(key="k", user="bob")
    with raises(Conflict):
        await acme.sessions.find("k")
    assert await acme.sessions.find("k", user="bob") == bob
    await acme.sessions.delete(ada.id)
    assert await acme.sessions.find("k") == bob
    assert await acme.sessions.find("k", user="ada") is None


@contract()
async def update_changes_only_the_given_fields(world: World) -> None:
    acme = world.tenant()
    created = await acme.sessions.create(key="k", user="ada", agent="a", metadata={"n": 1, "m": 2})
    await acme.messages.append(created.id, role="user", content="hi", token_count=3)
    world.clock.advance(1)
    changed = await acme.sessions.update(created.id, metadata={"n": 2})
    assert (changed.metadata, changed.agent) == ({"n": 2}, "a")
    assert (changed.id, changed.key, changed.user, changed.created_at) == (created.id, "k", "ada", created.created_at)
    assert (changed.message_count, changed.token_count) == (1, 3)
    assert changed.updated_at == created.updated_at + timedelta(seconds=1)
    assert (await acme.sessions.update(created.id, agent="b")).metadata == {"n": 2}
    assert (await acme.sessions.update(created.id, metadata={})).metadata == {}
    final = await acme.sessions.update(created.id)
    assert (final.agent, final.metadata) == ("b", {})
    assert await acme.sessions.get(created.id) == final


@contract()
async def update_rejects_invalid_values(world: World) -> None:
    acme = world.tenant()
    created = await acme.sessions.create(key="k")
    with raises(InvalidInput):
        await acme.sessions.update(created.id, agent="")
    with raises(InvalidText):
        await acme.sessions.update(created.id, metadata={"v": float("nan")})
    with raises(NotFound, noun="session", key=uuid_of("missing")):
        await acme.sessions.update(uuid_of("missing"), agent="a")
    for bad in BAD_IDS:
        with raises(InvalidInput, field="session id"):
            await acme.sessions.update(bad, agent="a")
    assert await everything(acme) == [(created, [])]


@contract()
async def an_expected_session_makes_update_a_compare_and_set(world: World) -> None:
    # The clock stands still: changes are detected by content, not by time.
    acme = world.tenant()
    first = await acme.sessions.create(key="k", metadata={"n": 1})
    second = await acme.sessions.update(first.id, metadata={"n": 2}, expected=first)
    with raises(Conflict):
        await acme.sessions.update(first.id, metadata={"n": 3}, expected=first)
    assert await acme.sessions.get(first.id) == second
    third = await acme.sessions.update(first.id, agent="a", expected=second)
    await acme.messages.append(first.id, role="user", content="hi")
    with raises(Conflict):
        await acme.sessions.update(first.id, agent="b", expected=third)
    fourth = await acme.sessions.get(first.id)
    assert (await acme.sessions.update(first.id, agent="b", expected=fourth)).agent == "b"
    await acme.sessions.delete(first.id)
    with raises(NotFound):
        await acme.sessions.update(first.id, agent="c", expected=fourth)


@contract()
async def an_expected_session_makes_delete_a_compare_and_set(world: World) -> None:
    acme = world.tenant()
    first = await acme.sessions.create(key="k", metadata={"n": 1})
    second = await acme.sessions.update(first.id, metadata={"n": 2})
    with raises(Conflict):
        await acme.sessions.delete(first.id, expected=first)
    assert await acme.sessions.get(first.id) == second
    await acme.sessions.delete(first.id, expected=second)
    with raises(NotFound):
        await acme.sessions.delete(first.id, expected=second)


@contract()
async def delete_hides_a_session_and_all_of_its_rows(world: World) -> None:
    acme = world.tenant()
    created = await acme.sessions.create(key="k", user="ada")
    message = await acme.messages.append(created.id, role="user", content="hidden")
    world.clock.advance(5)
    await acme.sessions.delete(created.id)
    assert await acme.sessions.find("k", user="ada") is None
    assert await acme.sessions.list() == []
    assert await acme.sessions.count() == 0
    hidden = await acme.sessions.get(created.id, deleted=True)
    assert hidden.deleted_at == from_us(world.clock.now_us())
    assert await acme.sessions.list(deleted=True) == [hidden]
    with raises(NotFound):
        await acme.sessions.get(created.id)
    with raises(NotFound):
        await acme.messages.get(message.id)


@contract()
async def a_deleted_session_cannot_be_used(world: World) -> None:
    acme = world.tenant()
    created = await acme.sessions.create(key="k")
    message = await acme.messages.append(created.id, role="user", content="hidden")
    await acme.sessions.delete(created.id)
    hidden = await acme.sessions.get(created.id, deleted=True)
    for call in (
        lambda: acme.sessions.get(created.id),
        lambda: acme.sessions.update(created.id, agent="a"),
        lambda: acme.sessions.delete(created.id),
        lambda: acme.messages.append(created.id, role="user", content="x"),
        lambda: acme.messages.append(created.id, role="user", content="hidden", id=message.id),
        lambda: acme.messages.list(created.id),
        lambda: acme.messages.last(created.id),
        lambda: acme.messages.count(created.id),
        lambda: acme.messages.get(message.id),
        lambda: acme.messages.update(message.id, content="x"),
        lambda: acme.messages.delete(created.id, [message.id]),
    ):
        with raises(NotFound):
            await call()
    assert await acme.sessions.get(created.id, deleted=True) == hidden


@contract()
async def a_missing_session_cannot_be_deleted_restored_or_purged(world: World) -> None:
    acme = world.tenant()
    for call in (acme.sessions.delete, acme.sessions.restore, acme.sessions.purge):
        with raises(NotFound, noun="session", key=uuid_of("missing")):
            await call(uuid_of("missing"))
        for bad in BAD_IDS:
            with raises(InvalidInput, field="session id"):
                await call(bad)


@contract()
async def restore_restores_everything_unchanged(world: World) -> None:
    acme = world.tenant()
    created = await acme.sessions.create(key="k", user="ada", metadata={"n": 1})
    await acme.messages.append(created.id, role="user", content="one", token_count=4)
    await acme.messages.append(created.id, role="assistant", content="two", token_count=5)
    before = await everything(acme)
    world.clock.advance(600)
    await acme.sessions.delete(created.id)
    world.clock.advance(600)
    restored = await acme.sessions.restore(created.id)
    assert restored == before[0][0]
    assert await everything(acme) == before
    assert await acme.sessions.restore(created.id) == restored
    assert (await acme.messages.append(created.id, role="user", content="three")).seq == 3


@contract()
async def a_session_whose_key_was_taken_cannot_be_restored(world: World) -> None:
    acme = world.tenant()
    old = await acme.sessions.create(key="k", user="ada")
    await acme.messages.append(old.id, role="user", content="old")
    await acme.sessions.delete(old.id)
    new = await acme.sessions.create(key="k", user="ada")
    before = await everything(acme)
    with raises(Conflict):
        await acme.sessions.restore(old.id)
    assert await everything(acme) == before
    await acme.sessions.delete(new.id)
    assert (await acme.sessions.restore(old.id)).id == old.id
    with raises(Conflict):
        await acme.sessions.restore(new.id)


@contract()
async def a_key_can_be_reused_after_each_deletion(world: World) -> None:
    acme = world.tenant()
    ids = []
    for generation in range(4):
        created = await acme.sessions.create(key="k", user="ada", metadata={"generation": generation})
        ids.append(created.id)
        await acme.sessions.delete(created.id)
    assert {session.id for session in await acme.sessions.list(deleted=True)} == set(ids)
    assert (await acme.sessions.restore(ids[1])).metadata == {"generation": 1}
    result = await acme.sessions.find("k", user="ada")
    assert result is not None
    assert result.id == ids[1]


@contract()
async def purge_removes_permanently(world: World) -> None:
    acme = world.tenant()
    created = await acme.sessions.create(id=uuid_of("s"), key="k")
    await acme.messages.append(created.id, role="user", content="gone", id=uuid_of("m"))
    other = await acme.sessions.create(key="other")
    kept = await acme.messages.append(other.id, role="user", content="kept")
    await acme.sessions.purge(created.id)
    for call in (acme.sessions.get, acme.sessions.restore, acme.sessions.delete, acme.sessions.purge):
        with raises(NotFound):
            await call(created.id)
    with raises(NotFound):
        await acme.sessions.get(created.id, deleted=True)
    with raises(NotFound):
        await acme.messages.get(uuid_of("m"))
    assert await acme.messages.list(other.id) == [kept]
    again = await acme.sessions.create(id=uuid_of("s"), key="k")
    assert (again.id, again.message_count) == (created.id, 0)
    assert (await acme.messages.append(again.id, role="user", content="new", id=uuid_of("m"))).seq == 1


@contract()
async def a_deleted_session_can_be_purged(world: World) -> None:
    acme = world.tenant()
    created = await acme.sessions.create(key="k")
    await acme.messages.append(created.id, role="user", content="gone", id=uuid_of("m"))
    await acme.sessions.delete(created.id)
    await acme.sessions.purge(created.id)
    assert await acme.sessions.list(deleted=True) == []
    other = await acme.sessions.create(key="k")
    assert (await acme.messages.append(other.id, role="user", content="new", id=uuid_of("m"))).session_id == other.id


@contract()
async def tenants_do_not_see_each_others_sessions(world: World) -> None:
    acme, zenith = world.tenant("acme"), world.tenant("zenith")
    theirs = await zenith.sessions.create(id=uuid_of("s"), key="k", user="ada", metadata={"n": 1})
    await zenith.messages.append(theirs.id, role="user", content="theirs", id=uuid_of("m"))
    before = await everything(zenith)
    assert await acme.sessions.list() == []
    assert await acme.sessions.count() == 0
    assert await acme.sessions.find("k", user="ada") is None
    for call in (acme.sessions.get, acme.sessions.delete, acme.sessions.restore, acme.sessions.purge):
        with raises(NotFound):
            await call(theirs.id)
    mine = await acme.sessions.create(id=uuid_of("s"), key="k", user="ada")
    assert mine.metadata == {}
    assert (await acme.messages.append(mine.id, role="user", content="mine", id=uuid_of("m"))).seq == 1
    await acme.sessions.purge(mine.id)
    assert await everything(zenith) == before
    assert (acme.name, zenith.name) == ("acme", "zenith")
