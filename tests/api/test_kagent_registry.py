"""kagent's agents, model configurations, tool servers and namespaces answer from the rows of declared resources."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.declared.applying import complete
from holdfast.declared.values import values_of
from holdfast.encryption import MASK, new_key
from tests.api.kagent import Kagent, bad, good
from tests.declared.manifests import agent, manifest, resources

SECRET = "s3cret-value"


@pytest.fixture
def acme(kagent: Kagent, monkeypatch: pytest.MonkeyPatch) -> Kagent:
    """A tenant with an encryption key."""
    other = kagent.another()
    other.use_keys(monkeypatch, new_key())
    return other


def apply(kagent: Kagent, *manifests: dict[str, Any]) -> None:
    async def main() -> None:
        keys = values_of(lambda kind, namespace, name: {"key": SECRET})
        found = await complete(kagent.tenant, resources(*manifests), keys)
        await kagent.tenant.declared.apply(found, source="test")

    kagent.run(main())


def provider(kagent: Kagent, name: str) -> Any:
    async def main() -> Any:
        row = await kagent.tenant.providers.find(name)
        assert row is not None
        return row, await kagent.tenant.providers.reveal(row.id)

    row, secrets = kagent.run(main())
    return row, secrets["api_key"]


def test_agents_answer_with_their_resources(acme: Kagent) -> None:
    tool = {"type": "McpServer", "mcpServer": {"name": "tools", "toolNames": ["a"]}}
    acme.post("/api/agents", {"agent_ref": "kagent/by-hand", "type": "BYO", "config": {"mine": 1}})
    apply(
        acme,
        manifest("ModelConfig", "m", {"model": "claude", "provider": "Anthropic"}),
        manifest("RemoteMCPServer", "tools", {"url": "https://example.com", "description": "d"}),
        agent("my-agent", modelConfig="m", tools=[tool]),
        manifest("Agent", "other", {"declarative": {}}, namespace="elsewhere"),
    )
    listed = {item["name"]: item for item in good(acme.get("/api/agents"))}
    assert set(listed) == {"kagent/by-hand", "kagent/my-agent", "elsewhere/other"}
    assert (listed["kagent/by-hand"]["type"], listed["kagent/by-hand"]["config"]) == ("BYO", {"mine": 1})
    assert listed["kagent/by-hand"]["agent"] is None
    (found,) = good(acme.get("/api/agents?namespace=kagent"))
    assert found == listed["kagent/my-agent"] == good(acme.get("/api/agents/kagent/my-agent"))
    assert (found["id"], found["type"], found["model"], found["modelProvider"], found["modelConfigRef"]) == (
        "kagent__NS__my_agent", "Declarative", "claude", "Anthropic", "kagent/m",
    )  # fmt: skip
    assert found["agent"]["metadata"] == {"name": "my-agent", "namespace": "kagent"}
    assert found["agent"]["spec"] == found["config"]
    assert found["tools"] == [tool]
    acme.post("/api/agents", {"agent_ref": "kagent/my-agent", "config": {"kept": True}})
    again = good(acme.get("/api/agents/kagent/my-agent"))
    assert (again["type"], again["config"], again["model"]) == ("Declarative", {"kept": True}, "claude")
    (server,) = good(acme.get("/api/toolservers"))
    assert (server["ref"], server["groupKind"]) == ("kagent/tools", "RemoteMCPServer")
    assert [item["name"] for item in good(acme.get("/api/namespaces"))] == ["elsewhere", "kagent"]
    assert [item["name"] for item in good(acme.another().get("/api/namespaces"))] == ["kagent"]


def test_model_configs_are_created_changed_and_deleted(acme: Kagent) -> None:
    assert good(acme.get("/api/modelconfigs")) == []
    new = {"ref": "kagent/m", "apiKey": SECRET, "spec": {"model": "gpt", "provider": "OpenAI"}}
    made = good(acme.post("/api/modelconfigs", new), 201)
    assert made == {
        "ref": "kagent/m",
        "spec": {"model": "gpt", "provider": "OpenAI", "apiKeySecret": "m", "apiKeySecretKey": "OPENAI_API_KEY"},
        "status": {},
    }
    assert provider(acme, "kagent/m")[1] == SECRET
    bad(acme.post("/api/modelconfigs", new), 409)
    assert good(acme.get("/api/modelconfigs/kagent/m")) == made == good(acme.get("/api/modelconfigs"))[0]

    spec = {**made["spec"], "model": "gpt-5", "defaultHeaders": {"Authorization": "header"}}
    changed = good(acme.put("/api/modelconfigs/kagent/m", {"spec": spec}))
    assert changed["spec"]["defaultHeaders"] == {"Authorization": MASK}
    assert provider(acme, "kagent/m")[1] == SECRET, "without a new key, the current one stays"
    changed = good(acme.put("/api/modelconfigs/kagent/m", {"spec": changed["spec"], "apiKey": "another"}))
    assert provider(acme, "kagent/m")[1] == "another"
    revealed = acme.run(acme.tenant.declared.reveal("ModelConfig/kagent/m"))
    assert revealed["secrets"] == {"defaultHeaders/Authorization": "header"}, "what came back masked, stays"
    materials = [{"name": "m", "key": "OPENAI_API_KEY", "value": "a third"}]
    good(acme.put("/api/modelconfigs/kagent/m", {"spec": changed["spec"], "secrets": materials}))
    assert provider(acme, "kagent/m")[1] == "a third"

    assert good(acme.delete("/api/modelconfigs/kagent/m")) == {}
    assert acme.run(acme.tenant.providers.list()) == acme.run(acme.tenant.models.list()) == []
    for method in ("GET", "PUT", "DELETE"):
        body = {"spec": {"model": "x"}} if method == "PUT" else None
        bad(acme.run(acme.ask(method, "/api/modelconfigs/kagent/m", body)), 404)


def test_a_model_config_of_v1alpha1_answers_in_the_form_of_v1alpha2(acme: Kagent) -> None:
    spec = {"model": "gpt", "apiKeySecretRef": "keys", "apiKeySecretKey": "key"}
    apply(acme, manifest("ModelConfig", "m", spec, "v1alpha1"))
    assert good(acme.get("/api/modelconfigs/kagent/m"))["spec"] == {
        "model": "gpt", "apiKeySecret": "keys", "apiKeySecretKey": "key",
    }  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ref": "kagent/m", "spec": {}},
        {"ref": "kagent/m", "spec": {"model": "x", "unknown": 1}},
        {"ref": "kagent/../m", "spec": {"model": "x"}},
        {"ref": "kagent/m", "spec": {"model": "x", "apiKeySecret": "not given"}},
        {"ref": "kagent/m", "spec": {"model": "x", "apiKeySecret": "env:HOME"}},
        {"ref": "kagent/m", "spec": {"model": "x", "apiKeySecret": "file:/etc/passwd"}},
        {"ref": "kagent/m", "spec": {"model": "x", "defaultHeaders": {"A": MASK}}},
    ],
)
def test_an_invalid_model_config_is_refused(acme: Kagent, body: dict[str, Any]) -> None:
    bad(acme.post("/api/modelconfigs", body), 400)
    assert good(acme.get("/api/modelconfigs")) == []
