"""Declared resources: checked manifests, whose secret values are kept apart from the specification."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from holdfast.encryption import MASK, Secret

from .documents import Document, Place
from .schemas import GROUP, KINDS, Kind
from .schemas.parts import KubernetesPart, Part

S = TypeVar("S", bound=Part)

DEFAULT_NAMESPACE = "kagent"
"""The namespace of manifests that name none, as in kagent."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation in which kubectl keeps the whole manifest, with its secrets."""
SECRET_VALUES = {
    "Agent": (
        "deployment.env.*.value",
        "declarative.deployment.env.*.value",
        "declarative.deployment.extraContainers.*.env.*.value",
        "declarative.tools.*.headersFrom.*.value",
        "byo.deployment.env.*.value",
        "byo.deployment.extraContainers.*.env.*.value",
        "skills.initContainer.env.*.value",
    ),
    "MCPServer": ("deployment.env.*", "deployment.sidecars.*.env.*.value"),
    "ModelConfig": ("azureOpenAI.azureAdToken", "defaultHeaders.*"),
    "RemoteMCPServer": ("headersFrom.*.value",),
    "ToolServer": (
        "config.stdio.env.*",
        "config.stdio.envFrom.*.value",
        "config.sse.headers.*",
        "config.sse.headersFrom.*.value",
        "config.streamableHttp.headers.*",
        "config.streamableHttp.headersFrom.*.value",
    ),
}
"""The paths of values that can be credentials. They are encrypted, and never shown."""
_DNS_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z"
_PATH = re.compile(r"(.*) - at `\$?\.?(.*)`", re.DOTALL)
_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`")


class ObjectMetadata(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """The metadata of an object in Kubernetes. Only the names, labels and annotations matter here."""

    name: Annotated[str, Meta(min_length=1, max_length=253, pattern=_DNS_NAME)]
    namespace: Annotated[str, Meta(min_length=1, max_length=63, pattern=_DNS_NAME)] | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: KubernetesPart = None
    managed_fields: KubernetesPart = None
    owner_references: KubernetesPart = None
    self_link: str | None = None


class _Manifest(Struct, Generic[S], frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    api_version: str
    kind: str
    metadata: ObjectMetadata
    spec: S
    status: KubernetesPart = None


class Resource(Struct, frozen=True, kw_only=True):
    """A valid manifest."""

    kind: str
    version: str
    namespace: str
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: dict[str, Any]
    """The specification, with ``MASK`` in place of every secret value."""
    secrets: dict[str, Secret[str]]
    """The secret values by their paths."""
    place: Place

    @property
    def ref(self) -> str:
        """The name of the resource among all resources of a tenant, such as ``Agent/kagent/helper``."""
        return f"{self.kind}/{self.namespace}/{self.name}"

    def parsed(self, kind: type[S]) -> S:
        """Return the specification as this type, with its secret values."""
        secrets = {path: secret.reveal() for path, secret in self.secrets.items()}
        return msgspec.convert(put_back_secrets(self.spec, secrets), kind)

    def schema(self) -> type[Part]:
        """Return the type of the specification."""
        return KINDS[self.kind].versions[self.version]


def read_resources(documents: Sequence[Document], namespace: str = DEFAULT_NAMESPACE) -> list[Resource]:
    """Return the resources of all documents, in the order of their kinds and names.

    Args:
        namespace: the namespace of manifests that name none.

    Raises:
        InvalidManifest: a document is not a valid manifest, or two declare the same resource.
    """
    resources: dict[str, Resource] = {}
    for document in documents:
        resource = read_resource(document, namespace)
        other = resources.setdefault(resource.ref, resource)
        if other is not resource:
            where = f"{other.place.file}, document {other.place.document}"
            raise document.place.error(f"{resource.ref} is already declared in {where}", "metadata.name")
    order = [*KINDS]
    return sorted(resources.values(), key=lambda item: (order.index(item.kind), item.namespace, item.name))


def read_resource(document: Document, namespace: str = DEFAULT_NAMESPACE) -> Resource:
    """Return the resource of one document.

    Raises:
        InvalidManifest: it has an unknown kind, version or field, or a value that is not valid.
    """
    place, value = document.place, _copy(document.value)
    kind, version = _kind_of(place, value)
    shape: Any = _Manifest
    try:
        manifest = msgspec.convert(value, shape[kind.versions[version]])
    except msgspec.ValidationError as error:
        raise _error(place, error) from None
    metadata: ObjectMetadata = manifest.metadata
    spec, secrets = _mask(value["spec"], SECRET_VALUES.get(kind.name, ()))
    for path, secret in secrets.items():
        if secret == Secret(MASK):
            message = f"the value is {MASK}, the text shown in place of a secret: give the value itself"
            raise place.error(message, f"spec.{path.replace('/', '.')}")
    return Resource(
        kind=kind.name,
        version=version,
        namespace=metadata.namespace or namespace,
        name=metadata.name,
        labels=metadata.labels,
        annotations={name: text for name, text in metadata.annotations.items() if name != LAST_APPLIED},
        spec=spec,
        secrets=secrets,
        place=place,
    )


def put_back_secrets(spec: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of a specification with the secret values at their paths, wherever it has ``MASK`` there."""
    result: dict[str, Any] = _copy(spec)
    for path, secret in secrets.items():
        *parts, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]
        owner: Any = result
        try:
            for part in parts:
                owner = owner[int(part) if isinstance(owner, list) else part]
            if owner[last] == MASK:
                owner[last] = secret
        except (KeyError, IndexError, TypeError, ValueError):
            continue  # the specification has changed: it has nothing at this path
    return result


def _kind_of(place: Place, value: Any) -> tuple[Kind, str]:
    if not isinstance(value, dict):
        raise place.error(f"a manifest must be an object, not {type(value).__name__}")
    for name in ("apiVersion", "kind"):
        if not isinstance(value.get(name), str):
            raise place.error(f"{name} is missing or not a string", name)
    group, _, version = value["apiVersion"].rpartition("/")
    kind = KINDS.get(value["kind"])
    if kind is None or group != GROUP:
        names = ", ".join(KINDS)
        raise place.error(f"{value['apiVersion']} {value['kind']} is unknown; the kinds of {GROUP} are {names}", "kind")
    if version not in kind.versions:
        names = ", ".join(f"{GROUP}/{item}" for item in kind.versions)
        raise place.error(f"{kind.name} has no version {version!r}; it has {names}", "apiVersion")
    return kind, version


def _error(place: Place, error: msgspec.ValidationError) -> Exception:
    """Return the error with the path that msgspec states at the end of its message."""
    match = _PATH.fullmatch(str(error))
    message, path = match.groups() if match else (str(error), "")
    missing = _FIELD.match(message)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        message = "the field is missing" if "missing" in message else "the field is unknown"
    elif "`str" in message and message.endswith(("got `bool`", "got `int`", "got `float`")):
        message += ": quote it"
    return place.error(f"{message[0].lower()}{message[1:]}", path)


