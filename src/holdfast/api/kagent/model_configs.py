"""Model configurations and namespaces in kagent's format: declared resources of the kind ``ModelConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from holdfast import column
from holdfast.declared.applying import complete
from holdfast.declared.documents import Document, Place
from holdfast.declared.resources import DEFAULT_NAMESPACE, put_back_secrets, read_resource
from holdfast.declared.schemas import GROUP
from holdfast.declared.values import values_of
from holdfast.errors import AlreadyExists, NotFound
from holdfast.types import DeclaredResource

from .request import KagentRequest, route, success

KIND = "ModelConfig"
SOURCE = "kagent API"
"""The source of the resources that clients create."""
_V1_NAMES = {"apiKeySecretRef": "apiKeySecret"}
"""The fields of v1alpha1 that have another name in v1alpha2, the version of the API."""


class _SecretMaterial(Struct):
    """A key of a Secret, with its value."""

    name: str
    key: str
    value: str


class _ModelConfigChange(Struct, rename="camel"):
    """A model configuration to update. Without a key, the current one stays."""

    spec: dict[str, Any]
    api_key: str | None = None
    secrets: list[_SecretMaterial] = []


class _NewModelConfig(_ModelConfigChange, rename="camel", kw_only=True):
    """A model configuration to create."""

    ref: str


class _WireModelConfig(Struct, frozen=True):
    """A model configuration in a response, without its secrets."""

    ref: str
    spec: dict[str, Any]
    status: dict[str, Any] = {}


class _WireNamespace(Struct, frozen=True):
    """A namespace in a response."""

    name: str
    status: str = "Active"


_NEW = msgspec.json.Decoder(_NewModelConfig)
_CHANGE = msgspec.json.Decoder(_ModelConfigChange)


@route("GET", "/api/modelconfigs")
async def list_model_configs(request: KagentRequest) -> Response:
    """List all model configurations."""
    rows = await request.tenant.declared.list(where=[column("kind").eq(KIND)])
    return success([_wire(row) for row in rows], "Successfully listed ModelConfigs")


@route("GET", "/api/modelconfigs/{namespace}/{name}")
async def get_model_config(request: KagentRequest) -> Response:
    """Get one model configuration."""
    return success(_wire(await _current(request)), "Successfully retrieved ModelConfig")


@route("POST", "/api/modelconfigs")
async def create_model_config(request: KagentRequest) -> Response:
    """Create a model configuration, with its provider and its model."""
    body = request.body(_NEW)
    namespace, _, name = body.ref.rpartition("/")
    namespace = namespace or DEFAULT_NAMESPACE
    if await request.tenant.declared.find(f"{KIND}/{namespace}/{name}") is not None:
        raise AlreadyExists("ModelConfig already exists", noun=KIND, key=body.ref)
    row = await _apply(request, namespace, name, body, SOURCE, {})
    return success(_wire(row), "Successfully created ModelConfig", 201)


@route("PUT", "/api/modelconfigs/{namespace}/{name}")
async def update_model_config(request: KagentRequest) -> Response:
    """Replace the specification of a model configuration. Secrets that the body does not contain stay."""
    body, current = request.body(_CHANGE), await _current(request)
    secrets = {} if current.secrets is None else current.secrets.reveal()
    row = await _apply(request, current.namespace, current.name, body, current.source, secrets)
    return success(_wire(row), "Successfully updated ModelConfig")


@route("DELETE", "/api/modelconfigs/{namespace}/{name}")
async def delete_model_config(request: KagentRequest) -> Response:
    """Delete a model configuration, with the provider and the model that it made."""
    await request.tenant.declared.remove([(await _current(request)).ref])
    return success({}, "Successfully deleted ModelConfig")


@route("GET", "/api/namespaces")
async def list_namespaces(request: KagentRequest) -> Response:
    """List the namespaces that have declared resources, and kagent's own."""
    names = {DEFAULT_NAMESPACE, *await request.tenant.declared.namespaces()} - {""}
    return success([_WireNamespace(name) for name in sorted(names)], "Successfully listed namespaces")


async def _current(request: KagentRequest) -> DeclaredResource:
    ref = f"{KIND}/{request.names['namespace']}/{request.names['name']}"
    row = await request.tenant.declared.find(ref)
    if row is None:
        raise NotFound("ModelConfig not found", noun=KIND, key=ref)
    return row


async def _apply(
    request: KagentRequest,
    namespace: str,
    name: str,
    body: _ModelConfigChange,
    source: str,
    secrets: Mapping[str, str],
) -> DeclaredResource:
    """Apply a model configuration with the keys of the request."""
    keys: dict[str, dict[str, str]] = {}
    for material in body.secrets:
        keys.setdefault(material.name, {})[material.key] = material.value
    spec = put_back_secrets(body.spec, secrets)
    if body.api_key:
        # As in kagent: an inline key belongs to a Secret with the name of the configuration.
        spec.setdefault("apiKeySecret", name)
        spec.setdefault("apiKeySecretKey", f"{str(spec.get('provider', 'OpenAI')).upper()}_API_KEY")
        keys.setdefault(spec["apiKeySecret"], {})[spec["apiKeySecretKey"]] = body.api_key
    elif spec.get("apiKeySecret") and spec["apiKeySecret"] not in keys:
        keys[spec["apiKeySecret"]] = await _current_key(
            request, f"{namespace}/{name}", spec.get("apiKeySecretKey") or "key"
        )
    manifest = {
        "apiVersion": f"{GROUP}/v1alpha2",
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
    resource = read_resource(Document(Place("request", 1), manifest))
    values = values_of(lambda kind, place, name: keys.get(name) if kind == "Secret" and place == namespace else None)
    await request.tenant.declared.apply(await complete(request.tenant, [resource], values), source=source)
    return await request.tenant.declared.get(resource.ref)


async def _current_key(request: KagentRequest, provider: str, key: str) -> dict[str, str]:
    """Return the key of the current provider, as the content of the Secret that the request refers to."""
    row = await request.tenant.providers.find(provider)
    return {} if row is None or row.api_key is None else {key: row.api_key.reveal()}


def _wire(row: DeclaredResource) -> _WireModelConfig:
    spec = {_V1_NAMES.get(name, name): value for name, value in row.spec.items()}
    return _WireModelConfig(f"{row.namespace}/{row.name}", spec)
