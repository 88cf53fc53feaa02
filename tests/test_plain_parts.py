"""Ids, the clock, limits, addresses, errors and the scope: small parts that everything stands on."""

from __future__ import annotations

import inspect
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import FixedClock, Limits, RandomIds, SeededIds, SystemClock, address, errors, ids
from holdfast.clock import from_us, to_us
from holdfast.core.scope import Scope, Setting, metadata, name
from holdfast.core.text import escape
from holdfast.errors import HoldfastError, InvalidInput, InvalidText, LimitExceeded, OutcomeUnknown
from tests.contract.cases.values import TEXTS
from tests.errors import raises

moments = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


# Ids


def test_random_ids_are_version_7_and_rise() -> None:
    source = RandomIds()
    made = [source.new() for _ in range(1_000)]
    assert all(uuid.UUID(each).version == 7 for each in made)
    assert len({*made}) == 1_000
    assert made == sorted(made)


def test_seeded_ids_repeat_and_differ_by_seed() -> None:
    one, same, other = SeededIds(5), SeededIds(5), SeededIds(6)
    first = [one.new() for _ in range(50)]
    assert first == [same.new() for _ in range(50)]
    assert not {*first} & {other.new() for _ in range(50)}
    assert first == sorted(first)
    assert all(uuid.UUID(each).version == 7 and uuid.UUID(each).variant == uuid.RFC_4122 for each in first)


@given(st.uuids())
def test_an_id_is_known_in_every_spelling(value: uuid.UUID) -> None:
    wanted = str(value)
    for spelling in (wanted, wanted.upper(), value.hex, f"{{{wanted}}}", f"urn:uuid:{wanted}", value):
        assert ids.parse(spelling) == wanted


@pytest.mark.parametrize(
    "value", ["", "42", None, 7, b"x" * 16, [], "g" * 32, "0" * 31, "0" * 33, "x" * 36, "\ud800", " " * 36]
)
def test_what_is_no_id_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="session id must be a UUID"):
        ids.parse(value, "session id")


@given(st.text(max_size=40))
def test_any_text_is_an_id_or_is_refused(value: str) -> None:
    try:
        found = ids.parse(value)
    except InvalidInput:
        return
    assert str(uuid.UUID(found)) == found


# The clock


@given(moments)
def test_a_moment_keeps_every_microsecond(us: int) -> None:
    assert to_us(from_us(us)) == us
    assert from_us(us).utcoffset() == timedelta(0)


@given(
    st.datetimes(
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-11))])
    )
)
def test_the_zone_of_a_moment_does_not_matter(moment: datetime) -> None:
    try:
        us = to_us(moment)
    except OverflowError:
        assert moment.year in (1, 9999)
        return
    assert from_us(us) == moment


def test_the_edges_of_time() -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert from_us(to_us(first)) == first
    assert from_us(to_us(last)) == last


def test_a_fixed_clock_moves_only_when_told_and_in_both_directions() -> None:
    clock = FixedClock(datetime(2020, 1, 1, tzinfo=UTC))
    start = clock.now_us()
    assert clock.now_us() == start == to_us(datetime(2020, 1, 1, tzinfo=UTC))
    clock.advance(1.5)
    assert clock.now_us() == start + 1_500_000
    clock.advance(-2)
    assert clock.now_us() == start - 500_000
    assert FixedClock(7).now_us() == 7


def test_the_system_clock_is_now() -> None:
    before = datetime.now(UTC)
    now = from_us(SystemClock().now_us())
    assert before - timedelta(seconds=1) < now < before + timedelta(seconds=60)


# Limits


@pytest.mark.parametrize("limit", Limits.__struct_fields__)
def test_a_limit_allows_its_number_and_no_more(limit: str) -> None:
    limits = Limits(**{limit: 3})
    limits.check(limit, 3, "it")
    with raises(LimitExceeded, limit=limit, maximum=3):
        limits.check(limit, 4, "it")


def test_every_limit_is_explained() -> None:
    source = inspect.getsource(Limits)
    for field in Limits.__struct_fields__:
        assert f"    {field}: int = " in source
        after = source.split(f"    {field}: int = ")[1].split("\n")[1]
        assert after.strip().startswith('"""'), field


# Errors


KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, HoldfastError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_docstring_of_an_error_is_its_message(kind: type[HoldfastError]) -> None:
    assert str(kind()) == inspect.getdoc(kind)
    assert str(kind("more exactly")) == "more exactly"
    assert issubclass(kind, HoldfastError)
    assert kind.__module__ == "holdfast.errors"


