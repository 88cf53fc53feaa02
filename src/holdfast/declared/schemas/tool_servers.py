"""The specifications of ``ToolServer``, ``RemoteMCPServer`` and ``MCPServer``."""

from __future__ import annotations

from typing import Any, Literal

from .parts import (
    AllowedNamespaces,
    KubernetesPart,
    NamedValue,
    NamedValueV1,
    Part,
    SecretName,
    Text,
    Tls,
    require,
    seconds,
)


class Stdio(Part):
    command: Text
    args: list[str] | None = None
    env: dict[str, str] | None = None
    env_from: list[NamedValueV1] | None = None
    read_timeout_seconds: int | None = None


class Sse(Part):
    url: Text
    headers: dict[str, Any] | None = None
    headers_from: list[NamedValueV1] | None = None
    sse_read_timeout: str | None = None
    timeout: str | None = None

    def __post_init__(self) -> None:
        values = (self.headers or {}).values()
        require(all(isinstance(value, str) for value in values), "the value of a header must be a string")
        seconds(self.timeout)
        seconds(self.sse_read_timeout)


class StreamableHttp(Sse):
    terminate_on_close: bool | None = None


class ToolServerConfig(Part):
    type: str | None = None
    stdio: Stdio | None = None
    sse: Sse | None = None
    streamable_http: StreamableHttp | None = None

    def __post_init__(self) -> None:
        transports = [item for item in (self.stdio, self.sse, self.streamable_http) if item is not None]
        require(len(transports) == 1, "give one of stdio, sse and streamableHttp")


class ToolServerSpec(Part):
    """A ``ToolServer`` of v1alpha1."""

    config: ToolServerConfig
    description: str = ""


class RemoteMCPServerSpec(Part):
    """A ``RemoteMCPServer`` of v1alpha2."""

    url: Text
    allowed_namespaces: AllowedNamespaces | None = None
    description: str = ""
    headers_from: list[NamedValue] | None = None
    protocol: Literal["SSE", "STREAMABLE_HTTP", None] = None
    sse_read_timeout: str | None = None
    terminate_on_close: bool | None = None
    timeout: str | None = None
    tls: Tls | None = None

    def __post_init__(self) -> None:
        require(self.tls is None or not self.url.startswith("http://"), "tls needs a URL that begins with https://")
        seconds(self.timeout)
        seconds(self.sse_read_timeout)


class InitContainer(Part):
    image: str | None = None
    image_pull_policy: str | None = None
    resources: KubernetesPart = None
    security_context: KubernetesPart = None


class PodServiceAccount(Part):
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Deployment(Part):
    """The container of an ``MCPServer``."""

    affinity: KubernetesPart = None
    annotations: dict[str, str] | None = None
    args: list[str] | None = None
    cmd: str | None = None
    config_map_refs: list[SecretName] | None = None
    env: dict[str, str] | None = None
    image: str | None = None
    image_pull_policy: str | None = None
    image_pull_secrets: KubernetesPart = None
    init_container: InitContainer | None = None
    labels: dict[str, str] | None = None
    node_selector: dict[str, str] | None = None
    pod_security_context: KubernetesPart = None
    port: int | None = None
    replicas: int | None = None
    resources: KubernetesPart = None
    secret_refs: list[SecretName] | None = None
    security_context: KubernetesPart = None
    service_account: PodServiceAccount | None = None
    service_account_name: str | None = None
    sidecars: list[dict[str, KubernetesPart]] | None = None
    tolerations: KubernetesPart = None
    volume_mounts: KubernetesPart = None
    volumes: KubernetesPart = None


class HttpTransportTls(Part):
    insecure_skip_verify: bool | None = None
    secret_ref: str | None = None


class HttpTransport(Part):
    path: str | None = None
    target_port: int | None = None
    tls: HttpTransportTls | None = None


class StdioTransport(Part):
    """Has no fields."""


class MCPServerSpec(Part):
    """An ``MCPServer`` of v1alpha1."""

    deployment: Deployment
    http_transport: HttpTransport | None = None
    stdio_transport: StdioTransport | None = None
    timeout: str | None = None
    transport_type: Literal["stdio", "http", None] = None

    def __post_init__(self) -> None:
        seconds(self.timeout)
