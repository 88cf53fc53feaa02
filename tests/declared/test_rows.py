"""Each kind of resource brings about rows, with the values that it refers to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from holdfast import NewAgent
from holdfast.declared.applying import declarations
from holdfast.declared.rows import models_of
from holdfast.declared.schemas import KINDS
from holdfast.declared.schemas.parts import seconds
from holdfast.declared.values import Values, local_values, values_of
from holdfast.encryption import MASK
from holdfast.errors import InvalidManifest, LimitExceeded
from holdfast.limits import Limits
from holdfast.types import NewMcpServer, NewModel, NewProvider, ResourceToApply
from tests.declared.manifests import FULL, LIMITS, SECRET, agent, manifest, resources

KEYS = {
    ("Secret", "kagent", "keys"): {"token": "referred"},
    ("Secret", "other", "keys"): {"token": "of another namespace"},
    ("ConfigMap", "kagent", "config"): {"region": "eu", "prompt": "Be brief."},
}
IN_CLUSTER = values_of(lambda *name: KEYS.get(name))


def applied(*given: dict[str, Any], values: Values = IN_CLUSTER) -> dict[str, ResourceToApply]:
    """Return the resources to apply for these manifests, by reference."""
    found = resources(*given)
    ready, errors = declarations(found, values, models_of(found))
    for error in errors.values():
        raise error
    return {item.ref: item for item in ready}


def plain(row: Any) -> dict[str, Any]:
    """Return the fields of a new row that are not its defaults, with its secrets."""
    defaults = {field.name: field.default for field in structs.fields(row)}
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    given = {name: value for name, value in values.items() if value not in (defaults[name], [], {})}
    return {name: value.reveal() if hasattr(value, "reveal") else value for name, value in given.items()}


@pytest.fixture(scope="module")
def full() -> dict[str, ResourceToApply]:
    return applied(*FULL)


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("ModelProviderConfig/kagent/openai", [(NewProvider, {
            "name": "kagent/openai:provider", "display_name": "openai", "api_base": "https://x", "api_key": "referred",
            "settings": {"provider": "OpenAI"},
        })]),
        ("ModelConfig/kagent/azure", [
            (NewProvider, {
                "name": "kagent/azure", "display_name": "azure", "provider_type": "azure_openai", "api_base": "https://x",
                "api_key": "referred",
                "settings": {"provider": "AzureOpenAI", "azureOpenAI": {"apiVersion": "1", "azureEndpoint": "https://x"}},
            }),
            (NewModel, {"provider": "kagent/azure", "name": "gpt", "is_default": True}),
        ]),
        ("ModelConfig/kagent/v1", [
            (NewProvider, {
                "name": "kagent/v1", "display_name": "v1", "api_base": "https://x", "api_key": "of another namespace",
                "settings": {"provider": "OpenAI", "openAI": {"temperature": "0.1", "baseUrl": "https://x"}},
            }),
            (NewModel, {"provider": "kagent/v1", "name": "gpt", "capabilities": ["vision"], "is_default": True}),
        ]),
        ("ToolServer/kagent/stdio", [(NewMcpServer, {
            "name": "kagent/stdio", "kind": "ToolServer", "display_name": "stdio", "description": "d", "transport": "stdio",
            "command": "npx", "args": ["-y"], "env": {"TOKEN": SECRET, "A": SECRET, "B": "referred"}, "timeout_ms": 10_000,
        })]),
        ("ToolServer/kagent/sse", [(NewMcpServer, {
            "name": "kagent/sse", "kind": "ToolServer", "display_name": "sse", "transport": "sse", "url": "https://x",
            "headers": {"Authorization": SECRET, "A": SECRET, "B": "referred"}, "timeout_ms": 90_000,
        })]),
        ("ToolServer/kagent/http", [(NewMcpServer, {
            "name": "kagent/http", "kind": "ToolServer", "display_name": "http", "transport": "streamable-http",
            "url": "https://x", "headers": {"Authorization": SECRET, "A": SECRET, "B": "referred"}, "timeout_ms": 90_000,
            "settings": {"terminate_on_close": True},
        })]),
        ("MCPServer/kagent/stdio", [(NewMcpServer, {
            "name": "kagent/stdio", "kind": "MCPServer", "display_name": "stdio", "transport": "stdio", "command": "c",
            "args": ["x"], "env": {"TOKEN": SECRET}, "timeout_ms": 20_000,
            "settings": {"service_url": "http://stdio.kagent:3000/mcp"},
        })]),
        ("MCPServer/kagent/http", [(NewMcpServer, {
            "name": "kagent/http", "kind": "MCPServer", "display_name": "http", "transport": "streamable-http",
            "url": "http://http.kagent:80/mcp", "timeout_ms": 30_000,
        })]),
        ("RemoteMCPServer/kagent/remote", [(NewMcpServer, {
            "name": "kagent/remote", "kind": "RemoteMCPServer", "display_name": "remote", "transport": "sse",
            "url": "https://x", "headers": {"A": SECRET, "B": "eu"}, "timeout_ms": 30_000,
        })]),
        ("Memory/kagent/pinecone", []),
        ("Agent/kagent/declarative", [(NewAgent, {
            "id": "kagent__NS__declarative", "display_name": "kagent/declarative", "description": "d",
            "provider": "kagent/azure", "model": "gpt", "system": "s",
            "tool_ids": ["kagent/remote:a", "kagent/remote:b", "kagent__NS__by_o"],
            "metadata": {"type": "Declarative", "workload_type": "deployment"},
        })]),
        ("Agent/kagent/by-o", [(NewAgent, {
            "id": "kagent__NS__by_o", "display_name": "kagent/by-o",
            "metadata": {"type": "BYO", "workload_type": "deployment"},
        })]),
        ("Agent/kagent/v1", [(NewAgent, {
            "id": "kagent__NS__v1", "display_name": "kagent/v1", "description": "d", "provider": "kagent/v1", "model": "gpt",
            "system": "s", "tool_ids": ["kagent__NS__by_o", "kagent/sse"],
            "metadata": {"type": "Declarative", "workload_type": "deployment"},
        })]),
    ],
)  # fmt: skip
def test_rows_of_each_kind(full: dict[str, ResourceToApply], ref: str, expected: list[Any]) -> None:
    assert [(type(row), plain(row)) for row in full[ref].rows] == expected


def test_the_whole_specification_is_kept_with_its_secrets_apart(full: dict[str, ResourceToApply]) -> None:
    assert {item.kind for item in full.values()} == {*KINDS}
    for item in full.values():
        assert SECRET not in str(item.spec)
        secrets = {} if item.secrets is None else item.secrets.reveal()
        assert str(item.spec).count(MASK) == len([path for path in secrets if path != "apiKey"])
    memory = full["Memory/kagent/pinecone"]
    assert memory.secrets is not None
    assert memory.secrets.reveal() == {"apiKey": "referred"}
    declarative = full["Agent/kagent/declarative"]
    assert declarative.api_version == "kagent.dev/v1alpha2"
    assert declarative.metadata == {"labels": {"app": "a"}, "annotations": {"note": "n"}}


def test_a_system_message_can_come_from_a_config_map() -> None:
    source = {"type": "ConfigMap", "name": "config", "key": "prompt"}
    given = manifest("Agent", "a", {"declarative": {"systemMessageFrom": source}})
    (row,) = applied(given)["Agent/kagent/a"].rows
    assert plain(row)["system"] == "Be brief."


def test_credentials_of_several_parts_are_the_whole_secret() -> None:
    given = manifest("ModelConfig", "b", {
        "model": "claude", "provider": "Bedrock", "apiKeySecret": "keys", "bedrock": {"region": "eu"},
    })  # fmt: skip
    assert plain(applied(given)["ModelConfig/kagent/b"].rows[0])["api_key"] == '{"token": "referred"}'


def test_a_model_config_of_another_set_is_known_by_its_declaration() -> None:
    found = resources(agent("a", modelConfig="elsewhere"))
    ready, errors = declarations(found, IN_CLUSTER, {"ModelConfig/kagent/elsewhere": "gpt"})
    assert errors == {}
    assert plain(ready[0].rows[0])["model"] == "gpt"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (agent("a", modelConfig="absent"), "spec.declarative.modelConfig"),
        (manifest("Agent", "a", {"modelConfig": "absent"}, "v1alpha1"), "spec.modelConfig"),
        (manifest("ModelConfig", "m", {"model": "x", "apiKeySecret": "absent"}), "spec.apiKeySecret"),
        (manifest("ModelConfig", "m", {"model": "x", "apiKeySecretRef": "absent"}, "v1alpha1"), "spec.apiKeySecretRef"),
        (manifest("ModelConfig", "m", {"model": "x", "apiKeySecret": "keys", "apiKeySecretKey": "no"}), "spec.apiKeySecret"),
        (manifest("ModelConfig", "m", {"model": "x", "apiKeySecret": "../keys"}), "spec.apiKeySecret"),
        (manifest("ModelConfig", "m", {"model": "x", "apiKeySecret": "keys", "apiKeySecretKey": ".."}), "spec.apiKeySecret"),
        (manifest("ModelConfig", "m", {"model": "x", "apiKeySecret": "env:HOME"}), "spec.apiKeySecret"),
        (manifest("ModelConfig", "m", {"model": "x", "apiKeySecret": "file:/etc/passwd"}), "spec.apiKeySecret"),
        (manifest("ModelProviderConfig", "p", {"type": "OpenAI", "secretRef": {"name": "absent"}}), "spec.secretRef.name"),
        (manifest("RemoteMCPServer", "r", {"url": "https://x", "headersFrom": [
            {"name": "A", "value": "x"}, {"name": "B", "valueFrom": {"type": "Secret", "name": "absent", "key": "k"}},
        ]}), "spec.headersFrom[1].valueFrom"),
    ],
)  # fmt: skip
def test_what_a_resource_refers_to_must_exist(given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        applied(given)
    assert (caught.value.file, caught.value.document, caught.value.path) == ("test.yaml", 1, path)


def secret_of(name: str, values: Values, key: str = "") -> Any:
    """Return the key of a model that refers to a Secret of this name."""
    given = manifest(
        "ModelConfig", "m", {"model": "x", "apiKeySecret": name, **({"apiKeySecretKey": key} if key else {})}
    )
    return plain(applied(given, values=values)["ModelConfig/kagent/m"].rows[0]).get("api_key")


def test_values_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "from a variable")
    (tmp_path / "key").write_text("from a file\n")
    for namespace in ("", "kagent/"):
        folder = tmp_path / f"{namespace}mounted{len(namespace)}"
        folder.mkdir(parents=True)
        (folder / "token").write_text("from a folder\r\n")
        (folder / "..data").mkdir()
    values = local_values(tmp_path, LIMITS)
    assert secret_of("env:MY_KEY", values) == "from a variable"
    assert secret_of(f"file:{tmp_path}/key", values) == "from a file"
    assert secret_of("mounted0", values) == secret_of("mounted7", values, "token") == "from a folder"
    for name in ("env:ABSENT_KEY", f"file:{tmp_path}/absent", f"file:{tmp_path}", "absent"):
        with pytest.raises(InvalidManifest):
            secret_of(name, values)
    with pytest.raises(InvalidManifest):
        secret_of("mounted0", local_values(None, LIMITS))
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(InvalidManifest):
        secret_of(f"file:{tmp_path}/binary", values)
    with pytest.raises(LimitExceeded):
        secret_of(f"file:{tmp_path}/key", local_values(None, Limits(system_bytes=5)))


def test_a_file_is_relative_to_its_manifest(tmp_path: Path) -> None:
    from holdfast.declared.documents import read_documents
    from holdfast.declared.resources import read_resources

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "key").write_text("beside it")
    spec = '{"model": "x", "apiKeySecret": "file:key"}'
    (tmp_path / "folder" / "m.json").write_text(
        f'{{"apiVersion": "kagent.dev/v1alpha2", "kind": "ModelConfig", "metadata": {{"name": "m"}}, "spec": {spec}}}'
    )
    ready, errors = declarations(read_resources(read_documents(tmp_path, LIMITS)), local_values(None, LIMITS), {})
    assert errors == {}
    assert plain(ready[0].rows[0])["api_key"] == "beside it"


@pytest.mark.parametrize(
    ("duration", "expected"), [("30s", 30), ("1m30s", 90), ("1.5h", 5400), ("250ms", 0.25), (".5s", 0.5), ("1h2m3s", 3723)]
)  # fmt: skip
def test_durations(duration: str, expected: float) -> None:
    assert seconds(duration) == expected


@pytest.mark.parametrize("duration", ["", "5", "s", "5x", "5s ", "-5s", "1m 5s"])
def test_what_is_not_a_duration(duration: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds(duration)
