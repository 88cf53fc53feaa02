"""Unit tests of the parts of /v1: scopes, rate limits, audit log, problems, JSON, metrics."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import AsyncHoldfast, Filter, errors
from holdfast.api import audit
from holdfast.api.audit import SERVER, AuditLog, Denial
from holdfast.api.auth import Access, AccessOptions, Caller, address_of, networks
from holdfast.api.idempotency import RETRY_ID, retry_id
from holdfast.api.limits import ServerLimits
from holdfast.api.metrics import BOUNDS_S, Metrics
from holdfast.api.notifier import Notifier
from holdfast.api.operations import Need
from holdfast.api.pagination import filters
from holdfast.api.problems import (
    HttpError,
    NotAuthenticated,
    PreconditionFailed,
    TooManyRequests,
    answer,
    status_of,
    title_of,
)
from holdfast.api.rate_limit import RateLimit
from holdfast.api.schemas import decode, parse_time
from holdfast.api.state import Service
from holdfast.api.streams import StreamPosition, event
from holdfast.errors import Closed, Forbidden, HoldfastError, InvalidInput, LimitExceeded, OutcomeUnknown
from holdfast.types import Session
from tests.errors import raises

ANY = msgspec.json.Decoder()

# Scopes


@pytest.mark.parametrize(
    ("tenant", "scopes", "need", "may"),
    [
        ("acme", {"read"}, "read", True),
        ("acme", {"read"}, "write", False),
        ("acme", {"write"}, "read", False),
        ("acme", {"runs:read"}, "read", True),
        ("acme", {"agents:read"}, "read", False),
        ("acme", {"runs:write"}, "write", True),
        ("acme", {"read", "write"}, "admin", False),
        ("acme", {"admin"}, "read", True),
        ("acme", {"admin"}, "admin", True),
        ("acme", {"admin"}, "root", False),
        ("", {"admin"}, "root", True),
        ("", {"read", "write"}, "root", False),
        ("", set(), "open", True),
        ("", set(), "read", False),
    ],
)
def test_permissions_follow_from_the_scopes(tenant: str, scopes: set[str], need: Need, may: bool) -> None:
    assert Caller("key x", tenant, frozenset(scopes)).may(need, "runs") is may


def test_address_ranges_are_parsed_and_empty_ones_ignored() -> None:
    result = networks([" 10.0.0.0/8", "", "  ", "fd00::/8", "127.0.0.1"])
    assert [str(row) for row in result] == ["10.0.0.0/8", "fd00::/8", "127.0.0.1/32"]
    for wrong in ("10.0.0.1/8", "10.0.0.0/33", "localhost", "10.0.0.0-10.0.0.9"):
        with raises(InvalidInput, field="ranges"):
            networks([wrong])


@pytest.mark.parametrize(("client", "address"), [(None, ""), (("::1", 9), "::1"), (["10.0.0.1", 1], "10.0.0.1")])
def test_the_address_is_that_of_the_connection(client: Any, address: str) -> None:
    assert address_of({"type": "http", "client": client}) == address
    assert address_of({"type": "http"}) == ""


def scope(address: str = "10.1.2.3") -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": "/v1", "client": (address, 1), "headers": []}


def access(*trusted: str, tenant: str = "home") -> Access:
    options = AccessOptions(trusted=networks(trusted), tenant=tenant)
    return Access(Service(":memory:", ServerLimits(refusals_per_s=0)), options, AuditLog())


def test_a_trusted_range_reads_and_writes_in_one_tenant() -> None:
    result = asyncio.run(access("10.0.0.0/8").caller(scope(), {}))
    assert (result.tenant, result.scopes, result.key_id) == ("home", {"read", "write"}, "")
    assert (result.address, result.may("admin", "runs")) == ("10.1.2.3", False)


@pytest.mark.parametrize("address", ["11.0.0.1", "", "unix", "::ffff:11.0.0.1", "10.1.2"])
def test_other_addresses_need_a_key(address: str) -> None:
    with raises(NotAuthenticated, key=None):
        asyncio.run(access("10.0.0.0/8").caller(scope(address), {}))


@pytest.mark.parametrize(
    "header", [b"Basic aGY6eA==", b"Bearer eyJhbGciOi", b"Bearer", b"hf_" + b"0" * 48, b"", b"Token hf_" + b"0" * 48]
)
def test_a_foreign_token_is_not_a_key_and_is_ignored(header: bytes) -> None:
    assert asyncio.run(access("10.0.0.0/8").caller(scope(), {b"authorization": header})).tenant == "home"


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key"])
def test_a_key_from_a_trusted_range_is_verified_too(name: bytes) -> None:
    value = b"Bearer hf_x" if name == b"authorization" else b"anything"
    with pytest.raises(Closed):
        asyncio.run(access("10.0.0.0/8").caller(scope(), {name: value}))


@pytest.mark.parametrize(
    ("caller", "need", "tenant", "reason", "named"),
    [
        (Caller("k", "acme", frozenset(["admin"])), "read", "zenith", "tenant", "'acme'"),
        (Caller("k", "acme", frozenset(["read"])), "write", "acme", "scope", "runs:write"),
        (Caller("k", "acme", frozenset(["admin"])), "root", None, "scope", "admin"),
    ],
)
def test_a_refusal_names_the_required_scope(
    caller: Caller, need: Need, tenant: str | None, reason: str, named: str
) -> None:
    with raises(Forbidden, reason=reason) as refused:
        access().check(caller, need, "runs", tenant, scope())
    assert named in str(refused.value)


# Rate limits


@settings(max_examples=40)
@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 8)), max_size=25),
)
def test_a_token_bucket_matches_a_model(per_s: int, most: int, asked: list[tuple[str, int]]) -> None:
    now, left = [0.0], {"a": float(most), "b": float(most)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.api.rate_limit.monotonic_s", lambda: now[0])
        rates = RateLimit(float(per_s), most)
        for name, eighths in asked:
            now[0] += eighths / 8
            left = {item: min(float(most), one_item + eighths / 8 * per_s) for item, one_item in left.items()}
            expected = 0.0 if left[name] >= 1 else (1 - left[name]) / per_s
            assert rates.wait_s(name) == pytest.approx(expected)
            assert rates.take(name) == pytest.approx(expected)
            left[name] -= 1 if left[name] >= 1 else 0


@pytest.mark.parametrize(("wait_s", "after"), [(0.1, "1"), (1.0, "1"), (1.2, "2"), (59.01, "60")])
def test_retry_after_is_a_sufficient_number_of_whole_seconds(wait_s: float, after: str) -> None:
    assert TooManyRequests("key hf_x", wait_s).headers == {"retry-after": after}


# The audit log


def denial(number: int, tenant: str = "acme", path: str = "/v1") -> Denial:
    return Denial(tenant, f"reason {number}", "", "10.0.0.1", "GET", path)


def record(*what: Denial, tenant: str = "acme") -> list[Any]:
    async def main() -> list[Any]:
        async with AsyncHoldfast(":memory:") as holdfast:
            current = AuditLog()
            for item in what:
                current.note(item)
            await current.flush(holdfast)
            return list(await holdfast.tenant(tenant).activity.list())

    return asyncio.run(main())


def test_more_refusals_than_one_batch_are_all_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "BATCH_SIZE", 2)
    result = record(*(denial(number) for number in range(5)))
    assert {row.reason for row in result} == {f"reason {number}" for number in range(5)}
    assert {(row.action, row.actor, row.subject_kind) for row in result} == {("access.denied", "10.0.0.1", "route")}


def test_a_refusal_without_a_tenant_is_recorded_for_the_server_with_a_shortened_path() -> None:
    (result,) = record(denial(1, "", "/v1/" + "x" * 1_000), tenant=SERVER)
    assert (len(result.subject_id), result.subject_id[:8]) == (200, "GET /v1/")


def test_a_refusal_that_cannot_be_recorded_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncHoldfast(":memory:") as holdfast:
            current = AuditLog()
            current.note(denial(1))
        await current.flush(holdfast)
        await current.flush(holdfast)

    with caplog.at_level(logging.WARNING, "holdfast.api.auth"):
        asyncio.run(main())
    assert "refused GET /v1 from 10.0.0.1: reason 1" in caplog.text
    assert caplog.text.count("a refusal could not be recorded: Closed") == 1


# Problems


def test_every_error_has_a_status_and_a_title() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, HoldfastError)]
    assert len(kinds) > 10
    for kind in [*kinds, HttpError, PreconditionFailed]:
        assert 400 <= status_of(kind) < 600
        assert title_of(kind) == (kind.__doc__ or "").strip().splitlines()[0] != ""


@pytest.mark.parametrize(
    ("error", "status", "name", "told"),
    [
        (InvalidInput("a is b"), 400, "InvalidInput", True),
        (PreconditionFailed("it moved"), 412, "Conflict", True),
        (NotAuthenticated("no key"), 401, "Forbidden", True),
        (errors.Unavailable("host db7 is down"), 503, "Unavailable", False),
        (errors.Corrupt("page 7 of /srv/x"), 500, "Corrupt", False),
        (errors.StorageFull("/srv is full"), 507, "StorageFull", False),
    ],
)
def test_errors_of_the_caller_are_explained_and_server_errors_only_named(
    error: HoldfastError, status: int, name: str, told: bool
) -> None:
    response = answer(error, ServerLimits(retry_after_s=9))
    read = msgspec.json.decode(response.body)
    assert (response.status_code, read["status"], read["type"]) == (status, status, name)
    assert (str(error) in read["detail"]) is told
    assert response.headers.get("retry-after") == ("9" if status == 503 else None)


def test_an_unknown_outcome_contains_the_current_id() -> None:
    def lose() -> None:
        with retry_id("ours"):
            assert RETRY_ID.get() == "ours"
            raise OutcomeUnknown("lost")

    with pytest.raises(OutcomeUnknown) as told:
        lose()
    assert msgspec.json.decode(answer(told.value, ServerLimits()).body)["id"] == "ours"
    with pytest.raises(InvalidInput), retry_id("ours"):
        raise InvalidInput("another error is left as it is")


# JSON


def test_the_depth_of_json_is_limited() -> None:
    assert decode(b"[" * 100 + b"]" * 100, ANY) == decode("[" * 100 + "]" * 100, ANY)
    for deep in (b"[" * 100_000, b'{"a":' * 100_000 + b"1", b'["\\ud800",' + b"[" * 100_000):
        with pytest.raises((LimitExceeded, InvalidInput)):
            decode(deep, ANY)


def test_several_times_in_a_filter_are_parsed() -> None:
    written = ["2030-01-31T12:00:00Z", "2030-01-31T13:00:00+01:00"]
    (result,) = filters([Filter("in", written, column="created_at")], Session)
    assert result.value == [parse_time(written[0])] * 2
    with raises(InvalidInput, field="time"):
        filters([Filter("in", ["2030-01-31T12:00:00Z", "soon"], column="created_at")], Session)


def test_an_event_is_encoded_without_line_breaks_in_its_data() -> None:
    sent = event(StreamPosition(7, 0), "message", {"text": "a\n\nid: 8\r\n", "lone": "\ud800"}).encoded
    assert sent.count(b"\n\n") == 1
    head, data = sent[:-2].split(b"\ndata: ")
    assert head == b"id: 7\nevent: message"
    assert decode(data, ANY) == {"text": "a\n\nid: 8\r\n", "lone": "\ud800"}


def test_publications_wake_their_listeners_and_closing_wakes_all() -> None:
    async def main() -> None:
        notifier = Notifier()
        one, other = notifier.listen("a"), notifier.listen("b")
        assert notifier.listeners == 2
        notifier.publish("a")
        notifier.publish("no listener")
        await one.wait(60)
        waiting = asyncio.create_task(other.wait(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        notifier.close()
        await waiting
        await one.wait(60)
        for value in (one, other, one):
            value.close()
        assert (notifier.listeners, notifier._waiting) == (0, {})

    asyncio.run(main())


@given(st.lists(st.floats(0, 20), min_size=1, max_size=20))
@settings(max_examples=20)
def test_cumulative_buckets_count_everything_up_to_their_bound(times: list[float]) -> None:
    metrics = Metrics()
    for one_time in times:
        metrics.add("x", 200, one_time)
    text = dict(line.rsplit(" ", 1) for line in metrics.text(is_ready=True, streams=0).splitlines() if line[0] != "#")
    for bound in BOUNDS_S:
        name = f'holdfast_request_seconds_bucket{{operation="x",le="{bound}"}}'
        assert int(text[name]) == sum(time <= bound for time in times)
    assert int(text['holdfast_request_seconds_bucket{operation="x",le="+Inf"}']) == len(times)
