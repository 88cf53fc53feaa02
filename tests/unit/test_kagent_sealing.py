"""What events carry that nobody else may read: encrypted with a key, replaced without one, and never touched otherwise."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from holdfast.api.kagent import sealing
from holdfast.api.kagent.withholding import NOT_STORED
from holdfast.errors import Corrupt, InvalidInput

SECRET = "Bearer very-secret"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sealing.VARIABLE, raising=False)


def event_of(key: str = "state_delta", **headers: str) -> str:
    """An event with headers, spelt as nobody else would."""
    return json.dumps({"id": "1", "actions": {key: {"headers": headers, "n": 1.0}}, "text": "\U0001f600"}, indent=1)


@pytest.mark.parametrize(
    "data",
    [
        "",
        "no JSON",
        '"headers"',
        '{"actions": {"state_delta": {"headers": []}}}',
        '{"actions": []}',
        '["headers"]',
        event_of(),
        event_of(accept="x", host="y"),
    ],
)
@pytest.mark.parametrize("key", [None, "k" * 32])
def test_an_event_without_secrets_is_not_touched(data: str, key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if key is not None:
        monkeypatch.setenv(sealing.VARIABLE, key)
    stored = sealing.sealed("e", data)
    assert stored == {"id": "e", "data": data}
    assert sealing.opened(stored) == ("e", data)


@pytest.mark.parametrize("state", ["state_delta", "stateDelta"])
@pytest.mark.parametrize("name", ["Authorization", "authorization", "COOKIE", "Proxy-Authorization", "x-api-key"])
def test_without_a_key_secrets_are_replaced_and_the_rest_stays(state: str, name: str) -> None:
    stored = sealing.sealed("e", event_of(state, **{name: SECRET, "accept": "x"}))
    assert SECRET not in json.dumps(stored)
    id, data = sealing.opened(stored)
    found: dict[str, Any] = json.loads(data)
    assert (id, found["text"], found["actions"][state]["n"]) == ("e", "\U0001f600", 1.0)
    assert found["actions"][state]["headers"] == {name: NOT_STORED, "accept": "x"}


@pytest.mark.parametrize("key", ["k" * 32, "ab" * 32, base64.b64encode(bytes(range(32))).decode()])
def test_with_a_key_an_event_comes_back_as_it_was_and_nothing_of_it_is_stored(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sealing.VARIABLE, key)
    data = event_of(Authorization=SECRET)
    one, other = sealing.sealed("e", data), sealing.sealed("e", data)
    assert set(one) == {"id", "sealed"}
    assert one["sealed"].startswith("aes-gcm:")
    assert one["sealed"] != other["sealed"], "never twice the same"
    assert SECRET not in base64.b64decode(one["sealed"].removeprefix("aes-gcm:")).decode("latin-1")
    assert sealing.opened(one) == sealing.opened(other) == ("e", data)


def test_what_was_changed_or_needs_another_key_is_corrupt_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sealing.VARIABLE, "k" * 32)
    stored = sealing.sealed("e", event_of(Authorization=SECRET))
    with pytest.raises(Corrupt):
        sealing.opened({**stored, "id": "another"})
    body = bytearray(base64.b64decode(stored["sealed"].removeprefix("aes-gcm:")))
    body[-1] ^= 1
    with pytest.raises(Corrupt) as caught:
        sealing.opened({"id": "e", "sealed": "aes-gcm:" + base64.b64encode(bytes(body)).decode()})
    assert SECRET not in str(caught.value)
    monkeypatch.setenv(sealing.VARIABLE, "j" * 32)
    with pytest.raises(Corrupt, match=sealing.VARIABLE):
        sealing.opened(stored)
    monkeypatch.delenv(sealing.VARIABLE)
    with pytest.raises(Corrupt, match="is not set"):
        sealing.opened(stored)


@pytest.mark.parametrize("data", ['{"headers"', "Cookie: " + SECRET, '{"token": ' + "[" * 100_000])
def test_with_a_key_what_cannot_be_looked_through_is_encrypted(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sealing.VARIABLE, "k" * 32)
    stored = sealing.sealed("e", data)
    assert set(stored) == {"id", "sealed"}
    assert sealing.opened(stored) == ("e", data)


def test_with_a_key_credentials_that_an_agent_keeps_on_purpose_are_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.dumps({"actions": {"state_delta": {"temp:adk_oauth2": {"oauth2": {"access_token": SECRET}}}}})
    assert sealing.sealed("e", data) == {"id": "e", "data": data}, "an agent could not go on without them"
    monkeypatch.setenv(sealing.VARIABLE, "k" * 32)
    stored = sealing.sealed("e", data)
    assert "sealed" in stored
    assert sealing.opened(stored) == ("e", data)


@pytest.mark.parametrize("key", ["short", "x" * 64, "=" * 44, "k" * 33])
def test_what_is_no_key_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sealing.VARIABLE, key)
    with pytest.raises(InvalidInput, match=sealing.VARIABLE):
        sealing.sealed("e", event_of(Authorization=SECRET))
    with pytest.raises(InvalidInput, match=sealing.VARIABLE):
        sealing.check()


@pytest.mark.parametrize("key", ["", "k" * 32])
def test_a_key_that_is_one_and_none_at_all_are_good(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sealing.VARIABLE, key)
    sealing.check()
