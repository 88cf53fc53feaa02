"""Secrets in events: encrypted with a key, replaced without one, and everything else unchanged."""

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
    """Return an event with headers, with unusual formatting."""
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
def test_an_event_without_secrets_is_stored_unchanged(data: str, keys: KeyRing) -> None:
    content = encryption.encrypt_event(keys, "e", data)
    assert content == {"id": "e", "data": data}
    assert encryption.decrypt_event(keys, content) == ("e", data)


@pytest.mark.parametrize("state", ["state_delta", "stateDelta"])
@pytest.mark.parametrize("name", ["Authorization", "authorization", "COOKIE", "Proxy-Authorization", "x-api-key"])
def test_without_a_key_secrets_are_replaced_and_the_rest_is_unchanged(state: str, name: str) -> None:
    content = encryption.encrypt_event(NO_KEYS, "e", event_of(state, **{name: SECRET, "accept": "x"}))
    assert SECRET not in json.dumps(content)
    id, data = encryption.decrypt_event(NO_KEYS, content)
    body: dict[str, Any] = json.loads(data)
    assert (id, body["text"], body["actions"][state]["n"]) == ("e", "\U0001f600", 1.0)
    assert body["actions"][state]["headers"] == {name: NOT_STORED, "accept": "x"}


@pytest.mark.parametrize("key", ["k" * 32, "ab" * 32, base64.b64encode(bytes(range(32))).decode()])
def test_with_a_key_an_event_is_encrypted_and_decrypted_unchanged(key: str) -> None:
    keys = KeyRing(key)
    data = event_of(Authorization=SECRET)
    one, other = encryption.encrypt_event(keys, "e", data), encryption.encrypt_event(keys, "e", data)
    assert set(one) == {"id", "sealed"}
    assert one["sealed"].startswith("aes-gcm:")
    assert one["sealed"] != other["sealed"], "never the same ciphertext"
    assert SECRET not in base64.b64decode(one["sealed"].removeprefix("aes-gcm:")).decode("latin-1")
    assert encryption.decrypt_event(keys, one) == encryption.decrypt_event(keys, other) == ("e", data)


def test_a_changed_event_or_another_key_raises_without_disclosing_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encryption.encrypt_event(KEYS, "e", event_of(Authorization=SECRET))
    with pytest.raises(Corrupt):
        encryption.decrypt_event(KEYS, {**content, "id": "another"})
    body = bytearray(base64.b64decode(content["sealed"].removeprefix("aes-gcm:")))
    body[-1] ^= 1
    with pytest.raises(Corrupt) as caught:
        encryption.decrypt_event(KEYS, {"id": "e", "sealed": "aes-gcm:" + base64.b64encode(bytes(body)).decode()})
    assert SECRET not in str(caught.value)
    monkeypatch.setenv(VARIABLE, "j" * 32)
    (other_key,) = KeyRing.from_environment().key_ids
    with pytest.raises(Corrupt, match=VARIABLE) as caught:
        encryption.decrypt_event(KeyRing.from_environment(), content)
    assert other_key in str(caught.value)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(Corrupt, match=VARIABLE) as caught:
        encryption.decrypt_event(KeyRing.from_environment(), content)
    assert other_key not in str(caught.value)


def test_an_event_can_be_decrypted_after_a_key_rotation() -> None:
    content = encryption.encrypt_event(KEYS, "e", event_of(Authorization=SECRET))
    assert encryption.decrypt_event(KeyRing(["n" * 32, "k" * 32]), content) == ("e", event_of(Authorization=SECRET))


@pytest.mark.parametrize("data", ['{"headers"', "Cookie: " + SECRET, '{"token": ' + "[" * 100_000])
def test_with_a_key_an_event_that_cannot_be_searched_is_encrypted(data: str) -> None:
    content = encryption.encrypt_event(KEYS, "e", data)
    assert set(content) == {"id", "sealed"}
    assert encryption.decrypt_event(KEYS, content) == ("e", data)


def test_with_a_key_an_agents_credentials_are_encrypted() -> None:
    data = json.dumps({"actions": {"state_delta": {"temp:adk_oauth2": {"oauth2": {"access_token": SECRET}}}}})
    assert encryption.encrypt_event(NO_KEYS, "e", data) == {"id": "e", "data": data}, (
        "an agent could not continue without them"
    )
    content = encryption.encrypt_event(KEYS, "e", data)
    assert "sealed" in content
    assert encryption.decrypt_event(KEYS, content) == ("e", data)
