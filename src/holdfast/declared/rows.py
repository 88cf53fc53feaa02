"""The rows that each kind of resource brings about. No I/O, except that ``Values`` may look up what a resource refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import NewAgent
from holdfast.encryption import Secret
from holdfast.types import NewMcpServer, NewModel, NewProvider, ProviderType, ResourceToApply

from .resources import SECRET_VALUES, Resource
from .schemas import GROUP, agents, models, tool_servers
from .schemas.parts import seconds
from .values import Values, reference

PROVIDER_TYPES: dict[str, ProviderType] = {
    "OpenAI": "openai_compat",
    "Anthropic": "anthropic_native",
    "AzureOpenAI": "azure_openai",
    "Ollama": "ollama",
    "Gemini": "gemini_native",
    "GeminiVertexAI": "gemini_vertex_ai",
    "AnthropicVertexAI": "anthropic_vertex_ai",
    "Bedrock": "bedrock",
    "SAPAICore": "sap_ai_core",
    "Foundry": "foundry",
}
"""The types of providers in kagent and here."""
PROVIDER_SUFFIX = ":provider"
"""Follows the name of a row that a ``ModelProviderConfig`` brings about; a ``ModelConfig`` may have the same name."""
MCP_PORT = 3000
"""The default port of an ``MCPServer``."""
WORKLOAD_TYPE = "deployment"
"""kagent's default workload type of an agent."""
_PLACES = ("base_url", "azure_endpoint", "host", "endpoint")
"""The settings of a provider that hold its address."""
Models = Mapping[str, str]
"""The model of each ``ModelConfig``, by its reference."""


def agent_id(reference: str) -> str:
    """Return the canonical id of an agent: both ``kagent/my-agent`` and its id are ``kagent__NS__my_agent``."""
    return reference.replace("-", "_").replace("/", "__NS__")


def model_refs(resources: Iterable[Resource]) -> dict[str, Resource]:
    """Return the ``ModelConfig`` resources that agents refer to, each with one of these agents."""
    refs = {}
    for resource in resources:
        if resource.kind == "Agent":
            name = _model_config(resource)
            if name:
                refs[_model_ref(resource, name)] = resource
    return refs


def models_of(resources: Iterable[Resource]) -> Models:
    """Return the models of the ``ModelConfig`` resources among these."""
    return {resource.ref: resource.spec["model"] for resource in resources if resource.kind == "ModelConfig"}


def declaration(resource: Resource, values: Values, models: Models) -> ResourceToApply:
    """Return a resource with its rows.

    Args:
        models: the models of all ``ModelConfig`` resources that agents may refer to.

    Raises:
        InvalidManifest: a value or a ``ModelConfig`` that it refers to does not exist.
    """
    rows, secrets = _ROWS[resource.kind](resource, resource.parsed(resource.schema()), values, models)
    plain = {path: secret.reveal() for path, secret in {**resource.secrets, **secrets}.items()}
    metadata = {"labels": resource.labels, "annotations": resource.annotations}
    return ResourceToApply(
        kind=resource.kind,
        namespace=resource.namespace,
        name=resource.name,
        api_version=f"{GROUP}/{resource.version}",
        metadata={name: value for name, value in metadata.items() if value},
        spec=resource.spec,
        secrets=Secret(plain) if plain else None,
        rows=rows,
    )


def _named(resource: Resource) -> str:
    return f"{resource.namespace}/{resource.name}"


def _provider(resource: Resource, spec: Any, values: Values, known: Models) -> Any:
    secret = "" if spec.secret_ref is None else spec.secret_ref.name
    row = NewProvider(
        name=_named(resource) + PROVIDER_SUFFIX,
        display_name=resource.name,
        provider_type=PROVIDER_TYPES[spec.type],
        api_base=spec.endpoint or "",
        api_key=_key(resource, values, secret, "", "secretRef.name"),
        settings={"provider": spec.type},
    )
    return [row], {}


