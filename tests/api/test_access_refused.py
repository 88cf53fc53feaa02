"""How often somebody may ask or be refused, and what is noted of it."""

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
from tests.api.attacks import MINE, THEIRS, made, played
from tests.api.in_process import Running

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


def test_who_asks_without_a_key_too_often_is_told_to_wait_and_keeps_no_key_out() -> None:
    async def play(server: Running) -> list[str]:
        path = "/v1/tenants/acme/sessions"
        good, _ = await made(server.holdfast)
        told = [await server.ask("GET", path, key=None) for _ in range(50)]
        assert [each.status for each in told] == [401] * 3 + [429] * 47
        assert told[-1].headers["retry-after"] == "1000"
        assert (await server.ask("GET", path, key=good)).status == 200, "a key never seen before"
        assert (await server.ask("GET", path, key=new_api_key())).status == 401, "wrong keys are counted apart"
        await server.service.audit.flush(server.holdfast)
        return [each.reason for each in await server.holdfast.tenant(SERVER).activity.list()]

    noted = played(play, limits=ServerLimits(refusals_per_s=0.001, refusals_at_once=3))
    assert sorted(noted) == [
        "47 more refusals were not recorded individually",
        *["send an API key, as Authorization: Bearer hf_..."] * 3,
        "unknown API key",
    ]


def test_a_flood_of_wrong_keys_is_noted_once_and_keeps_no_good_key_out() -> None:
    async def play(server: Running) -> list[str]:
        path = "/v1/tenants/acme/sessions"
        known, _ = await made(server.holdfast)
        unused, _ = await made(server.holdfast)
        assert (await server.ask("GET", path, key=known)).status == 200
        for _ in range(50):
            await server.ask("GET", path, key=new_api_key())
        assert (await server.ask("GET", path, key=known)).status == 200
        flood = [server.ask("GET", path, key=new_api_key()) for _ in range(50)]
        *refused, served = await asyncio.gather(*flood, server.ask("GET", path, key=unused))
        assert {each.status for each in refused} == {429}
        assert served.status == 200, "a key that was never used before"
        assert (await server.ask("GET", path, key=None)).status == 401
        await server.service.audit.flush(server.holdfast)
        return [each.reason for each in await server.holdfast.tenant(SERVER).activity.list()]

    noted = played(play, limits=ServerLimits(refusals_per_s=0.001, refusals_at_once=3, key_s=0))
    assert sorted(noted) == [
        "47 more refusals were not recorded individually",
        "50 more refusals were not recorded individually",
        "send an API key, as Authorization: Bearer hf_...",
        *["unknown API key"] * 3,
    ]


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
    monkeypatch.setattr("holdfast.api.rate_limit.monotonic_s", lambda: now[0])
    rates = RateLimit(2.0, 2)
    assert [rates.take("a"), rates.take("a"), rates.take("a")] == [0.0, 0.0, 0.5]
    assert rates.take("b") == 0.0
    now[0] += 0.5
    assert rates.wait_s("a") == 0.0
    assert [rates.take("a"), rates.take("a")] == [0.0, 0.5]
    now[0] += 1_000
    assert [rates.take("a"), rates.take("a"), rates.take("a")] == [0.0, 0.0, 0.5], "no more than at once"
    assert RateLimit(0.0, 0).take("a") == 0.0


@pytest.mark.parametrize("asked_per_s", [10, 7, 50, 1_000])
def test_who_asks_too_often_all_the_time_is_still_let_in_as_often_as_is_allowed(
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


def test_no_more_names_are_remembered_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.rate_limit._MAX_NAMES", 3)
    rates = RateLimit(0.001, 1)
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
        await server.service.audit.flush(server.holdfast)
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
        "unknown API key",
    ]
    assert of_the_victim == [], "strangers cannot fill a tenant's log"
    assert key not in repr(noted) + caplog.text
    assert key[3:] not in caplog.text


FOREIGN = {
    "requests from web pages of other sites are not allowed": {"Origin": "https://evil.example"},
    "this server only answers requests addressed to 127.0.0.1 or localhost": {"Host": "evil.example"},
}


def test_web_pages_and_names_of_others_are_noted_without_secrets_and_a_flood_of_them_is_counted(
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

    noted = played(play, limits=ServerLimits(refusals_per_s=0.001, refusals_at_once=3))
    page, name = FOREIGN
    assert sorted((each.reason, each.subject_id) for each in noted) == [
        ("39 more refusals were not recorded individually", " "),
        (page, "DELETE /api/sessions/s/shares/..."),
        (page, "GET /v1/..."),
        (name, "DELETE /api/sessions/s/shares/..."),
    ]
    assert secret not in caplog.text + repr(noted)


def test_a_revoked_key_is_noted_in_the_log_of_its_tenant() -> None:
    async def play(server: Running) -> None:
        key, kept = await made(server.holdfast)
        path = f"/v1/tenants/{MINE}/sessions"
        assert (await server.ask("GET", path, key=key)).status == 200
        await server.holdfast.api_keys.revoke(kept.id)
        await asyncio.sleep(0.02)  # see above
        assert (await server.ask("GET", path, key=key)).status == 401
        await server.service.audit.flush(server.holdfast)
        (entry,) = await server.holdfast.tenant(MINE).activity.list()
        assert (entry.reason, entry.details["key_id"]) == ("this API key was revoked", kept.id)

    played(play, limits=ServerLimits(refusals_per_s=0, key_s=0.01))


def test_a_flood_of_refusals_is_counted_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_WAITING", 3)

    async def play(server: Running) -> list[str]:
        for _ in range(8):
            server.service.audit.note(audit.Denial("", "no", "", "10.0.0.1", "GET", "/"))
        await server.service.audit.flush(server.holdfast)
        return [each.reason for each in await server.holdfast.tenant(SERVER).activity.list()]

    assert sorted(played(play)) == ["5 more refusals were not recorded individually", "no", "no", "no"]


def test_a_count_is_noted_even_if_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "COUNTED_S", 0.01)

    async def play(server: Running) -> list[str]:
        for _ in range(5):
            server.service.audit.count()
        for _ in range(2_000):
            if found := await server.holdfast.tenant(SERVER).activity.list():
                return [each.reason for each in found]
            await asyncio.sleep(0.005)
        return []

    assert played(play) == ["5 more refusals were not recorded individually"]


def test_what_was_refused_last_is_noted_before_the_server_stops(tmp_path: Path) -> None:
    place = str(tmp_path / "agents.db")
    played(lambda server: server.ask("GET", "/v1/tenants", key=None), database=place)
    with Holdfast(place) as hf:
        assert len(hf.tenant(SERVER).activity.list()) == 1
