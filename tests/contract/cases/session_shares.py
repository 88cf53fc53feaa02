"""Links to sessions: the token gives access as long as the session is live."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import AlreadyExists, InvalidInput, NotFound
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of

TOKEN = "0123456789abcdef"


async def _a_link_leads_to_its_session(world: World, name: str) -> None:
    tenant = world.tenant(name)
    shares = tenant.session_shares
    session = await tenant.sessions.create(key="s", user="ada")
    created = await shares.create(session.id, token=TOKEN)
    assert (created.session_id, created.user, created.read_only, created.number) == (session.id, "ada", True, 1)
    open_one = await shares.create(session.id, token=TOKEN + "2", read_only=False)
    assert (open_one.read_only, open_one.number) == (False, 2)
    assert await shares.list(session.id) == [created, open_one]
    assert await shares.find(TOKEN) == created
    assert await shares.find("absent") is None
    assert await world.tenant("zenith").session_shares.find(TOKEN) is None
    with raises(AlreadyExists, noun="link"):
        await shares.create(session.id, token=TOKEN)
    assert await shares.delete(session.id, token=TOKEN) is True
    assert await shares.delete(session.id, token=TOKEN) is False
    assert await shares.list(session.id) == [open_one]


async def _uses_of_a_link_are_recorded(world: World, name: str) -> None:
    tenant = world.tenant(name)
    shares = tenant.session_shares
    first, second = [await tenant.sessions.create(key=key, user="ada") for key in ("s", "t")]
    one = await shares.create(first.id, token=TOKEN)
    world.clock.advance(1)
    two = await shares.create(second.id, token=TOKEN + "2")
    assert await shares.used_by("bob") == []
    assert await shares.use(TOKEN, user="bob") == one
    assert await shares.use(TOKEN, user="bob") == one, "repeated uses are allowed"
    await shares.use(TOKEN + "2", user="bob")
    assert await shares.used_by("bob") == [two, one]
    assert await shares.used_by("eve") == []
    with raises(NotFound, noun="link"):
        await shares.use("absent", user="bob")
    assert await shares.delete(second.id, token=TOKEN) is False, "a link of another session"
    assert await shares.delete(first.id, token=TOKEN) is True
    assert await shares.used_by("bob") == [two]


async def _a_link_grants_nothing_while_its_session_is_deleted(world: World, name: str) -> None:
    tenant = world.tenant(name)
    shares = tenant.session_shares
    session = await tenant.sessions.create(key="s")
    created = await shares.create(session.id, token=TOKEN)
    await shares.use(TOKEN, user="bob")
    await tenant.sessions.delete(session.id)
    assert await shares.find(TOKEN) is None
    assert await shares.list(session.id) == []
    assert await shares.used_by("bob") == []
    with raises(NotFound):
        await shares.use(TOKEN, user="bob")
    with raises(NotFound, noun="session"):
        await shares.create(session.id, token=TOKEN + "2")
    await tenant.sessions.create(key="s")
    assert await shares.find(TOKEN) is None, "another session with that key has no links"
    await tenant.sessions.purge((await tenant.sessions.find("s")).id)  # type: ignore[union-attr]
    await tenant.sessions.restore(session.id)
    assert await shares.find(TOKEN) == created
    assert await shares.used_by("bob") == [created]
    await tenant.sessions.purge(session.id)
    assert await shares.find(TOKEN) is None


async def _a_link_grants_nothing_after_it_has_expired(world: World, name: str) -> None:
    tenant = world.tenant(name)
    shares = tenant.session_shares
    session = await tenant.sessions.create(key="s", user="ad\x00a")
    until = from_us(world.clock.now_us()) + timedelta(seconds=5)
    created = await shares.create(session.id, token=TOKEN, expires_at=until)
    assert (created.expires_at, created.user) == (until, "ad\x00a")
    stays = await shares.create(session.id, token=TOKEN + "2", shows_token=True)
    for value in (TOKEN, TOKEN + "2"):
        await shares.use(value, user="bob")
    world.clock.advance(4)
    assert await shares.find(TOKEN) == created
    world.clock.advance(1)
    assert await shares.find(TOKEN) is None
    assert await shares.list(session.id) == await shares.used_by("bob") == [stays]
    with raises(NotFound, noun="link"):
        await shares.use(TOKEN, user="bob")
    again = await shares.create(session.id, token=TOKEN)
    assert await shares.used_by("bob") == [stays], "uses of the expired link are not uses of this one"
    assert await shares.delete(session.id, number=again.number) is True
    assert await shares.delete(session.id, number=again.number) is False


async def _a_token_is_shown_only_with_shows_token(world: World, name: str) -> None:
    tenant = world.tenant(name)
    session = await tenant.sessions.create(key="s")
    hidden = await tenant.session_shares.create(session.id, token=TOKEN)
    share = await tenant.session_shares.create(session.id, token=TOKEN + "2", shows_token=True)
    assert (hidden.token, share.token) == (None, TOKEN + "2")
    assert await tenant.session_shares.list(session.id) == [hidden, share]


async def _invalid_links_are_rejected(world: World, name: str) -> None:
    tenant = world.tenant(name)
    session = await tenant.sessions.create(key="s")
    bad: Any
    for bad in ("", "short", None):
        with raises(InvalidInput, field="token"):
            await tenant.session_shares.create(session.id, token=bad)
    with raises(InvalidInput, field="read_only"):
        await tenant.session_shares.create(session.id, token=TOKEN, read_only=1)  # type: ignore[arg-type]
    with raises(InvalidInput, field="expires_at"):
        await tenant.session_shares.create(session.id, token=TOKEN, expires_at=datetime(2030, 1, 1))  # noqa: DTZ001
    for both in ({}, {"token": TOKEN, "number": 1}):
        with raises(InvalidInput, field="token"):
            await tenant.session_shares.delete(session.id, **both)  # type: ignore[arg-type]
    with raises(NotFound):
        await tenant.session_shares.create(uuid_of("missing"), token=TOKEN)
    assert await tenant.session_shares.list(session.id) == []


@contract()
async def links_are_created_used_and_deleted_with_their_session(world: World) -> None:
    for part in (
        _a_link_leads_to_its_session,
        _uses_of_a_link_are_recorded,
        _a_link_grants_nothing_after_it_has_expired,
        _a_token_is_shown_only_with_shows_token,
        _invalid_links_are_rejected,
        _a_link_grants_nothing_while_its_session_is_deleted,
    ):
        await part(world, part.__name__)
