"""What events carry that nobody else may read: encrypted with a key, replaced without one, and never touched otherwise."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from holdfast.api.kagent import encryption
from holdfast.api.kagent.redaction import NOT_STORED
from holdfast.core.crypto import VARIABLE
from holdfast.encryption import KeyRing
from holdfast.errors import Corrupt

SECRET = "Bearer very-secret"


NO_KEYS, KEYS = KeyRing(), KeyRing("k" * 32)


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
@pytest.mark.parametrize("keys", [NO_KEYS, KEYS])
def test_an_event_without_secrets_is_not_touched(data: str, keys: KeyRing) -> None:
    stored = encryption.encrypt_event(keys, "e", data)
    assert stored == {"id": "e", "data": data}
    assert encryption.decrypt_event(keys, stored) == ("e", data)


@pytest.mark.parametrize("state", ["state_delta", "stateDelta"])
@pytest.mark.parametrize("name", ["Authorization", "authorization", "COOKIE", "Proxy-Authorization", "x-api-key"])
def test_without_a_key_secrets_are_replaced_and_the_rest_stays(state: str, name: str) -> None:
    stored = encryption.encrypt_event(NO_KEYS, "e", event_of(state, **{name: SECRET, "accept": "x"}))
    assert SECRET not in json.dumps(stored)
    id, data = encryption.decrypt_event(NO_KEYS, stored)
    found: dict[str, Any] = json.loads(data)
    assert (id, found["text"], found["actions"][state]["n"]) == ("e", "\U0001f600", 1.0)
    assert found["actions"][state]["headers"] == {name: NOT_STORED, "accept": "x"}


@pytest.mark.parametrize("key", ["k" * 32, "ab" * 32, base64.b64encode(bytes(range(32))).decode()])
def test_with_a_key_an_event_comes_back_as_it_was_and_nothing_of_it_is_stored(key: str) -> None:
    keys = KeyRing(key)
    data = event_of(Authorization=SECRET)
    one, other = encryption.encrypt_event(keys, "e", data), encryption.encrypt_event(keys, "e", data)
    assert set(one) == {"id", "sealed"}
    assert one["sealed"].startswith("aes-gcm:")
    assert one["sealed"] != other["sealed"], "never twice the same"
    assert SECRET not in base64.b64decode(one["sealed"].removeprefix("aes-gcm:")).decode("latin-1")
    assert encryption.decrypt_event(keys, one) == encryption.decrypt_event(keys, other) == ("e", data)


def test_what_was_changed_or_needs_another_key_is_corrupt_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = encryption.encrypt_event(KEYS, "e", event_of(Authorization=SECRET))
    with pytest.raises(Corrupt):
        encryption.decrypt_event(KEYS, {**stored, "id": "another"})
    body = bytearray(base64.b64decode(stored["sealed"].removeprefix("aes-gcm:")))
    body[-1] ^= 1
    with pytest.raises(Corrupt) as caught:
        encryption.decrypt_event(KEYS, {"id": "e", "sealed": "aes-gcm:" + base64.b64encode(bytes(body)).decode()})
    assert SECRET not in str(caught.value)
    monkeypatch.setenv(VARIABLE, "j" * 32)
    with pytest.raises(Corrupt, match=VARIABLE):
        encryption.decrypt_event(KeyRing.from_environment(), stored)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(Corrupt, match="is not set"):
        encryption.decrypt_event(KeyRing.from_environment(), stored)


def test_an_event_stays_readable_after_a_rotation() -> None:
    stored = encryption.encrypt_event(KEYS, "e", event_of(Authorization=SECRET))
    assert encryption.decrypt_event(KeyRing(["n" * 32, "k" * 32]), stored) == ("e", event_of(Authorization=SECRET))


@pytest.mark.parametrize("data", ['{"headers"', "Cookie: " + SECRET, '{"token": ' + "[" * 100_000])
def test_with_a_key_what_cannot_be_looked_through_is_encrypted(data: str) -> None:
    stored = encryption.encrypt_event(KEYS, "e", data)
    assert set(stored) == {"id", "sealed"}
    assert encryption.decrypt_event(KEYS, stored) == ("e", data)


def test_with_a_key_credentials_that_an_agent_keeps_on_purpose_are_encrypted() -> None:
    data = json.dumps({"actions": {"state_delta": {"temp:adk_oauth2": {"oauth2": {"access_token": SECRET}}}}})
    assert encryption.encrypt_event(NO_KEYS, "e", data) == {"id": "e", "data": data}, (
        "an agent could not go on without them"
    )
    stored = encryption.encrypt_event(KEYS, "e", data)
    assert "sealed" in stored
    assert encryption.decrypt_event(KEYS, stored) == ("e", data)
