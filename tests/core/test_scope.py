"""Scopes: the tenant of a call, and the stored form of names, texts and metadata."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import FixedClock, Limits, SeededIds
from holdfast.core.scope import Scope, Setting, free_text, metadata, name
from holdfast.core.text import escape
from holdfast.errors import HoldfastError, InvalidInput, InvalidText, LimitExceeded
from tests.contract.cases.values import TEXTS
from tests.errors import raises

SETTING = Setting(
    clock=FixedClock(),
    ids=SeededIds(),
    session_dependents=(),
    limits=Limits(tenant_bytes=8, name_bytes=6, metadata_bytes=20),
)


def test_a_scope_has_the_tenant_and_its_stored_form() -> None:
    scope = Scope("\x00\ud800", SETTING)
    assert scope.tenant == "\x00\ud800"
    assert scope.stored_tenant == escape("\x00\ud800")
    assert scope.params(a=1) == {"a": 1, "tenant_id": scope.stored_tenant}


def test_parameters_cannot_override_the_tenant() -> None:
    assert Scope("acme", SETTING).params(tenant_id="zenith")["tenant_id"] == "acme"


@pytest.mark.parametrize("tenant", ["", None, 7, b"acme", ["acme"]])
def test_a_tenant_must_be_text_and_not_empty(tenant: Any) -> None:
    with raises(InvalidInput, field="tenant"):
        Scope(tenant, SETTING)


def test_the_limit_of_a_name_applies_to_its_stored_form() -> None:
    assert name("x" * 6, "user", SETTING.limits) == "x" * 6
    for long in ("x" * 7, "漢漢漢", "\ud800\ud800", "\U0010f000"):
        with raises(LimitExceeded, limit="name_bytes", maximum=6):
            name(long, "user", SETTING.limits)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_can_be_a_name(text: str) -> None:
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


@pytest.mark.parametrize(("value", "error"), [(None, InvalidInput), (7, InvalidInput), (b"", InvalidInput),
                                              ("é" * 4, LimitExceeded), ("\x00" * 2, LimitExceeded)], ids=repr)  # fmt: skip
def test_the_limit_of_a_text_applies_to_its_stored_form_and_it_may_be_empty(
    value: Any, error: type[HoldfastError]
) -> None:
    limits = Limits(text_bytes=7, name_bytes=7)
    assert (free_text("", "note", limits), free_text("é" * 3, "note", limits)) == ("", "é" * 3)
    for check in (free_text, name):
        with raises(error, field="note"):
            check(value, "note", limits)
    with raises(InvalidInput, field="note"):
        name("", "note", limits)


@pytest.mark.parametrize("value", [[], "", 0, False, (), set(), [("a", 1)], {1: 1}, {None: 1}], ids=repr)
def test_an_empty_value_that_is_not_a_dictionary_is_not_metadata(value: Any) -> None:
    with raises(InvalidInput, field="metadata"):
        metadata(value, Limits())
    assert metadata(None, Limits()) == metadata({}, Limits()) == "{}"


def test_scopes_of_one_setting_share_its_dependencies() -> None:
    setting = Setting(clock=FixedClock(), ids=SeededIds(), session_dependents=(), limits=Limits(), count_tokens=len)
    one, other = Scope("a", setting), Scope("b", setting)
    one.shared["x"] = 1
    assert other.shared is setting.shared
    assert (other.count_tokens, other.clock, other.packs, other.caches) == (len, setting.clock, None, None)
    assert Setting(clock=FixedClock(), ids=SeededIds(), session_dependents=(), limits=Limits()).shared == {}