def _copy(value: Any) -> Any:
    """Return a copy of a JSON value without the fields that are ``null``: they count as omitted."""
    if isinstance(value, dict):
        return {name: _copy(part) for name, part in value.items() if part is not None}
    return [_copy(part) for part in value] if isinstance(value, list) else value


def _mask(spec: dict[str, Any], patterns: Sequence[str]) -> tuple[dict[str, Any], dict[str, Secret[str]]]:
    """Return a copy of a specification without its secret values, and those values by their paths."""
    spec, secrets = _copy(spec), {}
    for pattern in patterns:
        for path, owner, name in _matches(spec, pattern.split("."), ()):
            if isinstance(owner[name], str):
                secrets[path] = Secret(owner[name])
                owner[name] = MASK
    return spec, secrets


def _matches(value: Any, pattern: Sequence[str], path: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each value that matches a pattern, with the object or list that contains it and its name there."""
    first, *rest = pattern
    names: Sequence[Any] = ()
    if isinstance(value, dict):
        names = [*value] if first == "*" else [first] * (first in value)
    elif isinstance(value, list) and first == "*":
        names = range(len(value))
    for name in names:
        here = (*path, _escaped(name) if isinstance(name, str) else str(name))
        if rest:
            yield from _matches(value[name], rest, here)
        else:
            yield "/".join(here), value, name


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
