"""Manifests are checked against the fields of their kind, and their secret values are kept apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.declared.resources import SECRET_VALUES
from holdfast.declared.schemas import KINDS
from holdfast.encryption import MASK
from holdfast.errors import InvalidManifest
from tests.declared.manifests import FULL, SECRET, agent, manifest, refs, resources

DECLARATIVE = next(value for value in FULL if value["metadata"]["name"] == "declarative")
MCP_SERVER = next(value for value in FULL if value["kind"] == "MCPServer")
UNCHECKED = ("affinity", "extraContainers", "sidecars")
"""Parts of Kubernetes's own types."""
TOOL = {"type": "McpServer", "mcpServer": {"name": "tools", "toolNames": ["a"]}}


def with_value(value: dict[str, Any], path: str, new: Any) -> dict[str, Any]:
    """Return a manifest in which a value is replaced."""
    value = msgspec.json.decode(msgspec.json.encode(value))  # no part is shared
    owner: Any = value
    *parts, last = path.split(".")
    for part in parts:
        owner = owner[int(part) if part.isdigit() else part]
    owner[last] = new
    return value


def test_every_kind_and_version_is_read() -> None:
    found = resources(*FULL)
    assert {(item.kind, item.version) for item in found} == {
        (kind.name, version) for kind in KINDS.values() for version in kind.versions
    }
    order = [*KINDS]
    assert found == sorted(found, key=lambda item: (order.index(item.kind), item.name))
    assert refs(resources(*FULL[::-1])) == refs(found), "the order of the documents does not matter"


def test_secret_values_are_kept_apart_and_can_be_put_back() -> None:
    for value in FULL:
        (resource,) = resources(value)
        assert SECRET not in repr(resource)
        assert SECRET not in str(msgspec.to_builtins(resource.spec))
        assert {secret.reveal() for secret in resource.secrets.values()} <= {SECRET}
        expected = msgspec.convert(value["spec"], resource.schema())
        assert resource.parsed(resource.schema()) == expected
        assert str(value).count(SECRET) - ("annotations" in value["metadata"]) == len(resource.secrets)


def test_labels_and_annotations_are_kept_except_the_whole_manifest_of_kubectl() -> None:
    (resource,) = resources(DECLARATIVE)
    assert (resource.labels, resource.annotations) == ({"app": "a"}, {"note": "n"})


def test_a_masked_secret_is_not_a_secret() -> None:
    with pytest.raises(InvalidManifest) as caught:
        resources(with_value(MCP_SERVER, "spec.deployment.env.TOKEN", MASK))
    assert caught.value.path == "spec.deployment.env.TOKEN"


def test_a_missing_namespace_has_a_default() -> None:
    value = agent("a")
    del value["metadata"]["namespace"]
    assert refs(resources(value)) == ["Agent/kagent/a"]


def test_null_counts_as_omitted() -> None:
    (resource,) = resources(with_value(DECLARATIVE, "spec.declarative.tools", None))
    assert "tools" not in resource.spec["declarative"]


