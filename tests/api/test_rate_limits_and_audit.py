"""Rate limits of requests and refusals, and the audit log of refusals."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, new_api_key
from holdfast.api import audit
from holdfast.api.audit import SERVER
from holdfast.api.limits import ServerLimits
from holdfast.api.rate_limit import RateLimit
from tests.api.in_process import Running
from tests.api.refusals import MINE, THEIRS, create_key, run_server

# Rate limits


def test_an_address_over_its_limit_of_refusals_gets_429_and_others_do_not() -> None:
    async def play(server: Running) -> None:
        path = "/v1/tenants/acme/sessions"
        statuses = [(await server.ask("GET", path, key=new_api_key())).status for _ in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        told = await server.ask("GET", path, key=new_api_key())
        assert (told.json["type"], told.headers["retry-after"]) == ("LimitExceeded", "1000")
        assert (await server.ask("GET", path, key=new_api_key(), address="10.0.0.9")).status == 401

    run_server(play, limits=ServerLimits(refusals_per_s=0.001, refusals_at_once=3))


def test_requests_without_a_key_do_not_use_up_the_limit_of_requests_with_a_key() -> None:
    async def play(server: Running) -> list[str]:
        path = "/v1/tenants/acme/sessions"
        good, _ = await create_key(server.holdfast)
        told = [await server.ask("GET", path, key=None) for _ in range(50)]
        assert [reply.status for reply in told] == [401] * 3 + [429] * 47
        assert told[-1].headers["retry-after"] == "1000"
        assert (await server.ask("GET", path, key=good)).status == 200, "a valid key at its first use"
        assert (await server.ask("GET", path, key=new_api_key())).status == 401, "wrong keys have a limit of their own"
        await server.service.audit.flush(server.holdfast)
        return [entry.reason for entry in await server.holdfast.tenant(SERVER).activity.list()]

    noted = run_server(play, limits=ServerLimits(refusals_per_s=0.001, refusals_at_once=3))
    assert sorted(noted) == [
        "47 more refusals were not recorded individually",
        *["send an API key, as Authorization: Bearer hf_..."] * 3,
        "unknown API key",
    ]


def test_a_flood_of_wrong_keys_is_counted_and_does_not_block_valid_keys() -> None:
    async def play(server: Running) -> list[str]:
        path = "/v1/tenants/acme/sessions"
        existing, _ = await create_key(server.holdfast)
        unused, _ = await create_key(server.holdfast)
        assert (await server.ask("GET", path, key=existing)).status == 200
        for _ in range(50):
            await server.ask("GET", path, key=new_api_key())
        assert (await server.ask("GET", path, key=existing)).status == 200
        flood = [server.ask("GET", path, key=new_api_key()) for _ in range(50)]
        *refused, served = await asyncio.gather(*flood, server.ask("GET", path, key=unused))
        assert {reply.status for reply in refused} == {429}
        assert served.status == 200, "a valid key at its first use"
        assert (await server.ask("GET", path, key=None)).status == 401
        await server.service.audit.flush(server.holdfast)
        return [entry.reason for entry in await server.holdfast.tenant(SERVER).activity.list()]

    noted = run_server(play, limits=ServerLimits(refusals_per_s=0.001, refusals_at_once=3, key_s=0))
    assert sorted(noted) == [
        "47 more refusals were not recorded individually",
        "50 more refusals were not recorded individually",
        "send an API key, as Authorization: Bearer hf_...",
        *["unknown API key"] * 3,
    ]


def test_a_key_over_its_limit_of_requests_gets_429_and_others_do_not() -> None:
    async def play(server: Running) -> None:
        path = "/v1/tenants/acme/sessions"
        statuses = [(await server.ask("GET", path)).status for _ in range(4)]
        assert statuses == [200, 200, 429, 429]
        other, _ = await create_key(server.holdfast)
        assert (await server.ask("GET", path, key=other)).status == 200

    run_server(play, limits=ServerLimits(requests_per_s=0.001, requests_at_once=2))


def test_a_token_bucket_refills_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("holdfast.api.rate_limit.monotonic_s", lambda: now[0])
    rates = RateLimit(2.0, 2)
    assert [rates.take("a"), rates.take("a"), rates.take("a")] == [0.0, 0.0, 0.5]
    assert rates.take("b") == 0.0
    now[0] += 0.5
    assert rates.wait_s("a") == 0.0
    assert [rates.take("a"), rates.take("a")] == [0.0, 0.5]
    now[0] += 1_000
    assert [rates.take("a"), rates.take("a"), rates.take("a")] == [0.0, 0.0, 0.5], "never more than the burst"
    assert RateLimit(0.0, 0).take("a") == 0.0


@pytest.mark.parametrize("asked_per_s", [10, 7, 50, 1_000])
def test_a_caller_that_constantly_exceeds_its_rate_still_gets_its_rate(
    monkeypatch: pytest.MonkeyPatch, asked_per_s: int
) -> None:
    now = [100.0]
    monkeypatch.setattr("holdfast.api.rate_limit.monotonic_s", lambda: now[0])
    rates = RateLimit(5.0, 5)
    let_in = 0
    for _ in range(60 * asked_per_s):
        now[0] += 1 / asked_per_s
        let_in += rates.take("a") == 0.0
    assert 295 <= let_in <= 305


def test_the_number_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.rate_limit._MAX_NAMES", 3)
    rates = RateLimit(0.001, 1)
    for name in "abcd":
        rates.take(name)
    assert len(rates._left) == 3
    assert rates.take("d") > 0


# The audit log


def test_every_refusal_is_in_the_activity_log_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    key = new_api_key()

    async def play(server: Running) -> tuple[list[Any], list[Any]]:
        wrong, kept = await create_key(server.holdfast, tenant=THEIRS)
        await server.ask("GET", "/v1/tenants/acme/sessions", key=key)
        await server.ask("GET", "/v1/tenants/acme/sessions", key=None)
        await server.ask("POST", "/v1/tenants/acme/sessions", {}, key=wrong)
        await server.service.audit.flush(server.holdfast)
        for value in (SERVER, THEIRS):
            for entry in await server.holdfast.tenant(value).activity.list():
                assert wrong[11:] not in repr(entry)
        (theirs,) = await server.holdfast.tenant(THEIRS).activity.list()
        assert (theirs.action, theirs.actor, theirs.details["key_id"]) == ("access.denied", kept.id, kept.id)
        assert theirs.subject_id == "POST /v1/tenants/acme/sessions"
        assert "tenant" in theirs.reason
        return await server.holdfast.tenant(SERVER).activity.list(), await server.holdfast.tenant(
            "acme"
        ).activity.list()

    with caplog.at_level(logging.DEBUG):
        noted, of_the_victim = run_server(play)
    assert sorted(item.reason for item in noted) == [
        "send an API key, as Authorization: Bearer hf_...",
        "unknown API key",
    ]
    assert of_the_victim == [], "callers without a key of a tenant cannot fill its log"
    assert key not in repr(noted) + caplog.text
    assert key[3:] not in caplog.text


FOREIGN = {
    "requests from web pages of other sites are not allowed": {"Origin": "https://evil.example"},
    "this server only answers requests addressed to 127.0.0.1 or localhost": {"Host": "evil.example"},
}


def test_cross_site_requests_are_logged_without_secrets_and_a_flood_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = uuid4().hex + "0123456789abcdef"

    async def play(server: Running) -> list[Any]:
        for headers in FOREIGN.values():
            path = f"/api/sessions/s/shares/{secret}"
            assert (await server.ask("DELETE", path, key=new_api_key(), headers=headers)).status == 403
        for _ in range(40):
            reply = await server.ask("GET", f"/v1/hf_{secret}", headers={"Origin": "null"})
            assert reply.status == 403
        await server.service.audit.flush(server.holdfast)
        return list(await server.holdfast.tenant(SERVER).activity.list())

    noted = run_server(play, limits=ServerLimits(refusals_per_s=0.001, refusals_at_once=3))
    page, name = FOREIGN
    assert sorted((item.reason, item.subject_id) for item in noted) == [
        ("39 more refusals were not recorded individually", " "),
        (page, "DELETE /api/sessions/s/shares/..."),
        (page, "GET /v1/..."),
        (name, "DELETE /api/sessions/s/shares/..."),
    ]
    assert secret not in caplog.text + repr(noted)


def test_a_revoked_key_is_recorded_in_its_tenants_log() -> None:
    async def play(server: Running) -> None:
        key, kept = await create_key(server.holdfast)
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("GET", path, key=key)).status == 200
        await server.holdfast.api_keys.revoke(kept.id)
        await asyncio.sleep(0.02)  # see above
        assert (await server.ask("GET", path, key=key)).status == 401
        await server.service.audit.flush(server.holdfast)
        (entry,) = await server.holdfast.tenant(MINE).activity.list()
        assert (entry.reason, entry.details["key_id"]) == ("this API key was revoked", kept.id)

    run_server(play, limits=ServerLimits(refusals_per_s=0, key_s=0.01))


def test_refusals_that_do_not_fit_in_the_queue_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_WAITING", 3)

    async def play(server: Running) -> list[str]:
        for _ in range(8):
            server.service.audit.note(audit.Denial("", "no", "", "10.0.0.1", "GET", "/"))
        await server.service.audit.flush(server.holdfast)
        return [entry.reason for entry in await server.holdfast.tenant(SERVER).activity.list()]

    assert sorted(run_server(play)) == ["5 more refusals were not recorded individually", "no", "no", "no"]


def test_a_count_is_recorded_without_further_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "COUNTED_S", 0.01)

    async def play(server: Running) -> list[str]:
        for _ in range(5):
            server.service.audit.count()
        for _ in range(2_000):
            if entries := await server.holdfast.tenant(SERVER).activity.list():
                return [row.reason for row in entries]
            await asyncio.sleep(0.005)
        return []

    assert run_server(play) == ["5 more refusals were not recorded individually"]


def test_refusals_are_recorded_before_the_server_stops(tmp_path: Path) -> None:
    place = str(tmp_path / "agents.db")
    run_server(lambda server: server.ask("GET", "/v1/tenants", key=None), database=place)
    with Holdfast(place) as hf:
        assert len(hf.tenant(SERVER).activity.list()) == 1
