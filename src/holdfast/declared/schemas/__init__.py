"""The kinds of kagent's custom resources, with the fields of each version.

A field that is not listed is an error, as it is for ``kubectl --validate=strict``. Parts of Kubernetes's own types, such as
``affinity``, are stored as they are.
"""

from __future__ import annotations

from msgspec import Struct

from . import agents, models, tool_servers
from .parts import Part

GROUP = "kagent.dev"


class Kind(Struct, frozen=True):
    """A kind of resources: its name in the paths of Kubernetes, and its specification in each version, the newest first."""

    name: str
    plural: str
    versions: dict[str, type[Part]]


KINDS = {
    kind.name: kind
    for kind in (
        Kind("ModelProviderConfig", "modelproviderconfigs", {"v1alpha2": models.ModelProviderConfigSpec}),
        Kind("ModelConfig", "modelconfigs", {"v1alpha2": models.ModelConfigSpec, "v1alpha1": models.ModelConfigSpecV1}),
        Kind("ToolServer", "toolservers", {"v1alpha1": tool_servers.ToolServerSpec}),
        Kind("MCPServer", "mcpservers", {"v1alpha1": tool_servers.MCPServerSpec}),
        Kind("RemoteMCPServer", "remotemcpservers", {"v1alpha2": tool_servers.RemoteMCPServerSpec}),
        Kind("Memory", "memories", {"v1alpha1": models.MemorySpec}),
        Kind("Agent", "agents", {"v1alpha2": agents.AgentSpec, "v1alpha1": agents.AgentSpecV1}),
    )
}
"""All kinds, in an order in which each follows the kinds that it refers to."""