def _model(resource: Resource, spec: Any, values: Values, known: Models) -> Any:
    name, section = _named(resource), spec.section
    field = "apiKeySecret" if isinstance(spec, models.ModelConfigSpec) else "apiKeySecretRef"
    whole = spec.provider in models.WHOLE_SECRETS
    key = _key(resource, values, spec.api_key_secret or "", spec.api_key_secret_key or "", field, whole=whole)
    token = getattr(section, "azure_ad_token", None)
    settings = {key: value for key, value in resource.spec.items() if key not in _NOT_SETTINGS}
    provider = NewProvider(
        name=name,
        display_name=resource.name,
        provider_type=PROVIDER_TYPES[spec.provider],
        api_base=_address(resource, section, values),
        api_key=Secret(token) if key is None and token else key,
        settings={"provider": spec.provider, **_without_secrets(resource, settings)},
    )
    info = getattr(spec, "model_info", None)
    capabilities = [name for name, has in ({} if info is None else _flags(info)).items() if has]
    limit = next((getattr(section, field, None) for field in _LIMITS if getattr(section, field, None)), None)
    model = NewModel(
        provider=name, name=spec.model, max_output_tokens=limit, capabilities=capabilities, is_default=True
    )
    return [provider, model], {}


_NOT_SETTINGS = ("model", "provider", "apiKeySecret", "apiKeySecretRef", "apiKeySecretKey", "modelInfo")
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def _flags(info: models.ModelInfo) -> dict[str, bool | None]:
    return {name: value for name, value in msgspec.structs.asdict(info).items() if isinstance(value, bool)}


