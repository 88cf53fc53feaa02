"""``encryption_key=`` of a Holdfast, and what the environment says."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AsyncHoldfast, Holdfast
from holdfast.core.crypto import VARIABLE
from holdfast.encryption import KeyRing
from holdfast.errors import InvalidInput

ONE, TWO = "1" * 64, "2" * 64
KINDS: list[Any] = [Holdfast, AsyncHoldfast]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [[ONE, TWO], f"{ONE},{TWO}", (bytes.fromhex(ONE), TWO), KeyRing([ONE, TWO])])
def test_keys_reach_every_handle_in_any_form(kind: Any, given: Any) -> None:
    hf = kind(":memory:", encryption_key=given)
    expected = KeyRing([ONE, TWO]).key_ids
    assert hf.encryption.key_ids == hf.tenant("acme").encryption.key_ids == expected


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_argument_the_environment_is_asked(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not kind(":memory:").encryption
    monkeypatch.setenv(VARIABLE, ONE)
    assert kind(":memory:").encryption.key_ids == KeyRing(ONE).key_ids
    assert kind(":memory:", encryption_key=TWO).encryption.key_ids == KeyRing(TWO).key_ids
    assert not kind(":memory:", encryption_key=()).encryption


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_key_opens_nothing(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="encryption_key"):
        kind(":memory:", encryption_key="short")
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(InvalidInput, match=VARIABLE):
        kind(":memory:")
