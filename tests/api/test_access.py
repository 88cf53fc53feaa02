"""Access control: every route refuses every caller without the required key and scope."""

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
from tests.api.in_process import CALM, Running, running
from tests.api.process import ADMIN_KEY, BEARER, ServerProcess, command, json_of, problem_of
from tests.api.refusals import (
    CLOSED,
    IN_PATH,
    MINE,
    OF_A_TENANT,
    THEIRS,
    check_all_refused,
    create_key,
    is_refused,
    path_of,
    run_server,
)
from tests.errors import raises


def test_there_are_operations_to_test() -> None:
    assert len(CLOSED) >= 20
    assert {op.path for op in OPERATIONS if op.need == "open"} == {"/", "/healthz", "/readyz", "/openapi.json"}


@pytest.mark.parametrize(
    "key",
    [None, "hf_" + "0" * 48, "hf_", "hf_\udcff", new_api_key()[:-1]],
    ids=["none", "unknown", "too short", "not ASCII", "cut off"],
)
def test_every_route_refuses_requests_without_a_valid_key(key: str | None) -> None:
    run_server(lambda server: check_all_refused(server, CLOSED, 401, key=key))


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
def test_a_key_is_only_accepted_in_the_documented_headers(header: dict[str, str]) -> None:
    run_server(lambda server: check_all_refused(server, CLOSED[:5], 401, key=None, headers=header))


def test_every_route_refuses_a_revoked_key() -> None:
    async def play(server: Running) -> None:
        key, kept = await create_key(server.holdfast, scopes=["admin"], tenant="")
        assert (await server.ask("GET", "/v1/tenants", key=key)).status == 200
        await server.holdfast.api_keys.revoke(kept.id)
        await asyncio.sleep(0.02)  # the server may use a verification for key_s, and no longer
        await check_all_refused(server, CLOSED, 401, key=key)

    run_server(play, limits=ServerLimits(refusals_per_s=0, key_s=0.01))


def test_by_default_a_revocation_takes_effect_within_a_second() -> None:
    assert ServerLimits().key_s < 1


def test_every_route_refuses_a_key_from_the_moment_it_expires() -> None:
    clock = FixedClock(datetime(2090, 1, 1, tzinfo=UTC))

    async def play(server: Running) -> None:
        until = datetime(2090, 1, 1, 0, 0, 10, tzinfo=UTC)
        key, _ = await create_key(server.holdfast, scopes=["admin"], tenant="", expires_at=until)
        clock.advance(9.9)
        assert (await server.ask("GET", "/v1/tenants", key=key)).status == 200
        clock.advance(0.1)
        await check_all_refused(server, CLOSED, 401, key=key)

    run_server(play, clock=clock)


def test_every_route_refuses_a_key_that_expired_before_its_first_use() -> None:
    async def play(server: Running) -> None:
        key, _ = await create_key(server.holdfast, scopes=["admin"], expires_at=datetime(2001, 1, 1, tzinfo=UTC))
        await check_all_refused(server, CLOSED, 401, key=key)

    run_server(play)


def test_every_route_refuses_the_key_of_another_tenant_whether_or_not_the_tenant_exists() -> None:
    async def play(server: Running) -> None:
        await server.holdfast.tenants.create(MINE)
        key, _ = await create_key(server.holdfast, tenant=THEIRS, scopes=["admin"])
        await check_all_refused(server, OF_A_TENANT, 403, key=key)
        answers = {
            tenant: (await server.ask("GET", f"/v1/tenants/{tenant}", key=key)).body for tenant in (MINE, "nowhere")
        }
        assert answers[MINE] == answers["nowhere"]

    run_server(play)


def test_routes_for_all_tenants_refuse_the_admin_key_of_one_tenant() -> None:
    async def play(server: Running) -> None:
        key, _ = await create_key(server.holdfast, scopes=["admin"])
        await check_all_refused(server, [op for op in CLOSED if op.need in ("watch", "root")], 403, key=key)

    run_server(play)


