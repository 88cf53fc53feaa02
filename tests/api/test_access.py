"""Nobody gets in without a key that is good for what is asked: every route, every way of not being allowed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import FixedClock, Holdfast, new_api_key
from holdfast.api.auth import AccessOptions, Caller, networks
from holdfast.api.limits import ServerLimits
from holdfast.api.operations import AREAS, Operation, operation
from holdfast.api.resources import OPERATIONS
from holdfast.errors import InvalidInput
from tests.api.attacks import (
    CLOSED,
    IN_PATH,
    MINE,
    OF_A_TENANT,
    THEIRS,
    address_of,
    every_route,
    is_refused,
    made,
    played,
)
from tests.api.in_process import CALM, Running, running
from tests.api.process import ADMIN_KEY, BEARER, ServerProcess, answered, command, refused
from tests.errors import raises


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
        await every_route(server, [each for each in CLOSED if each.need in ("watch", "root")], 403, key=key)

    played(play)


@pytest.mark.parametrize("held", ["read", "write"])
def test_a_scope_that_is_not_enough_is_refused_by_every_route(held: str) -> None:
    async def play(server: Running) -> None:
        key, _ = await made(server.holdfast, scopes=[held], tenant="")
        enough = {"read": ("read", "watch"), "write": ("write",)}[held]
        await every_route(server, [each for each in CLOSED if each.need not in enough], 403, key=key)

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
            path = IN_PATH.sub(lambda name: MINE if name[1] == "tenant" else session.id, each.path)
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


def test_what_one_header_proves_is_not_remembered_for_another() -> None:
    """Every pair of headers says who asks by itself, whatever pair was let in a moment before."""

    async def play(server: Running) -> None:
        mine, _ = await made(server.holdfast, tenant=MINE)
        theirs, _ = await made(server.holdfast, tenant=THEIRS)
        proofs = {f"Bearer {mine}": MINE, f"bearer {theirs}": THEIRS, mine: MINE, theirs: THEIRS}
        first: list[str | None] = [None, "", "Basic cHJveHk6cHJveHk=", "Bearer somebody-elses", *list(proofs)[:2]]
        second: list[str | None] = [None, "", "hf_" + "0" * 48, mine, theirs]
        pairs = [(one, other) for one in first for other in second]
        for one, other in [*pairs, *reversed(pairs)]:
            given = {"Authorization": one, "X-API-Key": other}
            headers = {name: value for name, value in given.items() if value is not None}
            whose = proofs.get(one or "") or proofs.get(other or "")
            for tenant in (MINE, THEIRS):
                reply = await server.ask("GET", f"/v1/tenants/{tenant}/sessions", key=None, headers=headers)
                assert reply.status == (401 if whose is None else 200 if whose == tenant else 403), (headers, tenant)

    played(play, limits=ServerLimits(refusals_per_s=0, key_s=60))


def test_who_acts_may_be_said_in_a_header() -> None:
    async def play(server: Running) -> None:
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("POST", path, {}, headers={"X-User-Id": "ada"})).json["user"] == "ada"
        assert (await server.ask("POST", path, {"user": "bob"}, headers={"X-User-Id": "ada"})).json["user"] == "bob"
        assert (await server.ask("POST", path, {})).json["user"] == ""

    played(play)


# The networks that are trusted


TRUSTING = AccessOptions(trusted=networks(["10.0.0.0/8", "fd00::/8"]), tenant=MINE)


@pytest.mark.parametrize("address", ["10.1.2.3", "fd00::7", "::ffff:10.1.2.3", "::FFFF:0a01:0203"])
def test_from_a_trusted_network_one_tenant_can_be_used_without_a_key(address: str) -> None:
    async def play(server: Running) -> None:
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("POST", path, {}, key=None, address=address)).status == 201
        token = {"Authorization": "Bearer eyJhbGciOi.of.somebody-else"}
        assert (await server.ask("GET", path, key=None, address=address, headers=token)).status == 200
        above = [each for each in CLOSED if each.need in ("admin", "watch", "root")]
        await every_route(server, above, 403, key=None, address=address)
        await every_route(server, CLOSED[:9], 401, key=new_api_key(), address=address)
        other = await server.ask("GET", f"/v1/tenants/{THEIRS}/sessions", key=None, address=address)
        assert is_refused(other, 403)

    played(play, access=TRUSTING)


ELSEWHERE = ["11.0.0.1", "127.0.0.1", "::ffff:11.0.0.1", "::10.1.2.3", "fe80::1", "", "unix", "10.1.2.3.4"]


@pytest.mark.parametrize("address", ELSEWHERE)
def test_from_anywhere_else_it_cannot(address: str) -> None:
    spoofed = {"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3", "X-Real-Ip": "10.1.2.3"}
    played(
        lambda server: every_route(server, CLOSED[:9], 401, key=None, address=address, headers=spoofed),
        access=TRUSTING,
    )


def test_a_range_may_be_written_as_a_socket_for_both_kinds_shows_it() -> None:
    assert networks(["::ffff:10.0.0.0/104", "::ffff:127.0.0.1"]) == networks(["10.0.0.0/8", "127.0.0.1"])
    assert [str(each) for each in networks(["::ffff:0:0/96", "fd00::/8"])] == ["0.0.0.0/0", "fd00::/8"]


def test_an_address_has_one_allowance_however_it_is_written() -> None:
    async def play(server: Running) -> list[int]:
        ways = ["10.0.0.1", "::ffff:10.0.0.1"] * 2
        return [(await server.ask("GET", "/v1/tenants", key=None, address=each)).status for each in ways]

    assert played(play, limits=ServerLimits(refusals_per_s=0.001, refusals_at_once=2)) == [401, 401, 429, 429]


@pytest.mark.parametrize("written", ["10.0.0.1/8", "everywhere", "10.0.0.0/33", "*"])
def test_a_range_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(InvalidInput, match="address range"):
        networks([written])


def test_the_tenant_of_a_trusted_network_has_a_name_or_nothing_is_served(tmp_path: Path) -> None:
    with raises(InvalidInput, field="tenant"):
        AccessOptions(trusted=networks(["127.0.0.1"]), tenant="")
    (tmp_path / "holdfast.toml").write_text("default-tenant = ''")
    for said in (["--default-tenant", ""], ["--config", "holdfast.toml"]):
        failed = command("serve", "--port", "0", "--trust", "127.0.0.1", *said, cwd=tmp_path)
        assert failed.returncode == 2
        assert "--default-tenant" in failed.stderr
        assert "a tenant has a name" in failed.stderr
        assert not (tmp_path / "data").exists()


def test_a_server_for_other_machines_lets_no_web_page_in_without_a_key(start: Callable[..., ServerProcess]) -> None:
    server = start("--allow-remote", "--trust", "127.0.0.1", "--allowed-host", "Holdfast.internal")
    path = "/v1/tenants/default/sessions"

    def status(key: dict[str, str], **headers: str) -> int:
        return httpx.get(f"{server.url}{path}", headers={**key, **headers}).status_code

    for ours in ("127.0.0.1:1", "[::1]:1", "localhost", "holdfast.internal:8420"):
        assert status({}, Host=ours) == 200, ours
        assert status({}, Host=ours, Origin=f"http://{ours}") == 200, ours
        assert status({}, Host=ours, Origin="http://evil.example") == 403, ours
    assert status({}, Host="evil.example", Origin="http://evil.example") == 401
    assert status({}, Host="evil.example") == 401
    assert status(BEARER, Host="any.name") == 200, "a key is enough"


# The first key


def test_the_first_key_is_drawn_once_shown_once_and_kept_as_a_digest(tmp_path: Path) -> None:
    place = tmp_path / "agents.db"

    async def first() -> str:
        async with running(str(place), admin_key=None) as server:
            key = server.service.generated_key
            assert key is not None
            assert (await server.ask("GET", "/v1/tenants", key=key)).status == 200
            return key

    async def second() -> None:
        async with running(str(place), admin_key=None) as server:
            assert server.service.generated_key is None

    key = asyncio.run(first())
    asyncio.run(second())
    assert key.encode() not in b"".join(each.read_bytes() for each in tmp_path.iterdir())
    with Holdfast(str(place)) as hf:
        (kept,) = hf.api_keys.list()
        assert (kept.tenant, kept.scopes, kept.name) == ("", ["admin"], "admin")
        hf.api_keys.revoke(kept.id)

    async def third() -> str | None:
        async with running(str(place), admin_key=None) as server:
            return server.service.generated_key

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
    for key, says in (("secret", "48 hexadecimal"), (ADMIN_KEY, "other scopes")):
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
    assert may("watch", "server", "", "read")
    assert may("watch", "server", "", "server:read")
    assert may("watch", "server", "", "admin")
    assert not may("watch", "server", "", "write", "runs:read")
    assert not may("watch", "server", "t", "read", "admin")


def test_what_a_refusal_says_it_takes_is_a_scope_that_a_key_can_have() -> None:
    async def play(server: Running) -> None:
        weak, _ = await made(server.holdfast, scopes=["server:read"], tenant="")
        for each in CLOSED:
            reply = await server.ask(each.method, address_of(each, MINE), {} if each.has_body else None, key=weak)
            if reply.status != 403:
                continue
            words = reply.json["detail"].partition("required scope: ")[2].removesuffix(", without a tenant")
            for scope in words.split(" or "):
                body = {"name": "x", "scopes": [scope]}
                assert (await server.ask("POST", "/v1/keys", body)).status == 201, reply.json
                assert Caller("x", "", frozenset([scope])).may(each.need, each.tag), reply.json

    played(play)


@pytest.mark.parametrize("scope", ["run:read", "kagents:write", "admin:read", ":read"])
def test_a_key_for_a_kind_of_thing_that_is_none_is_not_made(scope: str, tmp_path: Path) -> None:
    async def play(server: Running) -> None:
        for path in ("/v1/keys", f"/v1/tenants/{MINE}/keys"):
            reply = await server.ask("POST", path, {"name": "x", "scopes": ["read", scope]})
            assert reply.status == 400
            assert repr(scope) in reply.json["detail"]
            assert {"runs", "sessions", "kagent"} <= set(re.findall(r"[\w-]+", reply.json["detail"]))
        assert [each.name for each in await server.holdfast.api_keys.list()] == ["admin"]
        for area in (*AREAS, "kagent"):
            body = {"name": "x", "scopes": [f"{area}:read", f"{area}:write"]}
            assert (await server.ask("POST", "/v1/keys", body)).status == 201

    played(play)
    place = str(tmp_path / "agents.db")
    failed = command("keys", "create", "--database", place, "--name", "x", "--scope", scope, cwd=tmp_path)
    assert failed.returncode == 1
    assert "areas: activity, agents, " in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert not Path(place).exists()


def test_calm_is_for_tests_only() -> None:
    assert CALM.refusals_per_s == 0
    assert ServerLimits().refusals_per_s > 0