@pytest.mark.parametrize(
    "value", FULL, ids=lambda value: f"{value['kind']}-{value['apiVersion'][-8:]}-{value['metadata']['name']}"
)
def test_an_unknown_field_is_an_error_at_every_level(value: dict[str, Any]) -> None:
    """Every object that is not a map of names gets a field that its kind does not have."""

    def objects(part: Any, path: str) -> list[str]:
        if isinstance(part, dict):
            own = (
                [path] if not path.endswith((".env", ".headers", ".defaultHeaders", ".labels", ".annotations")) else []
            )
            return own + [found for name, item in part.items() for found in objects(item, f"{path}.{name}")]
        if isinstance(part, list):
            return [found for index, item in enumerate(part) for found in objects(item, f"{path}.{index}")]
        return []

    paths = [path for path in objects(value["spec"], "spec") if not any(name in path for name in UNCHECKED)]
    for path in [*paths, "metadata"]:
        with pytest.raises(InvalidManifest) as caught:
            resources(with_value(value, f"{path}.unknownField", 1))
        assert (caught.value.file, caught.value.document) == ("test.yaml", 1)
        got = caught.value.path.replace("[", ".").replace("]", "").replace("....", ".")
        assert got == f"{path}.unknownField", caught.value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("text", ""),
        ([], ""),
        ({}, "apiVersion"),
        ({"apiVersion": "kagent.dev/v1alpha2"}, "kind"),
        ({"apiVersion": 1, "kind": "Agent"}, "apiVersion"),
        (manifest("Pod", "a", {}), "kind"),
        ({**agent("a"), "apiVersion": "v1"}, "kind"),
        ({**agent("a"), "apiVersion": "other.dev/v1alpha2"}, "kind"),
        (manifest("Agent", "a", {}, "v9"), "apiVersion"),
        (manifest("ToolServer", "a", {}, "v1alpha2"), "apiVersion"),
        ({**agent("a"), "spec": None}, "spec"),
        ({**agent("a"), "extra": 1}, "extra"),
        ({**agent("a"), "metadata": {}}, "metadata.name"),
        ({**agent("a"), "metadata": {"generateName": "a"}}, "metadata.generateName"),
        (agent("UPPER"), "metadata.name"),
        (agent("../up"), "metadata.name"),
        (agent("a\n"), "metadata.name"),
        (agent("x" * 254), "metadata.name"),
        (manifest("Agent", "a", {}, namespace="a_b"), "metadata.namespace"),
        (manifest("Agent", "a", {"description": 7, "declarative": {}}), "spec.description"),
        (manifest("Agent", "a", {"type": "Other", "declarative": {}}), "spec.type"),
        (manifest("Agent", "a", {"description": "no declarative"}), "spec"),
        (manifest("Agent", "a", {"type": "BYO", "declarative": {}}), "spec"),
        (agent("a", systemMessageFrom={"type": "ConfigMap", "name": "c", "key": "k"}), "spec.declarative"),
        (manifest("Agent", "a", {"declarative": {"systemMessageFrom": {"type": "Secret", "name": "c"}}}), "spec.declarative"),
        (agent("a", tools=[TOOL] * 21), "spec.declarative.tools"),
        (agent("a", tools=[{**TOOL, "type": "Agent"}]), "spec.declarative.tools[0]"),
        (agent("a", tools=[{"type": "McpServer"}]), "spec.declarative.tools[0]"),
        (agent("a", tools=[{**TOOL, "isolateSessions": True}]), "spec.declarative.tools[0]"),
        (manifest("ModelConfig", "m", {}), "spec.model"),
        (manifest("ModelConfig", "m", {"model": "x", "provider": "Anthropic", "openAI": {}}), "spec"),
        (manifest("ModelConfig", "m", {"model": "x", "apiKeySecretKey": "k"}), "spec"),
        (manifest("ModelConfig", "m", {"model": "x", "apiKeySecret": "s", "apiKeyPassthrough": True}), "spec"),
        (manifest("ModelConfig", "m", {"model": "x", "provider": "Bedrock"}, "v1alpha1"), "spec.provider"),
        (manifest("ModelProviderConfig", "p", {"type": "OpenAI"}), "spec"),
        (manifest("ModelProviderConfig", "p", {"type": "Ollama", "endpoint": "ftp://x"}), "spec"),
        (manifest("ToolServer", "t", {"config": {}}, "v1alpha1"), "spec.config"),
        (manifest("ToolServer", "t", {"config": {"sse": {"url": "u", "headers": {"a": 1}}}}, "v1alpha1"), "spec.config.sse"),
        (manifest("RemoteMCPServer", "r", {"url": "http://x", "tls": {}}), "spec"),
        (manifest("RemoteMCPServer", "r", {"url": "https://x", "timeout": "soon"}), "spec"),
        (manifest("RemoteMCPServer", "r", {"url": "u", "headersFrom": [{"name": "A"}]}), "spec.headersFrom[0]"),
        (manifest("Memory", "m", {"provider": "Other"}, "v1alpha1"), "spec.provider"),
    ],
)  # fmt: skip
def test_an_invalid_manifest_is_one_typed_error_with_its_place(value: Any, path: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        resources(agent("valid"), value)
    assert (caught.value.file, caught.value.document, caught.value.path) == ("test.yaml", 2, path)
    assert caught.value.field == path


def test_a_resource_is_declared_once() -> None:
    with pytest.raises(InvalidManifest) as caught:
        resources(agent("a"), agent("b"), manifest("Agent", "a", {"description": "d"}, "v1alpha1"))
    assert (caught.value.document, caught.value.path) == (3, "metadata.name")


def test_every_secret_path_exists_in_a_manifest_of_these_tests() -> None:
    covered = {
        (resource.kind, pattern)
        for resource in resources(*FULL)
        for pattern in SECRET_VALUES.get(resource.kind, ())
        for path in resource.secrets
        if len(path.split("/")) == len(pattern.split("."))
        and all(item in ("*", part) for item, part in zip(pattern.split("."), path.split("/"), strict=True))
    }
    missing = {(kind, pattern) for kind, patterns in SECRET_VALUES.items() for pattern in patterns} - covered
    assert missing == set()