@pytest.mark.parametrize("held", ["read", "write"])
def test_every_route_refuses_an_insufficient_scope(held: str) -> None:
    async def play(server: Running) -> None:
        key, _ = await create_key(server.holdfast, scopes=[held], tenant="")
        enough = {"read": ("read", "watch"), "write": ("write",)}[held]
        await check_all_refused(server, [op for op in CLOSED if op.need not in enough], 403, key=key)

    run_server(play)


def test_a_scope_for_one_area_permits_nothing_in_other_areas() -> None:
    async def play(server: Running) -> None:
        keys = {
            area: (await create_key(server.holdfast, scopes=[f"{area}:read", f"{area}:write"]))[0] for area in AREAS
        }
        for op in OF_A_TENANT:
            others = [area for area in AREAS if area != op.tag]
            area = others[hash(op.path) % len(others)]
            reply = await server.ask(op.method, path_of(op, MINE), {} if op.has_body else None, key=keys[area])
            assert is_refused(reply, 403), f"{op.path} with {area}: {reply.status}"
        sessions = await server.ask("POST", f"/v1/tenants/{MINE}/sessions", {}, key=keys["sessions"])
        assert sessions.status == 201

    run_server(play)


def test_a_refused_request_changes_nothing_and_discloses_nothing() -> None:
    async def play(server: Running) -> None:
        session = await server.holdfast.tenant(MINE).sessions.create(key="secret plan", user="ada")
        key, _ = await create_key(server.holdfast, tenant=THEIRS)
        for op in OF_A_TENANT:
            path = IN_PATH.sub(lambda name: MINE if name[1] == "tenant" else session.id, op.path)
            reply = await server.ask(op.method, path, {} if op.has_body else None, key=key)
            assert is_refused(reply, 403)
            assert b"secret plan" not in reply.body
        assert await server.holdfast.tenant(MINE).sessions.list() == [session]

    run_server(play)


def test_a_new_operation_requires_a_key_by_default() -> None:
    @operation("GET", "/v1/new")
    async def new(service: object) -> None:
        """New."""

    assert new.operation.need == "read"  # type: ignore[attr-defined]
    assert Operation("GET", "/v1/new", new, 200, (), None).need == "read"


def test_a_valid_key_works_in_either_header_and_only_in_its_tenant() -> None:
    async def play(server: Running) -> None:
        key, kept = await create_key(server.holdfast)
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("POST", path, {}, key=key)).status == 201
        assert (await server.ask("GET", path, key=None, headers={"X-API-Key": key})).status == 200
        assert (await server.ask("GET", path, key=None, headers={"Authorization": f"bearer  {key}"})).status == 200
        assert (await server.ask("GET", f"/v1/tenants/{THEIRS}/sessions", key=key)).status == 403
        assert (await server.holdfast.api_keys.get(kept.id)).last_used_at is not None

    run_server(play)


def test_each_request_is_authenticated_by_its_own_headers() -> None:
    """Each pair of headers is authenticated by itself, regardless of the pairs in earlier requests."""

    async def play(server: Running) -> None:
        mine, _ = await create_key(server.holdfast, tenant=MINE)
        theirs, _ = await create_key(server.holdfast, tenant=THEIRS)
        proofs = {f"Bearer {mine}": MINE, f"bearer {theirs}": THEIRS, mine: MINE, theirs: THEIRS}
        first: list[str | None] = [None, "", "Basic cHJveHk6cHJveHk=", "Bearer of-another-server", *list(proofs)[:2]]
        second: list[str | None] = [None, "", "hf_" + "0" * 48, mine, theirs]
        pairs = [(one, other) for one in first for other in second]
        for one, other in [*pairs, *reversed(pairs)]:
            by_name = {"Authorization": one, "X-API-Key": other}
            headers = {name: value for name, value in by_name.items() if value is not None}
            whose = proofs.get(one or "") or proofs.get(other or "")
            for tenant in (MINE, THEIRS):
                reply = await server.ask("GET", f"/v1/tenants/{tenant}/sessions", key=None, headers=headers)
                assert reply.status == (401 if whose is None else 200 if whose == tenant else 403), (headers, tenant)

    run_server(play, limits=ServerLimits(refusals_per_s=0, key_s=60))


