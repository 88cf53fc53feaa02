"""Log lines and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import FixedClock, new_api_key
from holdfast.api import auth
from holdfast.api.limits import ServerLimits
from holdfast.api.metrics import Metrics
from holdfast.cli.logs import JsonLines
from tests.api.in_process import Running, running
from tests.servers import PostgresServer


def test_a_log_line_is_one_json_object() -> None:
    record = logging.LogRecord("holdfast.api", logging.WARNING, "f", 1, "refused %s\n%s", ("GET", "\ud800"), None)
    body = json.loads(JsonLines().format(record))
    assert (body["level"], body["logger"]) == ("warning", "holdfast.api")
    assert body["message"] == "refused GET\n\\ud800"
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    assert "ValueError: why" in json.loads(line)["traceback"]


# Metrics


def test_durations_are_counted_in_the_right_buckets() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.001, 0.2, 99.0):
        metrics.add("get_session", 200, seconds)
    metrics.add("get_session", 404, 0.01)
    lines = metrics.text(is_ready=False, streams=3).splitlines()
    assert 'holdfast_requests_total{operation="get_session",status="200"} 4' in lines
    assert 'holdfast_request_seconds_bucket{operation="get_session",le="0.001"} 2' in lines
    assert 'holdfast_request_seconds_bucket{operation="get_session",le="0.25"} 4' in lines
    assert 'holdfast_request_seconds_bucket{operation="get_session",le="+Inf"} 5' in lines
    assert 'holdfast_request_seconds_count{operation="get_session"} 5' in lines
    assert {"holdfast_ready 0", "holdfast_streams 3"} <= set(lines)
    for line in lines:
        assert line.startswith("#") or re.fullmatch(
            r'[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [0-9.]+', line
        ), line


async def watching(server: Running, **fields: Any) -> str:
    key = new_api_key()
    await server.holdfast.api_keys.create(key, name="prometheus", scopes=["read"], **fields)
    return key


async def get_metrics(server: Running, key: str, path: str = "/metrics") -> tuple[int, list[str]]:
    """Return the status, and the reported readiness."""
    reply = await server.ask("GET", path, key=key)
    return reply.status, re.findall("^holdfast_ready .", reply.body.decode(), re.MULTILINE)


def test_metrics_show_a_lost_database_to_callers_with_a_verified_key(own_postgres: PostgresServer) -> None:
    clock = FixedClock(datetime(2090, 1, 1, tzinfo=UTC))
    place = own_postgres.create_database("watched")

    async def play() -> None:
        limits = ServerLimits(refusals_per_s=0, key_s=0, ready_s=2)
        async with running(place, limits=limits, clock=clock, migrate=True) as server:
            results, strange = await watching(server), await watching(server)
            ending = await watching(server, expires_at=datetime(2090, 1, 2, tzinfo=UTC))
            of_one = await watching(server, tenant="acme")
            assert [await get_metrics(server, value) for value in (results, ending)] == [
                (200, ["holdfast_ready 1"])
            ] * 2
            assert await get_metrics(server, of_one) == (403, [])
            own_postgres.kill()
            assert [await get_metrics(server, value) for value in (results, ending)] == [
                (200, ["holdfast_ready 0"])
            ] * 2
            assert await get_metrics(server, strange) == (503, [])
            assert await get_metrics(server, of_one) == (403, [])
            assert await get_metrics(server, results, "/v1/tenants/acme/sessions") == (503, [])
            clock.advance(86_400)
            assert await get_metrics(server, ending) == (401, [])
            own_postgres.start()
            assert await get_metrics(server, results) == (200, ["holdfast_ready 1"])

    asyncio.run(play())


def test_the_wait_for_a_database_that_hangs_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "AWAY_S", 0.01)

    async def never(*args: Any, **kwargs: Any) -> None:
        await asyncio.Event().wait()

    async def play() -> None:
        async with running(limits=ServerLimits(refusals_per_s=0, key_s=0)) as server:
            key = await watching(server)
            assert (await get_metrics(server, key))[0] == 200
            monkeypatch.setattr(type(server.holdfast.api_keys), "verify", never)
            async with asyncio.timeout(60):
                assert (await get_metrics(server, key))[0] == 200

    asyncio.run(play())


def test_a_revoked_key_gets_no_metrics() -> None:
    async def play() -> None:
        async with running(limits=ServerLimits(refusals_per_s=0, key_s=0)) as server:
            key = await watching(server)
            assert (await get_metrics(server, key))[0] == 200
            for one_key in await server.holdfast.api_keys.list():
                await server.holdfast.api_keys.revoke(one_key.id)
            assert (await get_metrics(server, key))[0] == 401

    asyncio.run(play())


# Untrusted text


FORGED = "/v1/tenants/x%0a2026-11-16%20WARNING%20FORGED%1b[2J%c2%9b%e2%80%a8%0d/sessions"


def test_a_path_cannot_add_lines_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    secret = new_api_key()

    async def play() -> list[Any]:
        async with running() as server:
            for path in (FORGED, f"/v1/tenants/{secret}/sessions"):
                await server.ask("GET", path, key=None)
            await server.service.audit.flush(server.holdfast)
            return list(await server.holdfast.tenant("_server").activity.list())

    noted = asyncio.run(play())
    assert len(caplog.messages) == 2
    assert all(message.isprintable() for message in caplog.messages)
    assert r"GET /v1/tenants/x\n2026-11-16 WARNING FORGED\x1b[2J\x9b\u2028\r/sessions from" in caplog.messages[0]
    assert secret[11:] not in caplog.text + repr(noted)
    assert {item.subject_id for item in noted} >= {"GET /v1/tenants/.../sessions"}
