"""Nobody gets in without a key that is good for what is asked: every route, every way of not being allowed."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import ApiKey, AsyncHoldfast, FixedClock, Holdfast, new_api_key
from holdfast.api import denials
from holdfast.api.access import AccessOptions, Caller, networks
from holdfast.api.denials import SERVER
from holdfast.api.limits import ServerLimits
from holdfast.api.operations import AREAS, Operation, operation
from holdfast.api.rates import Rates
from holdfast.api.resources import OPERATIONS
from holdfast.errors import InvalidInput
from tests.faces.in_process import CALM, Reply, Running, running
from tests.faces.process import ADMIN_KEY, ServerProcess, answered, command, refused

CLOSED = [each for each in OPERATIONS if each.need != "open"]
OF_A_TENANT = [each for each in CLOSED if "{tenant}" in each.path]
MINE, THEIRS = "acme", "zenith"
_IN_PATH = re.compile(r"{(\w+)}")


def address_of(each: Operation, tenant: str) -> str:
    """Somewhere an operation is found: of a tenant, and of things that are not there."""
    return _IN_PATH.sub(lambda name: tenant if name[1] == "tenant" else str(uuid4()), each.path)


def is_refused(reply: Reply, status: int) -> bool:
    """Whether a reply is a refusal, said as a problem and with nothing else in it."""
    if reply.status != status or reply.headers["content-type"] != "application/problem+json":
        return False
    return bool(reply.json["type"] == "Forbidden" and reply.json["detail"])


async def made(holdfast: AsyncHoldfast, **fields: Any) -> tuple[str, ApiKey]:
    key = new_api_key()
    return key, await holdfast.api_keys.create(key, **{"name": "a key", "tenant": MINE, **fields})


def played(play: Callable[[Running], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with running(**options) as server:
            return await play(server)

    return asyncio.run(main())


async def every_route(server: Running, operations: list[Operation], status: int, **how: Any) -> None:
    """Ask for every one of these, and be refused by all."""
    for each in operations:
        body = {} if each.has_body else None
        for tenant in (MINE, "never-heard-of"):
            reply = await server.ask(each.method, address_of(each, tenant), body, **how)
            assert is_refused(reply, status), f"{each.method} {each.path}: {reply.status} {reply.body!r}"


def test_there_are_routes_to_attack() -> None:
    assert len(CLOSED) >= 20
    assert {each.path for each in OPERATIONS if each.need == "open"} == {"/", "/healthz", "/readyz", "/openapi.json"}


@pytest.mark.parametrize(
    "key",
    [None, "hf_" + "0" * 48, "hf_", "hf_\udcff", new_api_key()[:-1]],
    ids=["none", "of nobody", "too short", "not ASCII", "cut off"],
)
def test_without_a_key_that_is_known_every_route_is_refused(key: str | None) -> None:
    played(lambda server: every_route(server, CLOSED, 401, key=key))


@pytest.mark.parametrize(
    "header",
    [
        {"Authorization": f"Basic {ADMIN_KEY}"},
        {"Authorization": ADMIN_KEY},
        {"Authorization": "Bearer"},
        {"X-API-Key": "hf_x"},
        {"X-User-Id": "admin"},
        {"X-Forwarded-For": "127.0.0.1"},
    ],
)
def test_nothing_else_than_a_key_in_its_place_opens_a_route(header: dict[str, str]) -> None:
    played(lambda server: every_route(server, CLOSED[:5], 401, key=None, headers=header))


def test_a_revoked_key_is_refused_by_every_route() -> None:
    async def play(server: Running) -> None:
        key, kept = await made(server.holdfast, scopes=["admin"], tenant="")
        assert (await server.ask("GET", "/v1/tenants", key=key)).status == 200
        await server.holdfast.api_keys.revoke(kept.id)
        await asyncio.sleep(0.02)  # the server may believe what it heard key_s ago, and no longer
        await every_route(server, CLOSED, 401, key=key)

    played(play, limits=ServerLimits(refusals_per_s=0, key_s=0.01))


def test_by_default_a_revocation_is_heard_of_within_a_second() -> None:
    assert ServerLimits().key_s < 1


def test_an_expired_key_is_refused_by_every_route_from_its_very_moment() -> None:
    clock = FixedClock(datetime(2090, 1, 1, tzinfo=UTC))

    async def play(server: Running) -> None:
        until = datetime(2090, 1, 1, 0, 0, 10, tzinfo=UTC)
        key, _ = await made(server.holdfast, scopes=["admin"], tenant="", expires_at=until)
        clock.advance(9.9)
        assert (await server.ask("GET", "/v1/tenants", key=key)).status == 200
        clock.advance(0.1)
        await every_route(server, CLOSED, 401, key=key)

    played(play, clock=clock)


def test_a_key_that_expired_before_it_was_first_seen_is_refused_by_every_route() -> None:
    async def play(server: Running) -> None:
        key, _ = await made(server.holdfast, scopes=["admin"], expires_at=datetime(2001, 1, 1, tzinfo=UTC))
        await every_route(server, CLOSED, 401, key=key)

    played(play)


def test_a_key_of_another_tenant_is_refused_by_every_route_whether_the_tenant_exists_or_not() -> None:
    async def play(server: Running) -> None:
        await server.holdfast.tenants.create(MINE)
        key, _ = await made(server.holdfast, tenant=THEIRS, scopes=["admin"])
        await every_route(server, OF_A_TENANT, 403, key=key)
        answers = {
            tenant: (await server.ask("GET", f"/v1/tenants/{tenant}", key=key)).body for tenant in (MINE, "nowhere")
        }
        assert answers[MINE] == answers["nowhere"]

    played(play)


def test_a_tenants_own_admin_is_refused_where_all_tenants_are_spoken_of() -> None:
    async def play(server: Running) -> None:
        key, _ = await made(server.holdfast, scopes=["admin"])
        await every_route(server, [each for each in CLOSED if each.need == "root"], 403, key=key)

    played(play)


@pytest.mark.parametrize("held", ["read", "write"])
def test_a_scope_that_is_not_enough_is_refused_by_every_route(held: str) -> None:
    async def play(server: Running) -> None:
        key, _ = await made(server.holdfast, scopes=[held], tenant="")
        await every_route(server, [each for each in CLOSED if each.need != held], 403, key=key)

    played(play)


def test_a_scope_for_one_kind_of_thing_opens_no_other() -> None:
    async def play(server: Running) -> None:
        keys = {area: (await made(server.holdfast, scopes=[f"{area}:read", f"{area}:write"]))[0] for area in AREAS}
        for each in OF_A_TENANT:
            others = [area for area in AREAS if area != each.tag]
            area = others[hash(each.path) % len(others)]
            reply = await server.ask(each.method, address_of(each, MINE), {} if each.has_body else None, key=keys[area])
            assert is_refused(reply, 403), f"{each.path} with {area}: {reply.status}"
        sessions = await server.ask("POST", f"/v1/tenants/{MINE}/sessions", {}, key=keys["sessions"])
        assert sessions.status == 201

    played(play)


def test_a_refused_request_changes_nothing_and_tells_nothing() -> None:
    async def play(server: Running) -> None:
        session = await server.holdfast.tenant(MINE).sessions.create(key="secret plan", user="ada")
        key, _ = await made(server.holdfast, tenant=THEIRS)
        for each in OF_A_TENANT:
            path = _IN_PATH.sub(lambda name: MINE if name[1] == "tenant" else session.id, each.path)
            reply = await server.ask(each.method, path, {} if each.has_body else None, key=key)
            assert is_refused(reply, 403)
            assert b"secret plan" not in reply.body
        assert await server.holdfast.tenant(MINE).sessions.list() == [session]

    played(play)


def test_a_new_route_is_attacked_without_being_named() -> None:
    @operation("GET", "/v1/new")
    async def new(service: object) -> None:
        """New."""

    assert new.operation.need == "read"  # type: ignore[attr-defined]
    assert Operation("GET", "/v1/new", new, 200, (), None).need == "read"


def test_a_good_key_works_in_either_header_and_only_within_its_walls() -> None:
    async def play(server: Running) -> None:
        key, kept = await made(server.holdfast)
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("POST", path, {}, key=key)).status == 201
        assert (await server.ask("GET", path, key=None, headers={"X-API-Key": key})).status == 200
        assert (await server.ask("GET", path, key=None, headers={"Authorization": f"bearer  {key}"})).status == 200
        assert (await server.ask("GET", f"/v1/tenants/{THEIRS}/sessions", key=key)).status == 403
        assert (await server.holdfast.api_keys.get(kept.id)).last_used_at is not None

    played(play)


def test_who_acts_may_be_said_in_a_header() -> None:
    async def play(server: Running) -> None:
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("POST", path, {}, headers={"X-User-Id": "ada"})).json["user"] == "ada"
        assert (await server.ask("POST", path, {"user": "bob"}, headers={"X-User-Id": "ada"})).json["user"] == "bob"
        assert (await server.ask("POST", path, {})).json["user"] == ""

    played(play)


# The networks that are trusted


TRUSTING = AccessOptions(trusted=networks(["10.0.0.0/8", "fd00::/8"]), tenant=MINE)


@pytest.mark.parametrize("address", ["10.1.2.3", "fd00::7"])
def test_from_a_trusted_network_one_tenant_can_be_used_without_a_key(address: str) -> None:
    async def play(server: Running) -> None:
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("POST", path, {}, key=None, address=address)).status == 201
        token = {"Authorization": "Bearer eyJhbGciOi.of.somebody-else"}
        assert (await server.ask("GET", path, key=None, address=address, headers=token)).status == 200
        above = [each for each in CLOSED if each.need in ("admin", "root")]
        await every_route(server, above, 403, key=None, address=address)
        await every_route(server, CLOSED[:9], 401, key=new_api_key(), address=address)
        other = await server.ask("GET", f"/v1/tenants/{THEIRS}/sessions", key=None, address=address)
        assert is_refused(other, 403)

    played(play, access=TRUSTING)


@pytest.mark.parametrize("address", ["11.0.0.1", "127.0.0.1", "::ffff:10.1.2.3", "fe80::1", "", "unix", "10.1.2.3.4"])
def test_from_anywhere_else_it_cannot(address: str) -> None:
    spoofed = {"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3", "X-Real-Ip": "10.1.2.3"}
    played(
        lambda server: every_route(server, CLOSED[:9], 401, key=None, address=address, headers=spoofed),
        access=TRUSTING,
    )


@pytest.mark.parametrize("written", ["10.0.0.1/8", "everywhere", "10.0.0.0/33", "*"])
def test_a_range_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(InvalidInput, match="address range"):
        networks([written])


# How often


def test_who_is_refused_too_often_is_told_to_wait_and_others_are_not() -> None:
    async def play(server: Running) -> None:
        path = "/v1/tenants/acme/sessions"
        statuses = [(await server.ask("GET", path, key=new_api_key())).status for _ in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        told = await server.ask("GET", path, key=new_api_key())
        assert (told.json["type"], told.headers["retry-after"]) == ("LimitExceeded", "1000")
        assert (await server.ask("GET", path, key=new_api_key(), address="10.0.0.9")).status == 401

    played(play, limits=ServerLimits(refusals_per_s=0.001, refusals_at_once=3))


def test_a_key_that_asks_too_often_is_told_to_wait_and_others_are_not() -> None:
    async def play(server: Running) -> None:
        path = "/v1/tenants/acme/sessions"
        statuses = [(await server.ask("GET", path)).status for _ in range(4)]
        assert statuses == [200, 200, 429, 429]
        other, _ = await made(server.holdfast)
        assert (await server.ask("GET", path, key=other)).status == 200

    played(play, limits=ServerLimits(requests_per_s=0.001, requests_at_once=2))


def test_a_bucket_fills_up_again_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("holdfast.api.rates.monotonic_s", lambda: now[0])
    rates = Rates(2.0, 2)
    assert [rates.take("a"), rates.take("a"), rates.take("a")] == [0.0, 0.0, 0.5]
    assert rates.take("b") == 0.0
    now[0] += 0.5
    assert rates.wait_s("a") == 0.0
    assert [rates.take("a"), rates.take("a")] == [0.0, 0.5]
    now[0] += 1_000
    assert [rates.take("a"), rates.take("a"), rates.take("a")] == [0.0, 0.0, 0.5], "no more than at once"
    assert Rates(0.0, 0).take("a") == 0.0


def test_no_more_names_are_remembered_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.rates._NAMES_MOST", 3)
    rates = Rates(0.001, 1)
    for name in "abcd":
        rates.take(name)
    assert len(rates._left) == 3
    assert rates.take("d") > 0


# What is noted


def test_every_refusal_is_in_the_activity_log_and_no_secret_with_it(caplog: pytest.LogCaptureFixture) -> None:
    key = new_api_key()

    async def play(server: Running) -> tuple[list[Any], list[Any]]:
        wrong, kept = await made(server.holdfast, tenant=THEIRS)
        await server.ask("GET", "/v1/tenants/acme/sessions", key=key)
        await server.ask("GET", "/v1/tenants/acme/sessions", key=None)
        await server.ask("POST", "/v1/tenants/acme/sessions", {}, key=wrong)
        await server.service.denials.flush(server.holdfast)
        for each in (SERVER, THEIRS):
            for entry in await server.holdfast.tenant(each).activity.list():
                assert wrong[11:] not in repr(entry)
        (theirs,) = await server.holdfast.tenant(THEIRS).activity.list()
        assert (theirs.action, theirs.actor, theirs.details["key_id"]) == ("access.denied", kept.id, kept.id)
        assert theirs.subject_id == "POST /v1/tenants/acme/sessions"
        assert "tenant" in theirs.reason
        return await server.holdfast.tenant(SERVER).activity.list(), await server.holdfast.tenant(
            "acme"
        ).activity.list()

    with caplog.at_level(logging.DEBUG):
        noted, of_the_victim = played(play)
    assert sorted(each.reason for each in noted) == [
        "send an API key, as Authorization: Bearer hf_...",
        "this API key is not known here",
    ]
    assert of_the_victim == [], "strangers cannot fill a tenant's log"
    assert key not in repr(noted) + caplog.text
    assert key[3:] not in caplog.text


def test_a_revoked_key_is_noted_in_the_log_of_its_tenant() -> None:
    async def play(server: Running) -> None:
        key, kept = await made(server.holdfast)
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("GET", path, key=key)).status == 200
        await server.holdfast.api_keys.revoke(kept.id)
        await asyncio.sleep(0.02)  # see above
        assert (await server.ask("GET", path, key=key)).status == 401
        await server.service.denials.flush(server.holdfast)
        (entry,) = await server.holdfast.tenant(MINE).activity.list()
        assert (entry.reason, entry.details["key_id"]) == ("this API key was revoked", kept.id)

    played(play, limits=ServerLimits(refusals_per_s=0, key_s=0.01))


def test_a_flood_of_refusals_is_counted_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denials, "WAITING_MOST", 3)

    async def play(server: Running) -> list[str]:
        for _ in range(8):
            server.service.denials.note(denials.Denial("", "no", "", "10.0.0.1", "GET", "/"))
        await server.service.denials.flush(server.holdfast)
        return [each.reason for each in await server.holdfast.tenant(SERVER).activity.list()]

    assert sorted(played(play)) == ["5 more refusals than could be noted", "no", "no", "no"]


def test_what_was_refused_last_is_noted_before_the_server_stops(tmp_path: Path) -> None:
    place = str(tmp_path / "agents.db")
    played(lambda server: server.ask("GET", "/v1/tenants", key=None), database=place)
    with Holdfast(place) as hf:
        assert len(hf.tenant(SERVER).activity.list()) == 1


# The first key


def test_the_first_key_is_drawn_once_shown_once_and_kept_as_a_digest(tmp_path: Path) -> None:
    place = tmp_path / "agents.db"

    async def first() -> str:
        async with running(str(place), admin_key=None) as server:
            key = server.service.drawn_key
            assert key is not None
            assert (await server.ask("GET", "/v1/tenants", key=key)).status == 200
            return key

    async def second() -> None:
        async with running(str(place), admin_key=None) as server:
            assert server.service.drawn_key is None

    key = asyncio.run(first())
    asyncio.run(second())
    assert key.encode() not in b"".join(each.read_bytes() for each in tmp_path.iterdir())
    with Holdfast(str(place)) as hf:
        (kept,) = hf.api_keys.list()
        assert (kept.tenant, kept.scopes, kept.name) == ("", ["admin"], "admin")
        hf.api_keys.revoke(kept.id)

    async def third() -> str | None:
        async with running(str(place), admin_key=None) as server:
            return server.service.drawn_key

    assert asyncio.run(third()) not in (None, key), "who has lost the only key revokes it and starts again"


def test_a_server_shows_its_first_key_and_nothing_of_it_afterwards(start: Callable[..., ServerProcess]) -> None:
    server = start(HOLDFAST_ADMIN_KEY="", HOLDFAST_LOG_LEVEL="debug", HOLDFAST_LOG_FORMAT="json")
    shown = re.findall(r"hf_[0-9a-f]{48}", server.printed)
    assert len(set(shown)) == 1
    answered(server.http.get("/v1/tenants", headers={"Authorization": f"Bearer {shown[0]}"}))
    refused(server.http.get("/v1/tenants", headers={"Authorization": "Bearer " + shown[0][:-1]}), 401, "Forbidden")
    server.close()
    assert shown[0] not in server.log
    assert '"message":"refused GET /v1/tenants' in server.log
    again = start(HOLDFAST_ADMIN_KEY="")
    assert "hf_" not in again.printed


def test_a_key_that_is_none_or_is_there_for_another_purpose_stops_the_start(tmp_path: Path) -> None:
    for key, says in (("secret", "48 hexadecimal"), (ADMIN_KEY, "another purpose")):
        with Holdfast(str(tmp_path / "agents.db")) as hf:
            hf.api_keys.create(ADMIN_KEY, name="reader", scopes=["read"])
        arguments = ["serve", "--port", "0", "--database", "agents.db"]
        failed = command(*arguments, cwd=tmp_path, HOLDFAST_ADMIN_KEY=key)
        assert failed.returncode == 1
        assert says in failed.stderr
        assert key not in failed.stderr
        assert len(failed.stderr.splitlines()) == 1, failed.stderr


def test_scopes_mean_what_they_say() -> None:
    def may(need: Any, area: str, tenant: str, *scopes: str) -> bool:
        return Caller("x", tenant, frozenset(scopes)).may(need, area)

    assert may("open", "runs", "t")
    assert may("read", "runs", "t", "read")
    assert may("read", "runs", "t", "runs:read")
    assert may("write", "runs", "t", "admin")
    assert may("root", "tenants", "", "admin")
    assert not may("read", "runs", "t", "write")
    assert not may("read", "runs", "t", "sessions:read")
    assert not may("admin", "keys", "t", "read", "write", "keys:read", "keys:write")
    assert not may("root", "tenants", "t", "admin")
    assert not may("root", "tenants", "", "read", "write")


def test_calm_is_for_tests_only() -> None:
    assert CALM.refusals_per_s == 0
    assert ServerLimits().refusals_per_s > 0
