"""The argument ``encryption_key`` and the environment variable of the key."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AsyncHoldfast, Holdfast
from holdfast.core.crypto import VARIABLE
from holdfast.encryption import KeyRing
from holdfast.errors import InvalidInput
from tests.errors import raises

ONE, TWO = "1" * 64, "2" * 64
KINDS: list[Any] = [Holdfast, AsyncHoldfast]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys", [[ONE, TWO], f"{ONE},{TWO}", (bytes.fromhex(ONE), TWO), KeyRing([ONE, TWO])])
def test_every_handle_has_the_keys_in_any_form(kind: Any, keys: Any) -> None:
    hf = kind(":memory:", encryption_key=keys)
    expected = KeyRing([ONE, TWO]).key_ids
    assert hf.encryption.key_ids == hf.tenant("acme").encryption.key_ids == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_environment_is_the_default(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not kind(":memory:").encryption
    monkeypatch.setenv(VARIABLE, ONE)
    assert kind(":memory:").encryption.key_ids == KeyRing(ONE).key_ids
    assert kind(":memory:", encryption_key=TWO).encryption.key_ids == KeyRing(TWO).key_ids
    assert not kind(":memory:", encryption_key=()).encryption


@pytest.mark.parametrize("kind", KINDS)
def test_an_invalid_key_is_refused(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(InvalidInput, field="encryption_key"):
        kind(":memory:", encryption_key="short")
    monkeypatch.setenv(VARIABLE, "short")
    with raises(InvalidInput, field=VARIABLE):
        kind(":memory:")