def test_the_names_of_the_design_are_there() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert names >= {
        "NotFound", "Conflict", "AlreadyExists", "Forbidden", "InvalidText", "InvalidFilter", "LimitExceeded", "Corrupt",
        "Unavailable", "OutcomeUnknown", "SchemaMismatch", "Fenced",
    }  # fmt: skip


def test_an_unknown_outcome_names_the_id_to_retry_with() -> None:
    assert OutcomeUnknown(id="x").id == "x"
    assert OutcomeUnknown().id is None


# Addresses


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("agents.db", ("sqlite", "agents.db", False)),
        ("./a b.db", ("sqlite", "./a b.db", False)),
        ("/abs/agents.db", ("sqlite", "/abs/agents.db", False)),
        ("C:\\agents.db", ("sqlite", "C:\\agents.db", False)),
        (":memory:", ("sqlite", ":memory:", False)),
        ("sqlite:///agents.db", ("sqlite", "agents.db", False)),
        ("sqlite:////abs/agents.db", ("sqlite", "/abs/agents.db", False)),
        ("sqlite:///a%20b%3F.db", ("sqlite", "a b?.db", False)),
        ("sqlite:///agents.db?mode=ro", ("sqlite", "agents.db", True)),
        ("SQLITE:///agents.db", ("sqlite", "agents.db", False)),
        ("sqlite://", ("sqlite", ":memory:", False)),
        ("postgresql:///agents", ("postgres", "postgresql:///agents", False)),
        ("postgres://u:p@h:5/d?x=y", ("postgres", "postgres://u:p@h:5/d?x=y", False)),
    ],
)
def test_an_address_is_understood(url: str, wanted: tuple[str, str, bool]) -> None:
    found = address.parse(url)
    assert (found.engine, found.place, found.read_only) == wanted


@pytest.mark.parametrize(
    "url",
    ["", None, 0, "mysql://h/d", "http://x", "sqlite:agents.db", "sqlite://host/agents.db", "sqlite:///a.db?mode=rw",
     "sqlite:///a.db?cache=shared", "postgresql:agents", "sqlite:///a.db?library=other"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: Any) -> None:
    with pytest.raises(InvalidInput):
        address.parse(url)


# The scope


SETTING = Setting(
    clock=FixedClock(),
    ids=SeededIds(),
    session_dependents=(),
    limits=Limits(tenant_bytes=8, name_bytes=6, metadata_bytes=20),
)


def test_a_scope_knows_its_tenant_as_given_and_as_stored() -> None:
    scope = Scope("\x00\ud800", SETTING)
    assert scope.tenant == "\x00\ud800"
    assert scope.stored_tenant == escape("\x00\ud800")
    assert scope.params(a=1) == {"a": 1, "tenant_id": scope.stored_tenant}


def test_nobody_can_smuggle_another_tenant_into_the_parameters() -> None:
    assert Scope("acme", SETTING).params(tenant_id="zenith")["tenant_id"] == "acme"


@pytest.mark.parametrize("tenant", ["", None, 7, b"acme", ["acme"]])
def test_a_tenant_is_text_and_not_empty(tenant: Any) -> None:
    with raises(InvalidInput, field="tenant"):
        Scope(tenant, SETTING)


def test_a_name_is_measured_as_it_is_stored() -> None:
    assert name("x" * 6, "user", SETTING.limits) == "x" * 6
    for long in ("x" * 7, "漢漢漢", "\ud800\ud800", "\U0010f000"):
        with raises(LimitExceeded, limit="name_bytes", maximum=6):
            name(long, "user", SETTING.limits)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_a_name(text: str) -> None:
    assert name(text, "user", Limits()) == escape(text)


def test_metadata_is_stored_as_json() -> None:
    assert metadata(None, Limits()) == metadata({}, Limits()) == "{}"
    assert msgspec.json.decode(metadata({"a": [1, None]}, Limits())) == {"a": [1, None]}
    wrong: list[Any] = [[], "", 0, [("a", 1)], {1: 1}, "text", False]
    for value in wrong:
        with raises(InvalidInput, field="metadata"):
            metadata(value, Limits())
    with pytest.raises(InvalidText):
        metadata({"a": {1: 2}}, Limits())
    with raises(LimitExceeded, limit="metadata_bytes", maximum=20):
        metadata({"a": "漢" * 5}, SETTING.limits)
