"""Applying manifests over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.encryption import MASK, KeyRing, new_key
from tests.api.v1 import V1Client
from tests.declared.manifests import SECRET, agent, manifest


@pytest.fixture
def acme(v1: V1Client, monkeypatch: pytest.MonkeyPatch) -> V1Client:
    """A tenant of a server with an encryption key."""
    monkeypatch.setattr(v1.server.holdfast._setting, "keys", KeyRing(new_key()))
    return v1.another()


def body(*manifests: Any, **more: Any) -> dict[str, Any]:
    return {"source": "ci", "manifests": [*manifests], **more}


def actions(answer: dict[str, Any]) -> dict[str, str]:
    return {change["ref"]: change["action"] for change in answer["changes"]}


def test_manifests_are_applied_pruned_and_removed(acme: V1Client) -> None:
    spec = {"model": "gpt", "apiKeySecret": "openai", "apiKeySecretKey": "key", "defaultHeaders": {"A": SECRET}}
    given = body(agent("a", modelConfig="m"), manifest("ModelConfig", "m", spec))
    given["values"] = {"Secret/kagent/openai": {"key": SECRET}}
    path = "/declared-resources"
    planned = acme.good("POST", f"{path}/apply", {**given, "dry_run": True})
    assert acme.good("GET", path)["items"] == []
    assert acme.good("POST", f"{path}/apply", given) == planned
    assert actions(planned) == {"ModelConfig/kagent/m": "created", "Agent/kagent/a": "created"}
    assert set(actions(acme.good("POST", f"{path}/apply", given)).values()) == {"unchanged"}
    (row,) = [item for item in acme.good("GET", path)["items"] if item["kind"] == "ModelConfig"]
    assert row["spec"]["defaultHeaders"] == {"A": MASK}
    assert SECRET not in str(acme.good("GET", path)) + str(acme.good("GET", "/providers"))
    (provider,) = acme.good("GET", "/providers")["items"]
    assert acme.good("POST", f"/providers/{provider['id']}/reveal")["api_key"] == SECRET
    assert acme.good("GET", "/declared-namespaces") in (["kagent"], {"items": ["kagent"]})

    agent_of_another_set = body(agent("b", modelConfig="m"), source="more")
    assert actions(acme.good("POST", f"{path}/apply", agent_of_another_set)) == {"Agent/kagent/b": "created"}
    acme.bad("POST", f"{path}/apply", body(agent("b")), 409)
    pruned = acme.good("POST", f"{path}/apply", {**given, "manifests": given["manifests"][1:], "prune": True})
    assert actions(pruned) == {"ModelConfig/kagent/m": "unchanged", "Agent/kagent/a": "pruned"}
    removed = acme.good("POST", f"{path}/remove", {"refs": ["Agent/kagent/b", "Agent/kagent/absent"]})
    assert "Agent/kagent/b" in str(removed)
    assert acme.good("GET", "/agents")["items"] == []


@pytest.mark.parametrize(
    "wrong",
    [
        body({}),
        body(agent("a", unknown=1)),
        body(agent("a", modelConfig="absent")),
        body(agent("a"), agent("a")),
        body(manifest("ModelConfig", "m", {"model": "x", "apiKeySecret": "absent"})),
        body(manifest("ModelConfig", "m", {"model": "x", "apiKeySecret": "env:HOME"})),
        body(manifest("ModelConfig", "m", {"model": "x", "apiKeySecret": "file:/etc/passwd"})),
        body(source=""),
        {"source": "ci"},
        {"manifests": []},
        body(unknown=1),
    ],
)
def test_what_is_not_valid_is_refused_and_changes_nothing(acme: V1Client, wrong: dict[str, Any]) -> None:
    if wrong.get("manifests"):
        wrong = {**wrong, "manifests": [agent("valid"), *wrong["manifests"]]}
    acme.bad("POST", "/declared-resources/apply", wrong, 400)
    assert acme.good("GET", "/agents")["items"] == []