def _without_secrets(resource: Resource, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the fields that hold secret values: settings are not encrypted."""
    secret = {tuple(pattern.split(".")) for pattern in SECRET_VALUES.get(resource.kind, ())}
    result: dict[str, Any] = {}
    for name, value in settings.items():
        if (name, "*") in secret:
            continue
        result[name] = (
            {key: part for key, part in value.items() if (name, key) not in secret}
            if isinstance(value, dict)
            else value
        )
    return result


def _address(resource: Resource, section: Any, values: Values) -> str:
    source = getattr(section, "endpoint_from", None)
    if source is not None:
        path = "foundry.endpointFrom"
        return values(reference("ConfigMap", resource.namespace, source.name, source.key, resource.place, path))
    return next((str(getattr(section, name)) for name in _PLACES if getattr(section, name, None)), "")


def _memory(resource: Resource, spec: Any, values: Values, known: Models) -> Any:
    name, key = spec.api_key_secret_ref or "", spec.api_key_secret_key or ""
    secret = _key(resource, values, name, key, "apiKeySecretRef")
    return [], {} if secret is None else {"apiKey": secret}


def _tool_server(resource: Resource, spec: tool_servers.ToolServerSpec, values: Values, known: Models) -> Any:
    stdio = spec.config.stdio
    if stdio is not None:
        env = {**(stdio.env or {}), **_all(resource, values, stdio.env_from, "config.stdio.envFrom")}
        return [
            NewMcpServer(
                **_server(resource, spec.description),
                transport="stdio",
                command=stdio.command,
                args=stdio.args or [],
                env=Secret(env) if env else None,
                timeout_ms=(stdio.read_timeout_seconds or 10) * 1_000,
            )
        ], {}
    name = "sse" if spec.config.sse is not None else "streamableHttp"
    remote = spec.config.sse or spec.config.streamable_http
    assert remote is not None  # the schema requires one of them
    headers = {**(remote.headers or {}), **_all(resource, values, remote.headers_from, f"config.{name}.headersFrom")}
    transport = "sse" if name == "sse" else "streamable-http"
    return [_remote(resource, spec.description, transport, remote, headers)], {}


def _remote_mcp_server(
    resource: Resource, spec: tool_servers.RemoteMCPServerSpec, values: Values, known: Models
) -> Any:
    headers = _all(resource, values, spec.headers_from, "headersFrom")
    transport = "sse" if spec.protocol == "SSE" else "streamable-http"
    return [_remote(resource, spec.description, transport, spec, headers)], {}


def _remote(resource: Resource, description: str, transport: Any, spec: Any, headers: dict[str, str]) -> NewMcpServer:
    settings = {
        "sse_read_timeout_s": seconds(spec.sse_read_timeout),
        "terminate_on_close": getattr(spec, "terminate_on_close", None),
        "tls": resource.spec.get("tls"),
    }
    return NewMcpServer(
        **_server(resource, description),
        transport=transport,
        url=spec.url,
        headers=Secret(headers) if headers else None,
        timeout_ms=_milliseconds(spec.timeout),
        settings={name: value for name, value in settings.items() if value is not None},
    )


def _mcp_server(resource: Resource, spec: tool_servers.MCPServerSpec, values: Values, known: Models) -> Any:
    deployment = spec.deployment
    is_http = spec.transport_type == "http" or (spec.transport_type is None and spec.http_transport is not None)
    url = f"http://{resource.name}.{resource.namespace}:{deployment.port or MCP_PORT}/mcp"
    row = _server(resource, "") | {"timeout_ms": _milliseconds(spec.timeout)}
    if is_http or not deployment.cmd:
        return [NewMcpServer(**row, transport="streamable-http", url=url)], {}
    env = deployment.env or {}
    return [
        NewMcpServer(
            **row,
            transport="stdio",
            command=deployment.cmd,
            args=deployment.args or [],
            env=Secret(env) if env else None,
            settings={"service_url": url},
        )
    ], {}


def _server(resource: Resource, description: str) -> dict[str, Any]:
    return {
        "name": _named(resource),
        "kind": resource.kind,
        "display_name": resource.name,
        "description": description,
    }


def _milliseconds(duration: str | None) -> int:
    duration_s = seconds(duration)
    return 30_000 if duration_s is None else max(1, round(duration_s * 1_000))


def _agent(resource: Resource, spec: Any, values: Values, known: Models) -> Any:
    name = _model_config(resource)
    system, tools = _declarative(resource, spec, values)
    ref = _model_ref(resource, name) if name else ""
    if ref and ref not in known:
        path = "spec.modelConfig" if isinstance(spec, agents.AgentSpecV1) else "spec.declarative.modelConfig"
        raise resource.place.error(f"{ref} does not exist: declare it, too", path)
    row = NewAgent(
        id=agent_id(_named(resource)),
        display_name=_named(resource),
        description=spec.description,
        provider=ref.removeprefix("ModelConfig/"),
        model=known.get(ref, ""),
        system=system,
        tool_ids=tools,
        metadata={"type": getattr(spec, "type", "Declarative"), "workload_type": WORKLOAD_TYPE},
    )
    return [row], {}


def _declarative(resource: Resource, spec: Any, values: Values) -> tuple[str, list[str]]:
    """Return the system prompt and the tools of an agent."""
    if isinstance(spec, agents.AgentSpecV1):
        return spec.system_message or "", [*_tools(resource, spec.tools or [])]
    declarative = spec.declarative
    if declarative is None:
        return "", []
    system = declarative.system_message or ""
    source = declarative.system_message_from
    if source is not None:
        path = "declarative.systemMessageFrom"
        system = values(reference(source.type, resource.namespace, source.name, source.key, resource.place, path))
    return system, [*_tools(resource, declarative.tools or [])]


def _tools(resource: Resource, tools: Sequence[Any]) -> Iterable[str]:
    """Yield the ids of an agent's tools: ``namespace/server:tool``, ``namespace/server`` for all of a server, and the ids of
    agents."""
    for tool in tools:
        if tool.agent is not None:
            yield agent_id(_qualified(resource, tool.agent))
            continue
        server = _qualified(resource, tool.mcp_server)
        yield from [f"{server}:{name}" for name in tool.mcp_server.tool_names or ()] or [server]


def _qualified(resource: Resource, tool: Any) -> str:
    name: str = getattr(tool, "name", "") or getattr(tool, "ref", "") or getattr(tool, "tool_server", "")
    namespace = getattr(tool, "namespace", None) or resource.namespace
    return name if "/" in name else f"{namespace}/{name}"


def _model_config(resource: Resource) -> str:
    section = resource.spec if resource.version == "v1alpha1" else resource.spec.get("declarative", {})
    return str(section.get("modelConfig", ""))


def _model_ref(resource: Resource, name: str) -> str:
    return f"ModelConfig/{name if '/' in name else f'{resource.namespace}/{name}'}"


def _key(
    resource: Resource, values: Values, name: str, key: str, path: str, *, whole: bool = False
) -> Secret[str] | None:
    if not name:
        return None
    return Secret(values(reference("Secret", resource.namespace, name, key, resource.place, path, whole=whole)))


def _all(resource: Resource, values: Values, given: Sequence[Any] | None, path: str) -> dict[str, str]:
    """Return the values of headers or variables."""
    result = {}
    for index, item in enumerate(given or ()):
        source = item.value_from
        if source is None:
            result[item.name] = item.value or ""
            continue
        where = f"{path}[{index}].valueFrom"
        result[item.name] = values(
            reference(source.type, resource.namespace, source.name, source.key, resource.place, where)
        )
    return result


_ROWS: Mapping[str, Callable[..., Any]] = {
    "Agent": _agent,
    "MCPServer": _mcp_server,
    "Memory": _memory,
    "ModelConfig": _model,
    "ModelProviderConfig": _provider,
    "RemoteMCPServer": _remote_mcp_server,
    "ToolServer": _tool_server,
}
