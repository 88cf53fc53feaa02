"""The public types for annotations: the row types that methods take and return, and the store classes."""

from .core.actor_context import ActorContext
from .stores.agents.agent_overrides import (
    AgentOverride,
    AgentOverrideChange,
    AgentOverrides,
    AsyncAgentOverrides,
    NewAgentOverride,
)
from .stores.agents.agent_shares import AgentShare, AgentShares, AsyncAgentShares, NewAgentShare, ShareRole
from .stores.agents.agents import Agent, Agents, AsyncAgents
from .stores.agents.blocks import AsyncBlocks, Block, Blocks
from .stores.agents.context_files import AsyncContextFiles, ContextFile, ContextFiles
from .stores.agents.profiles import AgentUser, AsyncProfiles, NewProfile, Profile, ProfileChange, Profiles, Visit
from .stores.channels.channels import AsyncChannels, ChannelInstance, Channels
from .stores.channels.pairing import AsyncPairing, PairedDevice, Pairing, PairingRequest
from .stores.config.models import AsyncModels, Model, ModelChange, Models, NewModel
from .stores.config.providers import AsyncProviders, NewProvider, Provider, ProviderChange, Providers, ProviderType
from .stores.config.secrets import AsyncSecrets, Secrets
from .stores.conversation.agent_messages import AgentMessages, AsyncAgentMessages
from .stores.conversation.branches import AsyncBranches, Branch, Branches
from .stores.conversation.buffer.buffered import AsyncBufferedSession, BufferedSession
from .stores.conversation.buffer.persistence import SessionState
from .stores.conversation.compaction.compactions import AsyncCompactions, Compactions
from .stores.conversation.compaction.events import ArchivedMessage, CompactionEvent
from .stores.conversation.compaction.plan import CompactionPlan
from .stores.conversation.compaction.strategies import CompactionChanges, CompactionHistory
from .stores.conversation.contacts import AsyncContacts, Contact, Contacts
from .stores.conversation.context import Context, ContextMessage
from .stores.conversation.deleted_messages import DeletedMessage
from .stores.conversation.feedback import AsyncFeedbackStore, Feedback, FeedbackStore
from .stores.conversation.general_feedback import AsyncGeneralFeedbackStore, GeneralFeedback, GeneralFeedbackStore
from .stores.conversation.message_log import Message
from .stores.conversation.messages import AsyncMessages, Messages
from .stores.conversation.pending_groups import PendingGroup
from .stores.conversation.pending_messages import AsyncPendingMessages, PendingMessage, PendingMessages
from .stores.conversation.pruning import PrunedSessions
from .stores.conversation.search.search import SearchHit, SearchPage
from .stores.conversation.sessions import AsyncSessions, Session, Sessions
from .stores.conversation.shares import AsyncSessionShares, SessionShare, SessionShares
from .stores.declared.differences import FieldChange
from .stores.declared.plan import AppliedChange, ResourceToApply
from .stores.declared.resources import (
    AsyncDeclaredResources,
    DeclaredResource,
    DeclaredResourceChange,
    DeclaredResources,
    NewDeclaredResource,
)
from .stores.execution.a2a_push_configs import A2APushConfig, A2APushConfigs, AsyncA2APushConfigs
from .stores.execution.a2a_tasks import A2ATask, A2ATasks, AsyncA2ATasks
from .stores.execution.checkpoints.checkpoints import AsyncCheckpoints, Checkpoints
from .stores.execution.checkpoints.reader import CachedPieces, Checkpoint
from .stores.execution.checkpoints.task_writes import TaskWrites
from .stores.execution.checkpoints.verification import CheckedThreads, DamagedCheckpoint
from .stores.execution.checkpoints.writer import StoredPieces
from .stores.execution.flows import AsyncFlows, Flow, Flows, FlowState, PendingFeedback
from .stores.execution.runs.leases import AsyncLeases, AsyncRunQueue, ClaimedRun, Leases, RunQueue
from .stores.execution.runs.ledger import PendingCall, ToolCall
from .stores.execution.runs.runs import AsyncRuns, LoadedRun, Runs
from .stores.execution.runs.states import Run
from .stores.execution.runs.states import Status as RunStatus
from .stores.execution.runs.step_log import CommittedStep, Step
from .stores.execution.runs.steps import AsyncSteps, Steps
from .stores.execution.runs.tool_calls import AsyncToolCalls, ToolCalls
from .stores.lifecycle.api_keys import ApiKey, ApiKeys, AsyncApiKeys
from .stores.lifecycle.diagnostics import AsyncDiagnostics, DamagedSnapshot, DiagnosticReport, Diagnostics
from .stores.lifecycle.erasures import AsyncErasures, Erasure, ErasureResult, Erasures
from .stores.lifecycle.retention.retention import AsyncRetention, Retention
from .stores.lifecycle.retention.sweeps import SweepCounts, SweepResult
from .stores.lifecycle.tenants import AsyncTenants, MaintenanceResult, Tenant, Tenants
from .stores.memory.agent_memories import (
    AgentMemories,
    AgentMemory,
    AgentMemoryMatch,
    AsyncAgentMemories,
    PrunedMemories,
)
from .stores.memory.crew_memories import AsyncCrewMemories, CrewMemories, CrewMemory, CrewMemoryMatch, MemoryScope
from .stores.objects.activity import Activities, Activity, AsyncActivities
from .stores.objects.objects import AsyncObjects, Objects
from .stores.tools.builtin_tools import (
    AsyncBuiltinTools,
    BuiltinTool,
    BuiltinToolChange,
    BuiltinTools,
    NewBuiltinTool,
    SeedResult,
)
from .stores.tools.custom_tools import (
    AsyncCustomTools,
    CustomTool,
    CustomToolChange,
    CustomTools,
    NewCustomTool,
    RenderedCommand,
)
from .stores.tools.mcp_grants import (
    AsyncMcpGrants,
    McpAgentGrant,
    McpGrants,
    McpUserGrant,
    NewMcpAgentGrant,
    NewMcpUserGrant,
)
from .stores.tools.mcp_requests import AsyncMcpRequests, McpRequest, McpRequests
from .stores.tools.mcp_servers import (
    AsyncMcpServers,
    McpAccess,
    McpServer,
    McpServerChange,
    McpServers,
    McpTool,
    NewMcpServer,
    NewMcpTool,
)
from .stores.tools.scrubbing import MIN_SCRUBBED_CHARS, ScrubbedStream, Scrubber
from .stores.tools.secure_cli import (
    AsyncSecureCLIs,
    NewSecureCLI,
    PreparedCommand,
    SecureCLI,
    SecureCLIChange,
    SecureCLIs,
)
from .stores.workspace.retention_rules import Hold
from .stores.workspace.rewind_rows import Rewind, RewindStatus
from .stores.workspace.rewinds import AsyncRewinds, Rewinds
from .stores.workspace.snapshot_rows import Snapshot, SnapshotUsage, TreePage
from .stores.workspace.snapshots import AsyncSnapshots, Snapshots
from .trees.entries import ContentPiece, Tree, TreeEntry
from .trees.restore import RestoreResult
from .trees.walk import SkippedEntry
from .workspaces.archives import TreeChange
from .workspaces.capture import CaptureResult
from .workspaces.rewind import RewindResult
from .workspaces.workspaces import AsyncWorkspaces, Workspaces