def test_the_acting_user_can_be_named_in_a_header() -> None:
    async def play(server: Running) -> None:
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("POST", path, {}, headers={"X-User-Id": "ada"})).json["user"] == "ada"
        assert (await server.ask("POST", path, {"user": "bob"}, headers={"X-User-Id": "ada"})).json["user"] == "bob"
        assert (await server.ask("POST", path, {})).json["user"] == ""

    run_server(play)


# Trusted networks


TRUSTING = AccessOptions(trusted=networks(["10.0.0.0/8", "fd00::/8"]), tenant=MINE)


@pytest.mark.parametrize("address", ["10.1.2.3", "fd00::7", "::ffff:10.1.2.3", "::FFFF:0a01:0203"])
def test_a_trusted_network_needs_no_key_in_one_tenant(address: str) -> None:
    async def play(server: Running) -> None:
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("POST", path, {}, key=None, address=address)).status == 201
        token = {"Authorization": "Bearer eyJhbGciOi.of.another-server"}
        assert (await server.ask("GET", path, key=None, address=address, headers=token)).status == 200
        above = [op for op in CLOSED if op.need in ("admin", "watch", "root")]
        await check_all_refused(server, above, 403, key=None, address=address)
        await check_all_refused(server, CLOSED[:9], 401, key=new_api_key(), address=address)
        other = await server.ask("GET", f"/v1/tenants/{THEIRS}/sessions", key=None, address=address)
        assert is_refused(other, 403)

    run_server(play, access=TRUSTING)


ELSEWHERE = ["11.0.0.1", "127.0.0.1", "::ffff:11.0.0.1", "::10.1.2.3", "fe80::1", "", "unix", "10.1.2.3.4"]


@pytest.mark.parametrize("address", ELSEWHERE)
def test_other_addresses_need_a_key_even_with_forwarding_headers(address: str) -> None:
    spoofed = {"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3", "X-Real-Ip": "10.1.2.3"}
    run_server(
        lambda server: check_all_refused(server, CLOSED[:9], 401, key=None, address=address, headers=spoofed),
        access=TRUSTING,
    )


def test_a_range_can_be_written_as_ipv4_mapped_ipv6() -> None:
    assert networks(["::ffff:10.0.0.0/104", "::ffff:127.0.0.1"]) == networks(["10.0.0.0/8", "127.0.0.1"])
    assert [str(network) for network in networks(["::ffff:0:0/96", "fd00::/8"])] == ["0.0.0.0/0", "fd00::/8"]


def test_ipv4_and_mapped_ipv6_share_one_rate_limit() -> None:
    async def play(server: Running) -> list[int]:
        ways = ["10.0.0.1", "::ffff:10.0.0.1"] * 2
        return [(await server.ask("GET", "/v1/tenants", key=None, address=address)).status for address in ways]

    assert run_server(play, limits=ServerLimits(refusals_per_s=0.001, refusals_at_once=2)) == [401, 401, 429, 429]


@pytest.mark.parametrize("written", ["10.0.0.1/8", "everywhere", "10.0.0.0/33", "*"])
def test_an_invalid_address_range_is_refused(written: str) -> None:
    with raises(InvalidInput, field="ranges"):
        networks([written])


def test_an_empty_default_tenant_is_refused(tmp_path: Path) -> None:
    with raises(InvalidInput, field="tenant"):
        AccessOptions(trusted=networks(["127.0.0.1"]), tenant="")
    (tmp_path / "holdfast.toml").write_text("default-tenant = ''")
    for value in (["--default-tenant", ""], ["--config", "holdfast.toml"]):
        failed = command("serve", "--port", "0", "--trust", "127.0.0.1", *value, cwd=tmp_path)
        assert failed.returncode == 2
        assert "--default-tenant" in failed.stderr
        assert "cannot be empty" in failed.stderr
        assert not (tmp_path / "data").exists()


def test_a_remote_server_refuses_web_pages_of_other_sites(start: Callable[..., ServerProcess]) -> None:
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
    assert status(BEARER, Host="any.name") == 200, "with a key any host name is accepted"


# The first key


