"""Edge cases of API keys: forms, scopes, times, pages, and keys that were revoked, deleted or orphaned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import FixedClock, Holdfast, Limits, SeededIds, new_api_key
from holdfast.clock import from_us
from holdfast.core.paging import encode_cursor
from holdfast.core.tokens import digest
from holdfast.errors import Conflict, Forbidden, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.stores.lifecycle import api_keys
from holdfast.stores.lifecycle.api_keys import SCOPES, SHOWN, prefix_of
from holdfast.types import ApiKey
from tests.errors import raises

UNKNOWN_ID = "01900000-0000-7000-8000-000000000000"
KEY = "hf_" + "0123456789abcdef" * 3
NUMBERS = itertools.count()
LIMITS = Limits(list_rows=6, page_rows=5, tenant_bytes=20, name_bytes=20)
EAST, WEST = timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))


@pytest.fixture(scope="module")
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture(scope="module")
def holdfast(clock: FixedClock) -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=clock, ids=SeededIds(5), limits=LIMITS) as opened:
        yield opened


@pytest.fixture
def tenant() -> str:
    """Return a new tenant."""
    return f"tenant {next(NUMBERS)}"


def create_key(holdfast: Holdfast, tenant: str, **more: Any) -> tuple[str, ApiKey]:
    key = new_api_key()
    return key, holdfast.api_keys.create(key, **{"name": "a key", "tenant": tenant, **more})


def test_new_keys_are_unique_and_valid() -> None:
    drawn = {new_api_key() for _ in range(200)}
    assert len(drawn) == 200
    assert {len(prefix_of(key)) for key in drawn} == {len("hf_") + SHOWN}


def test_a_key_is_stored_as_its_sha256_and_shown_as_its_prefix() -> None:
    assert digest(KEY) == sha256(KEY.encode()).hexdigest()
    assert prefix_of(KEY) == "hf_01234567"


@pytest.mark.parametrize(
    "wrong",
    [
        "", "hf_", KEY[:-1], KEY + "0", KEY.upper(), "HF_" + KEY[3:], KEY[3:], KEY + "\n", "\n" + KEY, " " + KEY,
        KEY[:-1] + "g", KEY[:-1] + "\x00", KEY[:-1] + "\ud800", KEY[:-1] + "٣", KEY.encode(), None, 7, [KEY],
    ],
    ids=lambda wrong: repr(wrong)[-24:],
)  # fmt: skip
def test_an_invalid_key_has_no_prefix_and_grants_no_access(holdfast: Holdfast, wrong: Any) -> None:
    with raises(InvalidInput, field="key") as refused:
        prefix_of(wrong)
    assert KEY[11:] not in str(refused.value)
    with pytest.raises(InvalidInput):
        holdfast.api_keys.create(wrong, name="x")
    with raises(Forbidden, reason="unknown"):
        holdfast.api_keys.verify(wrong)


@pytest.mark.parametrize(
    "scope", ["read", "write", "admin", "runs:read", "a:write", "x" * 40 + ":read", "a-b_c:write", "admin:read"]
)
def test_every_valid_scope_is_stored(holdfast: Holdfast, tenant: str, scope: str) -> None:
    key, kept = create_key(holdfast, tenant, scopes=(scope,))
    assert kept.scopes == [scope] == holdfast.api_keys.verify(key).scopes


@pytest.mark.parametrize(
    "scope",
    [
        "", "Read", "read ", "read\n", "runs:", ":read", "runs:admin", "x" * 41 + ":read", "1runs:read", "-a:read",
        "_a:read", "runs:read:write", "rüns:read", "RUNS:read", "*", "runs:*", "\x00", "\ud800", None, 7, b"read",
    ],
    ids=repr,
)  # fmt: skip
def test_a_key_with_an_invalid_scope_is_refused(holdfast: Holdfast, tenant: str, scope: Any) -> None:
    with raises(InvalidInput, field="scopes"):
        create_key(holdfast, tenant, scopes=["read", scope])
    assert holdfast.api_keys.list(tenant=tenant) == []


@pytest.mark.parametrize(
    "scopes",
    [[], (), "admin", {"read"}, iter(["read"]), None, 7],
    ids=["no list", "no tuple", "a text", "a set", "an iterator", "nothing", "a number"],
)
def test_scopes_must_be_a_non_empty_list(holdfast: Holdfast, tenant: str, scopes: Any) -> None:
    with raises(InvalidInput, field="scopes"):
        create_key(holdfast, tenant, scopes=scopes)


def test_repeated_scopes_are_stored_once_in_order(holdfast: Holdfast, tenant: str) -> None:
    key, kept = create_key(holdfast, tenant, scopes=["write", "admin", "write", "a:read", "read"])
    assert kept.scopes == ["a:read", "admin", "read", "write"]
    again = holdfast.api_keys.create(
        key, name="a key", tenant=tenant, scopes=("admin", "a:read", "write", "read", "read")
    )
    assert again == kept, "the order of scopes does not matter"
    assert SCOPES == ("read", "write")


@pytest.mark.parametrize(
    "moment",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=EAST),
        datetime.min.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=WEST),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2242, 3, 16, 12, 56, 32, 1, tzinfo=EAST),
    ],
    ids=["last", "last-east", "first", "first-west", "before-1970", "beyond-2242"],
)
def test_a_key_may_expire_at_any_valid_time(holdfast: Holdfast, tenant: str, moment: datetime) -> None:
    _, kept = create_key(holdfast, tenant, expires_at=moment)
    assert holdfast.api_keys.get(kept.id).expires_at == moment


@pytest.mark.parametrize(
    "moment",
    [
        datetime.max.replace(tzinfo=WEST), datetime.min.replace(tzinfo=EAST), datetime(2030, 1, 1), "2030-01-01",  # noqa: DTZ001
        1_900_000_000, datetime(2030, 1, 1, tzinfo=UTC).date(), False,
    ],
    ids=["after-the-last", "before-the-first", "no-zone", "text", "number", "day", "boolean"],
)  # fmt: skip
def test_an_invalid_expiry_is_rejected(holdfast: Holdfast, tenant: str, moment: Any) -> None:
    with raises(InvalidInput, field="expires_at"):
        create_key(holdfast, tenant, expires_at=moment)
    assert holdfast.api_keys.list(tenant=tenant) == []


def test_a_key_with_a_past_expiry_is_stored_and_grants_no_access(
    holdfast: Holdfast, tenant: str, clock: FixedClock
) -> None:
    key, kept = create_key(holdfast, tenant, expires_at=from_us(clock.now_us()))
    with raises(Forbidden, reason="expired"):
        holdfast.api_keys.verify(key)
    assert holdfast.api_keys.get(kept.id) == kept


def test_a_revoked_and_expired_key_is_reported_as_revoked(holdfast: Holdfast, tenant: str) -> None:
    key, kept = create_key(holdfast, tenant, expires_at=datetime(1990, 1, 1, tzinfo=UTC))
    holdfast.api_keys.revoke(kept.id)
    with raises(Forbidden, reason="revoked"):
        holdfast.api_keys.verify(key)


def test_a_revoked_key_that_is_created_again_stays_revoked(holdfast: Holdfast, tenant: str) -> None:
    key, kept = create_key(holdfast, tenant)
    revoked = holdfast.api_keys.revoke(kept.id)
    assert holdfast.api_keys.create(key, name="a key", tenant=tenant) == revoked
    with raises(Forbidden, reason="revoked"):
        holdfast.api_keys.verify(key)


def test_a_deleted_key_can_be_created_again(holdfast: Holdfast, tenant: str) -> None:
    key, kept = create_key(holdfast, tenant)
    holdfast.api_keys.delete(kept.id)
    again = holdfast.api_keys.create(key, name="another", tenant=f"{tenant}b")
    assert again.id != kept.id
    assert holdfast.api_keys.verify(key) == again


def test_touch_changes_only_the_last_use_of_a_key(holdfast: Holdfast, tenant: str, clock: FixedClock) -> None:
    key, kept = create_key(holdfast, tenant)
    holdfast.api_keys.revoke(kept.id)
    before = holdfast.api_keys.get(kept.id)
    for _ in range(2):
        clock.advance(1)
        holdfast.api_keys.touch(kept.id.upper())
        now = holdfast.api_keys.get(kept.id)
        assert now.last_used_at == from_us(clock.now_us())
        assert (now.revoked_at, now.created_at, now.scopes) == (before.revoked_at, before.created_at, before.scopes)
    assert holdfast.api_keys.create(key, name="a key", tenant=tenant) == now, "the last use is not compared"


@pytest.mark.parametrize("call", ["get", "revoke", "touch", "delete"])
@pytest.mark.parametrize("wrong", ["", "x", UNKNOWN_ID + "0", "\x00", None, 7], ids=repr)
def test_an_invalid_id_is_rejected_by_every_method(holdfast: Holdfast, call: str, wrong: Any) -> None:
    with raises(InvalidInput, field="key id"):
        getattr(holdfast.api_keys, call)(wrong)


@pytest.mark.parametrize("call", ["get", "revoke", "touch", "delete"])
def test_an_unknown_id_is_not_found_and_named(holdfast: Holdfast, call: str) -> None:
    with raises(NotFound, noun="API key", key=UNKNOWN_ID):
        getattr(holdfast.api_keys, call)(UNKNOWN_ID)


@pytest.mark.parametrize("other", ["", "TENANT", "tenant ", "tenan", "%", "\x00"], ids=repr)
def test_a_similar_tenant_name_does_not_find_its_key(holdfast: Holdfast, tenant: str, other: str) -> None:
    key, kept = create_key(holdfast, "tenant")
    for call in (holdfast.api_keys.get, holdfast.api_keys.revoke, holdfast.api_keys.delete):
        with raises(NotFound, noun="API key", key=kept.id):
            call(kept.id, tenant=other)
    assert holdfast.api_keys.verify(key).revoked_at is None
    holdfast.api_keys.delete(kept.id, tenant="tenant")


@pytest.mark.parametrize("name", ["\x00", "a\ud800", "名前", "😀" * 5, "\U0010f800", " ", "x" * 20], ids=ascii)
def test_any_text_names_a_key_and_its_tenant(holdfast: Holdfast, name: str) -> None:
    key, kept = create_key(holdfast, name, name=name)
    assert (kept.name, kept.tenant) == (name, name) == (holdfast.tenants.get(name).id,) * 2
    assert holdfast.api_keys.list(tenant=name) == [kept]
    assert holdfast.api_keys.get(kept.id, tenant=name) == kept
    assert holdfast.api_keys.create(key, name=name, tenant=name) == kept
    assert holdfast.api_keys.revoke(kept.id, tenant=name).revoked_at is not None
    holdfast.api_keys.delete(kept.id, tenant=name)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"name": "x" * 21}, "name_bytes"),
        ({"name": "é" * 10 + "x"}, "name_bytes"),
        ({"tenant": "x" * 21}, "tenant_bytes"),
    ],
)
def test_names_are_limited_in_bytes(holdfast: Holdfast, tenant: str, fields: dict[str, str], limit: str) -> None:
    with raises(LimitExceeded, limit=limit, maximum=20):
        create_key(holdfast, **{"tenant": tenant, **fields})
    with raises(LimitExceeded, limit="tenant_bytes", maximum=20):
        holdfast.api_keys.list(tenant="x" * 21)


def test_a_refused_key_creates_no_tenant(holdfast: Holdfast, tenant: str) -> None:
    key, _ = create_key(holdfast, f"{tenant}a")
    with raises(Conflict, reason="other_content"):
        holdfast.api_keys.create(key, name="a key", tenant=tenant)
    with pytest.raises(NotFound):
        holdfast.tenants.get(tenant)


def test_a_conflict_error_reveals_neither_the_key_nor_its_owner(holdfast: Holdfast, tenant: str) -> None:
    key, _ = create_key(holdfast, tenant)
    with pytest.raises(Conflict) as refused:
        holdfast.api_keys.create(key, name="mine now")
    assert key[3:11] not in str(refused.value)
    assert tenant not in str(refused.value)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_pages_of_every_size_are_the_keys_of_a_tenant_oldest_first(holdfast: Holdfast, tenant: str, size: int) -> None:
    kept = [create_key(holdfast, tenant)[1] for _ in range(5)]
    create_key(holdfast, f"{tenant}b")
    result: list[ApiKey] = []
    cursor = None
    while not result or cursor is not None:
        page = holdfast.api_keys.list(tenant=tenant, limit=size, cursor=cursor)
        result += page
        cursor = page.next
    assert result == kept == holdfast.api_keys.list(tenant=tenant)


def test_a_cursor_survives_the_key_it_was_made_for(holdfast: Holdfast, tenant: str) -> None:
    kept = [create_key(holdfast, tenant)[1] for _ in range(3)]
    page = holdfast.api_keys.list(tenant=tenant, limit=1)
    holdfast.api_keys.delete(kept[0].id)
    assert holdfast.api_keys.list(tenant=tenant, limit=5, cursor=page.next) == kept[1:]


def test_a_list_over_the_limit_is_refused(holdfast: Holdfast, tenant: str) -> None:
    for _ in range(6):
        create_key(holdfast, tenant)
    assert len(holdfast.api_keys.list(tenant=tenant)) == 6
    create_key(holdfast, tenant)
    with raises(LimitExceeded, limit="list_rows", maximum=6):
        holdfast.api_keys.list(tenant=tenant)


def test_a_cursor_of_another_list_is_refused(holdfast: Holdfast) -> None:
    for cursor in (encode_cursor("holds", UNKNOWN_ID), encode_cursor("api_keys", 1), encode_cursor("api_keys")):
        with raises(InvalidFilter, field="cursor"):
            holdfast.api_keys.list(limit=1, cursor=cursor)
    with raises(InvalidInput, field="id"):
        holdfast.api_keys.list(limit=1, cursor=encode_cursor("api_keys", "7"))


def test_the_file_does_not_contain_the_key(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as holdfast:
        key, kept = create_key(holdfast, "acme")
        connection = apsw.Connection(str(tmp_path / "a.db"))
        ((prefix, stored_value),) = connection.execute("SELECT prefix, key_hash FROM api_keys")
        connection.close()
        assert (prefix, stored_value) == (kept.prefix, digest(key))
    for file in tmp_path.iterdir():
        assert key[11:].encode() not in file.read_bytes()


def test_a_modified_digest_grants_no_access(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as holdfast:
        key, _ = create_key(holdfast, "acme")
        connection = apsw.Connection(str(tmp_path / "a.db"))
        connection.execute("UPDATE api_keys SET key_hash = ?", (digest(new_api_key()),))
        connection.close()
        with raises(Forbidden, reason="unknown"):
            holdfast.api_keys.verify(key)


def test_concurrent_creates_of_one_key_create_one(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as holdfast, ThreadPoolExecutor(4) as pool:
        kept = list(pool.map(lambda _: holdfast.api_keys.create(KEY, name="x", tenant="acme"), range(8)))
        assert {api_key.id for api_key in kept} == {kept[0].id}
        revoked = list(pool.map(lambda _: holdfast.api_keys.revoke(kept[0].id), range(8)))
        assert len({api_key.revoked_at for api_key in revoked}) == 1, "the first revocation counts"


@settings(max_examples=30)
@given(st.integers(0, 16**48 - 1), st.integers(0, 47), st.integers(1, 15))
def test_a_key_with_any_digit_changed_is_another(number: int, place: int, by: int) -> None:
    key = f"hf_{number:048x}"
    digit = format((int(key[3 + place], 16) + by) % 16, "x")
    other = key[: 3 + place] + digit + key[4 + place :]
    assert digest(other) != digest(key)
    assert (prefix_of(other) == prefix_of(key)) == (place >= SHOWN)


def test_no_returned_field_contains_the_digest() -> None:
    assert "key_hash" not in ApiKey.__struct_fields__
    kept = api_keys.StoredKey(UNKNOWN_ID, "", "x", "hf_", [], from_us(0), None, None, None, "secret")
    assert "secret" not in repr(api_keys._without_digest(kept))
    assert type(api_keys._without_digest(kept)) is ApiKey
