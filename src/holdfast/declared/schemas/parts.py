"""Parts that several kinds share. A field that is ``null`` counts as omitted, as in Kubernetes."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]
KubernetesPart = Any
"""A part of a type of Kubernetes itself, such as ``affinity``: it is stored as it is and not checked."""
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|us|µs|ns|s)")
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class Part(Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Base of all parts of a specification: an unknown field is an error."""


def require(condition: bool, message: str) -> None:
    """Check a rule between several fields.

    Raises:
        ValueError: it does not hold.
    """
    if not condition:
        raise ValueError(message)


def seconds(duration: str | None) -> float | None:
    """Return a duration such as ``1m30s`` in seconds.

    Raises:
        ValueError: it is not a duration.
    """
    if duration is None:
        return None
    parts = _DURATION.findall(duration)
    require(bool(parts) and "".join(map("".join, parts)) == duration, "a duration must look like 30s or 1m30s")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


class ValueSource(Part):
    """A key of a Secret or of a ConfigMap."""

    type: Literal["Secret", "ConfigMap"]
    name: Text
    key: str = ""


class ValueSourceV1(Part):
    """A key of a Secret or of a ConfigMap, in v1alpha1."""

    type: Literal["Secret", "ConfigMap"]
    value_ref: Text
    key: str = ""

    @property
    def name(self) -> str:
        """The name of the Secret or the ConfigMap."""
        return self.value_ref


class NamedValue(Part):
    """A header or an environment variable, with its value or the place of its value."""

    name: Text
    value: str | None = None
    value_from: ValueSource | None = None

    def __post_init__(self) -> None:
        require((self.value is None) != (self.value_from is None), "give either value or valueFrom")


class NamedValueV1(Part):
    """A header or an environment variable, in v1alpha1."""

    name: Text
    value: str | None = None
    value_from: ValueSourceV1 | None = None

    def __post_init__(self) -> None:
        require((self.value is None) != (self.value_from is None), "give either value or valueFrom")


class Variable(Part):
    """An environment variable of a container."""

    name: Text
    value: str | None = None
    value_from: dict[str, KubernetesPart] | None = None


class SecretName(Part):
    """The name of a Secret in the same namespace."""

    name: str = ""


class AllowedNamespaces(Part):
    """Namespaces whose agents may refer to a resource."""

    from_: Literal["All", "Same", "Selector", None] = None
    selector: dict[str, KubernetesPart] | None = None


class Tls(Part):
    """How the certificate of a server is checked."""

    ca_cert_secret_key: str | None = None
    ca_cert_secret_ref: str | None = None
    disable_system_cas: bool | None = field(default=None, name="disableSystemCAs")
    disable_verify: bool | None = None

    def __post_init__(self) -> None:
        is_pair = bool(self.ca_cert_secret_key) == bool(self.ca_cert_secret_ref)
        require(is_pair, "caCertSecretRef and caCertSecretKey go together")
