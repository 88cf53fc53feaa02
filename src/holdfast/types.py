"""Row types and store classes, for annotations: the types that methods take and return."""

from .core.actor_context import Acting
from .stores.conversation.branches import AsyncBranches, Branch, Branches
from .stores.conversation.buffer.buffered import AsyncBufferedSession, BufferedSession
from .stores.conversation.buffer.saving import SessionState
from .stores.conversation.compaction.compactions import AsyncCompactions, Compactions
from .stores.conversation.compaction.events import ArchivedMessage, CompactionEvent
from .stores.conversation.compaction.plan import Plan
from .stores.conversation.compaction.strategies import Changes, History
from .stores.conversation.contacts import AsyncContacts, Contact, Contacts
from .stores.conversation.context import Context, ContextMessage
from .stores.conversation.deleted_messages import DeletedMessage
from .stores.conversation.feedback import AsyncFeedbacks, Feedback, Feedbacks
from .stores.conversation.general_feedback import AsyncGeneralFeedbacks, GeneralFeedback, GeneralFeedbacks
from .stores.conversation.message_log import Message
from .stores.conversation.messages import AsyncMessages, Messages
from .stores.conversation.pending_messages import AsyncPendingMessages, PendingGroup, PendingMessage, PendingMessages
from .stores.conversation.pruning import PrunedSessions
from .stores.conversation.search.search import Hit, SearchPage
from .stores.conversation.sessions import AsyncSessions, Session, Sessions
from .stores.conversation.shares import AsyncSessionShares, SessionShare, SessionShares
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
from .stores.lifecycle.diagnostics import AsyncDiagnostics, DamagedSnapshot, Diagnostics, Findings
from .stores.lifecycle.erasures import AsyncErasures, Erased, Erasure, Erasures
from .stores.lifecycle.retention.retention import AsyncRetention, Retention
from .stores.lifecycle.retention.sweeps import Swept, Tally
from .stores.lifecycle.tenants import AsyncTenants, Maintained, Tenant, Tenants
from .stores.memory.agent_memories import (
    AgentMemories,
    AgentMemory,
    AsyncAgentMemories,
    FoundAgentMemory,
    PrunedMemories,
)
from .stores.memory.crew_memories import AsyncCrewMemories, CrewMemories, CrewMemory, FoundMemory, MemoryScope
from .stores.objects.activity import Activities, Activity, AsyncActivities
from .stores.objects.objects import AsyncObjects, Objects
from .stores.registry.agents import Agent, Agents, AsyncAgents
from .stores.registry.blocks import AsyncBlocks, Block, Blocks
from .stores.registry.channel_instances import AsyncChannelInstances, ChannelInstance, ChannelInstances
from .stores.registry.tool_servers import AsyncToolServers, Tool, ToolServer, ToolServers
from .stores.workspace.retention_rules import Hold
from .stores.workspace.rewind_rows import Rewind, RewindStatus
from .stores.workspace.rewinds import AsyncRewinds, Rewinds
from .stores.workspace.snapshots import AsyncSnapshots, Snapshot, Snapshots, SnapshotUsage, TreePage
from .trees.entries import Entry, Piece, Tree
from .trees.restore import Restored
from .trees.walk import Skipped
from .workspaces.archives import TreeChange
from .workspaces.capture import Capture
from .workspaces.rewind import Rewound
from .workspaces.workspaces import AsyncWorkspaces, Workspaces

__all__ = [
    "A2APushConfig",
    "A2APushConfigs",
    "A2ATask",
    "A2ATasks",
    "Acting",
    "Activities",
    "Activity",
    "Agent",
    "AgentMemories",
    "AgentMemory",
    "Agents",
    "ApiKey",
    "ApiKeys",
    "ArchivedMessage",
    "AsyncA2APushConfigs",
    "AsyncA2ATasks",
    "AsyncActivities",
    "AsyncAgentMemories",
    "AsyncAgents",
    "AsyncApiKeys",
    "AsyncBlocks",
    "AsyncBranches",
    "AsyncBufferedSession",
    "AsyncChannelInstances",
    "AsyncCheckpoints",
    "AsyncCompactions",
    "AsyncContacts",
    "AsyncCrewMemories",
    "AsyncDiagnostics",
    "AsyncErasures",
    "AsyncFeedbacks",
    "AsyncFlows",
    "AsyncGeneralFeedbacks",
    "AsyncLeases",
    "AsyncMessages",
    "AsyncObjects",
    "AsyncPendingMessages",
    "AsyncRetention",
    "AsyncRewinds",
    "AsyncRunQueue",
    "AsyncRuns",
    "AsyncSessionShares",
    "AsyncSessions",
    "AsyncSnapshots",
    "AsyncSteps",
    "AsyncTenants",
    "AsyncToolCalls",
    "AsyncToolServers",
    "AsyncWorkspaces",
    "Block",
    "Blocks",
    "Branch",
    "Branches",
    "BufferedSession",
    "CachedPieces",
    "Capture",
    "Changes",
    "ChannelInstance",
    "ChannelInstances",
    "CheckedThreads",
    "Checkpoint",
    "Checkpoints",
    "ClaimedRun",
    "CommittedStep",
    "CompactionEvent",
    "Compactions",
    "Contact",
    "Contacts",
    "Context",
    "ContextMessage",
    "CrewMemories",
    "CrewMemory",
    "DamagedCheckpoint",
    "DamagedSnapshot",
    "DeletedMessage",
    "Diagnostics",
    "Entry",
    "Erased",
    "Erasure",
    "Erasures",
    "Feedback",
    "Feedbacks",
    "Findings",
    "Flow",
    "FlowState",
    "Flows",
    "FoundAgentMemory",
    "FoundMemory",
    "GeneralFeedback",
    "GeneralFeedbacks",
    "History",
    "Hit",
    "Hold",
    "Leases",
    "LoadedRun",
    "Maintained",
    "MemoryScope",
    "Message",
    "Messages",
    "Objects",
    "PendingCall",
    "PendingFeedback",
    "PendingGroup",
    "PendingMessage",
    "PendingMessages",
    "Piece",
    "Plan",
    "PrunedMemories",
    "PrunedSessions",
    "Restored",
    "Retention",
    "Rewind",
    "RewindStatus",
    "Rewinds",
    "Rewound",
    "Run",
    "RunQueue",
    "RunStatus",
    "Runs",
    "SearchPage",
    "Session",
    "SessionShare",
    "SessionShares",
    "SessionState",
    "Sessions",
    "Skipped",
    "Snapshot",
    "SnapshotUsage",
    "Snapshots",
    "Step",
    "Steps",
    "StoredPieces",
    "Swept",
    "Tally",
    "TaskWrites",
    "Tenant",
    "Tenants",
    "Tool",
    "ToolCall",
    "ToolCalls",
    "ToolServer",
    "ToolServers",
    "Tree",
    "TreeChange",
    "TreePage",
    "Workspaces",
]