__all__ = [
    "MIN_SCRUBBED_CHARS",
    "A2APushConfig",
    "A2APushConfigs",
    "A2ATask",
    "A2ATasks",
    "Activities",
    "Activity",
    "ActorContext",
    "Agent",
    "AgentMemories",
    "AgentMemory",
    "AgentMemoryMatch",
    "AgentMessages",
    "AgentOverride",
    "AgentOverrideChange",
    "AgentOverrides",
    "AgentShare",
    "AgentShares",
    "AgentUser",
    "Agents",
    "ApiKey",
    "ApiKeys",
    "AppliedChange",
    "ArchivedMessage",
    "AsyncA2APushConfigs",
    "AsyncA2ATasks",
    "AsyncActivities",
    "AsyncAgentMemories",
    "AsyncAgentMessages",
    "AsyncAgentOverrides",
    "AsyncAgentShares",
    "AsyncAgents",
    "AsyncApiKeys",
    "AsyncBlocks",
    "AsyncBranches",
    "AsyncBufferedSession",
    "AsyncBuiltinTools",
    "AsyncChannels",
    "AsyncCheckpoints",
    "AsyncCompactions",
    "AsyncContacts",
    "AsyncContextFiles",
    "AsyncCrewMemories",
    "AsyncCustomTools",
    "AsyncDeclaredResources",
    "AsyncDiagnostics",
    "AsyncErasures",
    "AsyncFeedbackStore",
    "AsyncFlows",
    "AsyncGeneralFeedbackStore",
    "AsyncLeases",
    "AsyncMcpGrants",
    "AsyncMcpRequests",
    "AsyncMcpServers",
    "AsyncMessages",
    "AsyncModels",
    "AsyncObjects",
    "AsyncPairing",
    "AsyncPendingMessages",
    "AsyncProfiles",
    "AsyncProviders",
    "AsyncRetention",
    "AsyncRewinds",
    "AsyncRunQueue",
    "AsyncRuns",
    "AsyncSecrets",
    "AsyncSecureCLIs",
    "AsyncSessionShares",
    "AsyncSessions",
    "AsyncSnapshots",
    "AsyncSteps",
    "AsyncTenants",
    "AsyncToolCalls",
    "AsyncWorkspaces",
    "Block",
    "Blocks",
    "Branch",
    "Branches",
    "BufferedSession",
    "BuiltinTool",
    "BuiltinToolChange",
    "BuiltinTools",
    "CachedPieces",
    "CaptureResult",
    "ChannelInstance",
    "Channels",
    "CheckedThreads",
    "Checkpoint",
    "Checkpoints",
    "ClaimedRun",
    "CommittedStep",
    "CompactionChanges",
    "CompactionEvent",
    "CompactionHistory",
    "CompactionPlan",
    "Compactions",
    "Contact",
    "Contacts",
    "ContentPiece",
    "Context",
    "ContextFile",
    "ContextFiles",
    "ContextMessage",
    "CrewMemories",
    "CrewMemory",
    "CrewMemoryMatch",
    "CustomTool",
    "CustomToolChange",
    "CustomTools",
    "DamagedCheckpoint",
    "DamagedSnapshot",
    "DeclaredResource",
    "DeclaredResourceChange",
    "DeclaredResources",
    "DeletedMessage",
    "DiagnosticReport",
    "Diagnostics",
    "Erasure",
    "ErasureResult",
    "Erasures",
    "Feedback",
    "FeedbackStore",
    "FieldChange",
    "Flow",
    "FlowState",
    "Flows",
    "GeneralFeedback",
    "GeneralFeedbackStore",
    "Hold",
    "Leases",
    "LoadedRun",
    "MaintenanceResult",
    "McpAccess",
    "McpAgentGrant",
    "McpGrants",
    "McpRequest",
    "McpRequests",
    "McpServer",
    "McpServerChange",
    "McpServers",
    "McpTool",
    "McpUserGrant",
    "MemoryScope",
    "Message",
    "Messages",
    "Model",
    "ModelChange",
    "Models",
    "NewAgentOverride",
    "NewAgentShare",
    "NewBuiltinTool",
    "NewCustomTool",
    "NewDeclaredResource",
    "NewMcpAgentGrant",
    "NewMcpServer",
    "NewMcpTool",
    "NewMcpUserGrant",
    "NewModel",
    "NewProfile",
    "NewProvider",
    "NewSecureCLI",
    "Objects",
    "PairedDevice",
    "Pairing",
    "PairingRequest",
    "PendingCall",
    "PendingFeedback",
    "PendingGroup",
    "PendingMessage",
    "PendingMessages",
    "PreparedCommand",
    "Profile",
    "ProfileChange",
    "Profiles",
    "Provider",
    "ProviderChange",
    "ProviderType",
    "Providers",
    "PrunedMemories",
    "PrunedSessions",
    "RenderedCommand",
    "ResourceToApply",
    "RestoreResult",
    "Retention",
    "Rewind",
    "RewindResult",
    "RewindStatus",
    "Rewinds",
    "Run",
    "RunQueue",
    "RunStatus",
    "Runs",
    "ScrubbedStream",
    "Scrubber",
    "SearchHit",
    "SearchPage",
    "Secrets",
    "SecureCLI",
    "SecureCLIChange",
    "SecureCLIs",
    "SeedResult",
    "Session",
    "SessionShare",
    "SessionShares",
    "SessionState",
    "Sessions",
    "ShareRole",
    "SkippedEntry",
    "Snapshot",
    "SnapshotUsage",
    "Snapshots",
    "Step",
    "Steps",
    "StoredPieces",
    "SweepCounts",
    "SweepResult",
    "TaskWrites",
    "Tenant",
    "Tenants",
    "ToolCall",
    "ToolCalls",
    "Tree",
    "TreeChange",
    "TreeEntry",
    "TreePage",
    "Visit",
    "Workspaces",
]