def test_the_first_key_is_generated_once_and_stored_as_a_digest(tmp_path: Path) -> None:
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
    assert key.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    with Holdfast(str(place)) as hf:
        (kept,) = hf.api_keys.list()
        assert (kept.tenant, kept.scopes, kept.name) == ("", ["admin"], "admin")
        hf.api_keys.revoke(kept.id)

    async def third() -> str | None:
        async with running(str(place), admin_key=None) as server:
            return server.service.generated_key

    assert asyncio.run(third()) not in (None, key), (
        "an operator who has lost the only key revokes it and restarts the server"
    )


def test_a_server_shows_its_first_key_once_and_never_logs_it(start: Callable[..., ServerProcess]) -> None:
    server = start(HOLDFAST_ADMIN_KEY="", HOLDFAST_LOG_LEVEL="debug", HOLDFAST_LOG_FORMAT="json")
    listed = re.findall(r"hf_[0-9a-f]{48}", server.printed)
    assert len(set(listed)) == 1
    json_of(server.http.get("/v1/tenants", headers={"Authorization": f"Bearer {listed[0]}"}))
    problem_of(server.http.get("/v1/tenants", headers={"Authorization": "Bearer " + listed[0][:-1]}), 401, "Forbidden")
    server.close()
    assert listed[0] not in server.log
    assert '"message":"refused GET /v1/tenants' in server.log
    again = start(HOLDFAST_ADMIN_KEY="")
    assert "hf_" not in again.printed


def test_an_invalid_admin_key_or_one_with_other_scopes_prevents_the_start(tmp_path: Path) -> None:
    for key, says in (("secret", "48 hexadecimal"), (ADMIN_KEY, "other scopes")):
        with Holdfast(str(tmp_path / "agents.db")) as hf:
            hf.api_keys.create(ADMIN_KEY, name="reader", scopes=["read"])
        arguments = ["serve", "--port", "0", "--database", "agents.db"]
        failed = command(*arguments, cwd=tmp_path, HOLDFAST_ADMIN_KEY=key)
        assert failed.returncode == 1
        assert says in failed.stderr
        assert key not in failed.stderr
        assert len(failed.stderr.splitlines()) == 1, failed.stderr


def test_scopes_permit_what_they_state() -> None:
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


def test_the_required_scope_in_a_refusal_is_one_that_permits_the_request() -> None:
    async def play(server: Running) -> None:
        weak, _ = await create_key(server.holdfast, scopes=["server:read"], tenant="")
        for op in CLOSED:
            reply = await server.ask(op.method, path_of(op, MINE), {} if op.has_body else None, key=weak)
            if reply.status != 403:
                continue
            words = reply.json["detail"].partition("required scope: ")[2].removesuffix(", without a tenant")
            for scope in words.split(" or "):
                body = {"name": "x", "scopes": [scope]}
                assert (await server.ask("POST", "/v1/keys", body)).status == 201, reply.json
                assert Caller("x", "", frozenset([scope])).may(op.need, op.tag), reply.json

    run_server(play)


@pytest.mark.parametrize("scope", ["run:read", "kagents:write", "admin:read", ":read"])
def test_a_key_with_a_scope_for_an_unknown_area_is_not_created(scope: str, tmp_path: Path) -> None:
    async def play(server: Running) -> None:
        for path in ("/v1/keys", f"/v1/tenants/{MINE}/keys"):
            reply = await server.ask("POST", path, {"name": "x", "scopes": ["read", scope]})
            assert reply.status == 400
            assert repr(scope) in reply.json["detail"]
            assert {"runs", "sessions", "kagent"} <= set(re.findall(r"[\w-]+", reply.json["detail"]))
        assert [key.name for key in await server.holdfast.api_keys.list()] == ["admin"]
        for area in (*AREAS, "kagent"):
            body = {"name": "x", "scopes": [f"{area}:read", f"{area}:write"]}
            assert (await server.ask("POST", "/v1/keys", body)).status == 201

    run_server(play)
    place = str(tmp_path / "agents.db")
    failed = command("keys", "create", "--database", place, "--name", "x", "--scope", scope, cwd=tmp_path)
    assert failed.returncode == 1
    assert "areas: activity, agents, " in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert not Path(place).exists()


def test_unlimited_refusals_are_not_the_default() -> None:
    assert CALM.refusals_per_s == 0
    assert ServerLimits().refusals_per_s > 0
