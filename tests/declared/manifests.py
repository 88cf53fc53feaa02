"""Manifests for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.declared.documents import Document, Place, parse_documents
from holdfast.declared.resources import Resource, read_resources
from holdfast.limits import Limits

LIMITS = Limits()


def manifest(kind: str, name: str, spec: dict[str, Any], version: str = "v1alpha2", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"kagent.dev/{version}",
        "kind": kind,
        "metadata": {"name": name, "namespace": "kagent", **metadata},
        "spec": spec,
    }


def agent(name: str, system: str = "Be helpful.", **declarative: Any) -> dict[str, Any]:
    return manifest("Agent", name, {"declarative": {"systemMessage": system, **declarative}})


SECRET = "s3cret-value"
_ENV = [{"name": "A", "value": SECRET}]
_CONTAINERS = [{"name": "c", "env": _ENV}]
_HEADERS = [*_ENV, {"name": "B", "valueFrom": {"type": "ConfigMap", "name": "config", "key": "region"}}]
_HEADERS_V1 = [*_ENV, {"name": "B", "valueFrom": {"type": "Secret", "valueRef": "keys", "key": "token"}}]
_TOOL = {"type": "McpServer", "mcpServer": {"name": "remote", "toolNames": ["a", "b"]}, "headersFrom": _ENV}
_HTTP = {"url": "https://x", "headers": {"Authorization": SECRET}, "headersFrom": _HEADERS_V1, "timeout": "1m30s"}
FULL: list[dict[str, Any]] = [
    manifest("ModelProviderConfig", "openai", {
        "type": "OpenAI", "endpoint": "https://x", "secretRef": {"name": "keys"},
    }),
    manifest("ModelConfig", "azure", {
        "model": "gpt", "provider": "AzureOpenAI", "apiKeySecret": "keys", "apiKeySecretKey": "token",
        "azureOpenAI": {"apiVersion": "1", "azureEndpoint": "https://x", "azureAdToken": SECRET},
        "defaultHeaders": {"Authorization": SECRET, "1": SECRET, "a/b~c": SECRET},
    }),
    manifest("ModelConfig", "v1", {
        "model": "gpt", "apiKeySecretRef": "other/keys", "apiKeySecretKey": "token", "modelInfo": {"vision": True},
        "openAI": {"temperature": "0.1", "baseUrl": "https://x"},
    }, "v1alpha1"),
    manifest("ToolServer", "stdio", {"description": "d", "config": {"stdio": {
        "command": "npx", "args": ["-y"], "env": {"TOKEN": SECRET}, "envFrom": _HEADERS_V1,
    }}}, "v1alpha1"),
    manifest("ToolServer", "sse", {"config": {"sse": _HTTP}}, "v1alpha1"),
    manifest("ToolServer", "http", {"config": {"streamableHttp": {**_HTTP, "terminateOnClose": True}}}, "v1alpha1"),
    manifest("MCPServer", "stdio", {
        "deployment": {"image": "i", "cmd": "c", "args": ["x"], "env": {"TOKEN": SECRET}, "sidecars": _CONTAINERS},
        "transportType": "stdio", "stdioTransport": {}, "timeout": "20s",
    }, "v1alpha1"),
    manifest("MCPServer", "http", {"deployment": {"image": "i", "port": 80}, "httpTransport": {}}, "v1alpha1"),
    manifest("RemoteMCPServer", "remote", {"url": "https://x", "protocol": "SSE", "headersFrom": _HEADERS}),
    manifest("Memory", "pinecone", {
        "apiKeySecretRef": "keys", "apiKeySecretKey": "token", "pinecone": {"indexHost": "h"},
    }, "v1alpha1"),
    manifest("Agent", "declarative", {"type": "Declarative", "description": "d", "declarative": {
        "modelConfig": "azure", "systemMessage": "s", "tools": [_TOOL, {"type": "Agent", "agent": {"name": "by-o"}}],
        "deployment": {"env": _ENV, "affinity": {"anything": [1]}, "extraContainers": _CONTAINERS},
        "context": {"compaction": {"compactionInterval": 5}}, "memory": {"modelConfig": "azure", "ttlDays": 3},
    }}, labels={"app": "a"}, annotations={"kubectl.kubernetes.io/last-applied-configuration": SECRET, "note": "n"}),
    manifest("Agent", "by-o", {
        "type": "BYO", "byo": {"deployment": {"image": "i", "env": _ENV, "extraContainers": _CONTAINERS}},
        "skills": {"refs": ["r"], "initContainer": {"env": _ENV}},
    }),
    manifest("Agent", "v1", {
        "description": "d", "systemMessage": "s", "modelConfig": "kagent/v1", "memory": ["pinecone"],
        "tools": [{"type": "Agent", "agent": {"ref": "kagent/by-o"}}, {"type": "McpServer", "mcpServer": {"toolServer": "sse"}}],
        "deployment": {"env": _ENV},
    }, "v1alpha1"),
]  # fmt: skip
"""Every kind in every version, with a value at every path that can be a secret."""


def documents(*values: Any) -> list[Document]:
    return [Document(Place("test.yaml", number), value) for number, value in enumerate(values, 1)]


def resources(*values: Any) -> list[Resource]:
    return read_resources(documents(*values))


def parse(text: str | bytes, file: str = "test.yaml", limits: Limits = LIMITS) -> list[Any]:
    """Return the values of the documents in a text."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return [document.value for document in parse_documents(file, data, limits)]


def write(path: Path, *values: dict[str, Any]) -> None:
    """Write documents as JSON lines, which are YAML, in one step."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(b"\n---\n".join(msgspec.json.encode(value) for value in values))
    unfinished.rename(path)


def refs(items: Sequence[Resource]) -> list[str]:
    return [item.ref for item in items]
