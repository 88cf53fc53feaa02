"""The stores of each handle: one line for each store defines the attribute of the synchronous and the asyncio handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

from .engines.protocol import Engine
from .stores.agents.agent_overrides import AgentOverrides, AsyncAgentOverrides
from .stores.agents.agent_shares import AgentShares, AsyncAgentShares
from .stores.agents.agents import Agents, AsyncAgents
from .stores.agents.blocks import AsyncBlocks, Blocks
from .stores.agents.context_files import AsyncContextFiles, ContextFiles
from .stores.agents.profiles import AsyncProfiles, Profiles
from .stores.channels.channels import AsyncChannels, Channels
from .stores.channels.pairing import AsyncPairing, Pairing
from .stores.config.models import AsyncModels, Models
from .stores.config.providers import AsyncProviders, Providers
from .stores.config.secrets import AsyncSecrets, Secrets
from .stores.conversation.agent_messages import AgentMessages, AsyncAgentMessages
from .stores.conversation.branches import AsyncBranches, Branches
from .stores.conversation.compaction.compactions import AsyncCompactions, Compactions
from .stores.conversation.contacts import AsyncContacts, Contacts
from .stores.conversation.feedback import AsyncFeedbackStore, FeedbackStore
from .stores.conversation.general_feedback import AsyncGeneralFeedbackStore, GeneralFeedbackStore
from .stores.conversation.messages import AsyncMessages, Messages
from .stores.conversation.pending_messages import AsyncPendingMessages, PendingMessages
from .stores.conversation.sessions import AsyncSessions, Sessions
from .stores.conversation.shares import AsyncSessionShares, SessionShares
from .stores.declared.resources import AsyncDeclaredResources, DeclaredResources
from .stores.execution.a2a_push_configs import A2APushConfigs, AsyncA2APushConfigs
from .stores.execution.a2a_tasks import A2ATasks, AsyncA2ATasks
from .stores.execution.checkpoints.checkpoints import AsyncCheckpoints, Checkpoints
from .stores.execution.flows import AsyncFlows, Flows
from .stores.execution.runs.leases import AsyncLeases, AsyncRunQueue, Leases, RunQueue
from .stores.execution.runs.runs import AsyncRuns, Runs
from .stores.execution.runs.steps import AsyncSteps, Steps
from .stores.execution.runs.tool_calls import AsyncToolCalls, ToolCalls
from .stores.lifecycle.api_keys import ApiKeys, AsyncApiKeys
from .stores.lifecycle.diagnostics import AsyncDiagnostics, Diagnostics
from .stores.lifecycle.erasures import AsyncErasures, Erasures
from .stores.lifecycle.retention.retention import AsyncRetention, Retention
from .stores.lifecycle.server_settings import AsyncServerSettings, ServerSettings
from .stores.lifecycle.tenants import AsyncTenants, Tenants
from .stores.memory.agent_memories import AgentMemories, AsyncAgentMemories
from .stores.memory.crew_memories import AsyncCrewMemories, CrewMemories
from .stores.objects.activity import Activities, AsyncActivities
from .stores.objects.objects import AsyncObjects, Objects
from .stores.tools.builtin_tools import AsyncBuiltinTools, BuiltinTools
from .stores.tools.custom_tools import AsyncCustomTools, CustomTools
from .stores.tools.mcp_grants import AsyncMcpGrants, McpGrants
from .stores.tools.mcp_requests import AsyncMcpRequests, McpRequests
from .stores.tools.mcp_servers import AsyncMcpServers, McpServers
from .stores.tools.secure_cli import AsyncSecureCLIs, SecureCLIs
from .stores.workspace.rewinds import AsyncRewinds, Rewinds
from .stores.workspace.snapshots import AsyncSnapshots, Snapshots
from .workspaces.workspaces import AsyncWorkspaces, Workspaces

A = TypeVar("A")
S = TypeVar("S")


class SyncHandle:
    """Base class of handles with synchronous stores."""

    _arguments: tuple[Engine, Any]
    """The constructor arguments of a store: the engine, and the scope or the setting."""


class AsyncHandle:
    """Base class of handles with asyncio stores."""

    _arguments: tuple[Engine, Any]
    """The constructor arguments of a store: the engine, and the scope or the setting."""


class StoreField(Generic[A, S]):
    """Descriptor of a store: creates it on first access, and keeps it on the handle."""

    def __init__(self, asynchronous: Callable[[Engine, Any], A], synchronous: Callable[[A], S]) -> None:
        self._asynchronous, self._synchronous = asynchronous, synchronous

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, handle: None, owner: type) -> Self: ...
    @overload
    def __get__(self, handle: SyncHandle, owner: type) -> S: ...
    @overload
    def __get__(self, handle: AsyncHandle, owner: type) -> A: ...
    def __get__(self, handle: SyncHandle | AsyncHandle | None, owner: type) -> Self | S | A:
        if handle is None:
            return self
        asynchronous = self._asynchronous(*handle._arguments)
        store = asynchronous if isinstance(handle, AsyncHandle) else self._synchronous(asynchronous)
        # Later accesses find the attribute on the handle itself and do not call this method.
        vars(handle)[self._name] = store
        return store


def store_names(handle: type) -> list[str]:
    """Return the names of the stores of a handle class, in the order of their definition."""
    return [
        name for cls in reversed(handle.__mro__) for name, field in vars(cls).items() if isinstance(field, StoreField)
    ]


class TenantStores:
    """The stores of one tenant."""

    sessions = StoreField(AsyncSessions, Sessions)
    messages = StoreField(AsyncMessages, Messages)
    branches = StoreField(AsyncBranches, Branches)
    compactions = StoreField(AsyncCompactions, Compactions)
    pending_messages = StoreField(AsyncPendingMessages, PendingMessages)
    contacts = StoreField(AsyncContacts, Contacts)
    feedback = StoreField(AsyncFeedbackStore, FeedbackStore)
    agents = StoreField(AsyncAgents, Agents)
    agent_shares = StoreField(AsyncAgentShares, AgentShares)
    blocks = StoreField(AsyncBlocks, Blocks)
    context_files = StoreField(AsyncContextFiles, ContextFiles)
    profiles = StoreField(AsyncProfiles, Profiles)
    agent_overrides = StoreField(AsyncAgentOverrides, AgentOverrides)
    agent_messages = StoreField(AsyncAgentMessages, AgentMessages)
    runs = StoreField(AsyncRuns, Runs)
    steps = StoreField(AsyncSteps, Steps)
    leases = StoreField(AsyncLeases, Leases)
    tool_calls = StoreField(AsyncToolCalls, ToolCalls)
    checkpoints = StoreField(AsyncCheckpoints, Checkpoints)
    objects = StoreField(AsyncObjects, Objects)
    snapshots = StoreField(AsyncSnapshots, Snapshots)
    workspaces = StoreField(AsyncWorkspaces, Workspaces)
    flows = StoreField(AsyncFlows, Flows)
    crew_memories = StoreField(AsyncCrewMemories, CrewMemories)
    a2a_tasks = StoreField(AsyncA2ATasks, A2ATasks)
    a2a_push_configs = StoreField(AsyncA2APushConfigs, A2APushConfigs)
    session_shares = StoreField(AsyncSessionShares, SessionShares)
    general_feedback = StoreField(AsyncGeneralFeedbackStore, GeneralFeedbackStore)
    custom_tools = StoreField(AsyncCustomTools, CustomTools)
    builtin_tools = StoreField(AsyncBuiltinTools, BuiltinTools)
    secure_cli = StoreField(AsyncSecureCLIs, SecureCLIs)
    mcp_servers = StoreField(AsyncMcpServers, McpServers)
    mcp_grants = StoreField(AsyncMcpGrants, McpGrants)
    mcp_requests = StoreField(AsyncMcpRequests, McpRequests)
    channels = StoreField(AsyncChannels, Channels)
    pairing = StoreField(AsyncPairing, Pairing)
    secrets = StoreField(AsyncSecrets, Secrets)
    providers = StoreField(AsyncProviders, Providers)
    models = StoreField(AsyncModels, Models)
    declared = StoreField(AsyncDeclaredResources, DeclaredResources)
    agent_memories = StoreField(AsyncAgentMemories, AgentMemories)
    activity = StoreField(AsyncActivities, Activities)
    retention = StoreField(AsyncRetention, Retention)
    diagnostics = StoreField(AsyncDiagnostics, Diagnostics)
    rewinds = StoreField(AsyncRewinds, Rewinds)


class PlatformStores:
    """The stores that are not limited to one tenant."""

    tenants = StoreField(AsyncTenants, Tenants)
    """All tenants."""
    api_keys = StoreField(AsyncApiKeys, ApiKeys)
    """The API keys of all tenants."""
    erasures = StoreField(AsyncErasures, Erasures)
    """The tenants whose data must be erased."""
    server_settings = StoreField(AsyncServerSettings, ServerSettings)
    """The settings shared by all processes on this database."""
    run_queue = StoreField(AsyncRunQueue, RunQueue)
    """The runs of all tenants that are waiting for a worker."""
