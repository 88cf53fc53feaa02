"""Secrets, providers, models and pairing over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from holdfast.encryption import MASK
from tests.api.v1 import NEVER, V1Client, open_here


@pytest.fixture(scope="module")
def server() -> Iterator[V1Client]:
    yield from open_here()


@pytest.fixture
def v1(server: V1Client) -> V1Client:
    return server.another()


def actions(v1: V1Client, kind: str) -> list[str]:
    """Return the logged actions on subjects of this kind, in order."""
    entries = v1.good("GET", f"/activity?subject_kind={kind}")["items"]
    return [entry["action"] for entry in reversed(entries)]


def test_a_secret_is_only_in_the_answer_that_reveals_it(v1: V1Client) -> None:
    one = f"/secrets/{quote('a/b é', safe='')}"
    v1.good("PUT", one, {"value": "sk-secret"}, 204)
    v1.good("PUT", "/secrets/other", {"value": "x"}, 204)
    page = v1.good("GET", "/secrets?limit=1")
    assert page["items"] == ["a/b é"]
    assert v1.good("GET", f"/secrets?cursor={page['next']}") == {"items": ["other"], "next": None}
    assert v1.good("POST", f"{one}/reveal") == {"value": "sk-secret"}
    assert v1.good("DELETE", one) == {"done": True}
    assert v1.good("DELETE", one) == {"done": False}
    v1.bad("POST", f"{one}/reveal", status=404)
    assert actions(v1, "secret") == ["secret.set", "secret.set", "secret.revealed", "secret.deleted"]
    assert "sk-secret" not in v1.ask("GET", "/activity").body.decode()


def test_only_admins_set_delete_and_reveal_secrets(v1: V1Client) -> None:
    v1.good("PUT", "/secrets/openai", {"value": "sk-secret"}, 204)
    provider = v1.good("POST", "/providers", {"name": "openai", "api_key": "sk-secret"}, 201)
    for scopes in (("read", "write"), ("secrets:read", "secrets:write", "providers:read", "providers:write")):
        key = v1.key(*scopes)
        v1.bad("PUT", "/secrets/openai", {"value": "x"}, 403, key=key)
        v1.bad("DELETE", "/secrets/openai", status=403, key=key)
        v1.bad("POST", "/secrets/openai/reveal", status=403, key=key)
        v1.bad("POST", f"/providers/{provider['id']}/reveal", status=403, key=key)
        assert v1.good("GET", "/secrets", key=key)["items"] == ["openai"]
        assert v1.good("GET", f"/providers/{provider['id']}", key=key)["api_key"] == MASK
    assert v1.good("POST", f"/providers/{provider['id']}/reveal", key=v1.key("admin")) == {"api_key": "sk-secret"}
    v1.bad("POST", f"/providers/{NEVER}/reveal", status=404)
    assert actions(v1, "provider") == ["provider.created", "provider.revealed"]


def test_an_invalid_secret_is_refused_and_not_repeated(v1: V1Client) -> None:
    for value in ({"token": "sk-secret"}, ["sk-secret"], None, 7):
        problem = v1.bad("PUT", "/secrets/openai", {"value": value})
        assert "sk-secret" not in str(problem)
    assert v1.bad("PUT", "/secrets/openai", {"value": MASK})["field"] == "value"
    assert v1.bad("PUT", "/secrets/openai", {"value": "x" * 70_000}, 422)["limit"] == "secret_bytes"
    assert v1.good("GET", "/secrets")["items"] == []


def test_the_default_model_of_a_provider(v1: V1Client) -> None:
    provider = v1.good("POST", "/providers", {"name": "openai"}, 201)["id"]
    default = f"/models/default?provider={provider}"
    v1.bad("GET", default, status=404)
    for name in ("large", "small"):
        v1.good("POST", "/models", {"provider": provider, "name": name, "is_default": True}, 201)
    assert v1.good("GET", default)["name"] == "small"
    assert v1.bad("POST", "/models", {"provider": provider, "name": "x", "input_price_micros": -1})["field"] == (
        "input_price_micros"
    )
    v1.good("DELETE", f"/providers/{provider}", status=204)
    assert v1.good("GET", "/models")["items"] == []


def test_a_sender_is_paired_with_a_code(v1: V1Client) -> None:
    state = "/pairing/state?sender=42&channel=telegram"
    request = v1.good("POST", "/pairing/requests", {"sender": "42", "channel": "telegram", "chat": "-100"})
    assert v1.good("POST", "/pairing/requests", {"sender": "42", "channel": "telegram"}) == request
    assert v1.good("GET", "/pairing/requests")["items"] == [request]
    assert v1.good("GET", state) == {"is_paired": False}
    device = v1.good("POST", "/pairing/approve", {"code": request["code"], "by": "ada"})
    assert (device["sender"], device["paired_by"]) == ("42", "ada")
    assert v1.good("GET", state) == {"is_paired": True}
    assert v1.good("GET", "/pairing/devices")["items"] == [device]
    v1.bad("POST", "/pairing/approve", {"code": request["code"]}, 404)
    v1.good("DELETE", "/pairing/devices?sender=42&channel=telegram", status=204)
    v1.bad("DELETE", "/pairing/devices?sender=42&channel=telegram", status=404)
    assert v1.good("GET", state) == {"is_paired": False}
    other = v1.good("POST", "/pairing/requests", {"sender": "43", "channel": "telegram"})
    v1.good("POST", "/pairing/deny", {"code": other["code"]}, 204)
    assert v1.bad("POST", "/pairing/deny", {"code": "nonsense!"})["field"] == "code"
    for sender in "123":
        v1.good("POST", "/pairing/requests", {"sender": sender, "channel": "telegram"})
    problem = v1.bad("POST", "/pairing/requests", {"sender": "4", "channel": "telegram"}, 422)
    assert problem["limit"] == "pairing_requests"
    expected = [f"pairing.{word}" for word in ("requested", "approved", "revoked", "requested", "denied")]
    assert actions(v1, "pairing") == [*expected, *["pairing.requested"] * 3]


def test_pairing_has_scopes_of_its_own(v1: V1Client) -> None:
    reader, writer = v1.key("pairing:read"), v1.key("pairing:write")
    v1.bad("POST", "/pairing/requests", {"sender": "42", "channel": "telegram"}, 403, key=reader)
    request = v1.good("POST", "/pairing/requests", {"sender": "42", "channel": "telegram"}, key=writer)
    assert v1.good("GET", "/pairing/requests", key=reader)["items"] == [request]
    v1.bad("POST", "/pairing/approve", {"code": request["code"]}, 403, key=v1.key("channels:write"))
    v1.good("POST", "/pairing/approve", {"code": request["code"]}, key=writer)
