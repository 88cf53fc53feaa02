"""Holdfast: the durable state layer for AI agents."""

from .clock import Clock, FixedClock, SystemClock
from .core.acting import Acting
from .core.filters import Filter, column, content, meta
from .core.packs import PackPlace
from .core.paging import Page
from .engines.postgres.options import PoolOptions
from .handles import AsyncHoldfast, Holdfast
from .ids import IdSource, RandomIds, SeededIds, new_api_key
from .limits import Limits
from .stores.conversation.branches import AsyncBranches, Branch, Branches
from .stores.conversation.buffer.buffered import AsyncBufferedSession, BufferedSession
from .stores.conversation.buffer.saving import SessionState
from .stores.conversation.compaction.compactions import AsyncCompactions, Compactions
from .stores.conversation.compaction.events import ArchivedMessage, CompactionEvent
from .stores.conversation.compaction.plan import Plan
from .stores.conversation.compaction.policy import CompactionPolicy
from .stores.conversation.compaction.strategies import Changes, History, Strategy, Summarizer
from .stores.conversation.contacts import AsyncContacts, Contact, Contacts
from .stores.conversation.context import Context, ContextMessage
from .stores.conversation.deleted_messages import DeletedMessage
from .stores.conversation.feedback import AsyncFeedbacks, Feedback, Feedbacks
from .stores.conversation.general_feedback import (
    AsyncGeneralFeedbacks,
    GeneralFeedback,
    GeneralFeedbackChange,
    GeneralFeedbacks,
    NewGeneralFeedback,
)
from .stores.conversation.keys import CronKey, DirectKey, GroupKey, MainKey, SessionKey, SubagentKey, TeamKey
from .stores.conversation.message_log import Message
from .stores.conversation.messages import AsyncMessages, Messages, NewMessage
from .stores.conversation.pending_messages import (
    AsyncPendingMessages,
    NewPendingMessage,
    PendingGroup,
    PendingMessage,
    PendingMessages,
)
from .stores.conversation.pruning import PrunedSessions
from .stores.conversation.search.search import Hit, SearchPage
from .stores.conversation.sessions import AsyncSessions, Session, Sessions
from .stores.conversation.shares import AsyncSessionShares, SessionShare, SessionShares
from .stores.conversation.threads import SERVICE_USER, thread_of
from .stores.conversation.tokens import TokenCounter
from .stores.execution.a2a_push_configs import (
    A2APushConfig,
    A2APushConfigChange,
    A2APushConfigs,
    AsyncA2APushConfigs,
    NewA2APushConfig,
)
from .stores.execution.a2a_tasks import A2ATask, A2ATasks, AsyncA2ATasks
from .stores.execution.checkpoints.checking import CheckedThreads, DamagedCheckpoint
from .stores.execution.checkpoints.checkpoints import AsyncCheckpoints, Checkpoints
from .stores.execution.checkpoints.reading import Checkpoint, Held
from .stores.execution.checkpoints.saving import Stored
from .stores.execution.checkpoints.task_writes import TaskWrites, Write
from .stores.execution.flows import AsyncFlows, Flow, Flows, FlowState, PendingFeedback
from .stores.execution.runs.leases import AsyncLeases, AsyncRunQueue, ClaimedRun, Leases, RunQueue
from .stores.execution.runs.ledger import NewToolCall, PendingCall, ToolCall, ToolOutcome
from .stores.execution.runs.runs import AsyncRuns, LoadedRun, Runs
from .stores.execution.runs.states import Run
from .stores.execution.runs.states import Status as RunStatus
from .stores.execution.runs.step_log import CommittedStep, Step, Usage
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
    NewAgentMemory,
    PrunedMemories,
)
from .stores.memory.crew_memories import (
    AsyncCrewMemories,
    CrewMemories,
    CrewMemory,
    FoundMemory,
    MemoryScope,
    NewCrewMemory,
)
from .stores.objects.activity import Activities, Activity, AsyncActivities
from .stores.objects.objects import AsyncObjects, Objects
from .stores.registry.agents import Agent, AgentChange, Agents, AsyncAgents, NewAgent
from .stores.registry.blocks import AsyncBlocks, Block, Blocks, NewBlock
from .stores.registry.tool_servers import (
    AsyncToolServers,
    NewTool,
    NewToolServer,
    Tool,
    ToolServer,
    ToolServerChange,
    ToolServers,
)
from .stores.workspace.retention_rules import Hold, RetentionPolicy
from .stores.workspace.rewind_rows import Rewind, RewindStatus
from .stores.workspace.rewinds import AsyncRewinds, Rewinds
from .stores.workspace.snapshots import AsyncSnapshots, Snapshot, Snapshots, SnapshotUsage, TreePage
from .tenant_handles import AsyncTenantHandle, TenantHandle
from .trees.entries import Entry, Piece, Tree
from .trees.ignoring import DEFAULT_IGNORE
from .trees.restoring import Restored
from .trees.walking import Skipped
from .workspaces.capturing import Capture
from .workspaces.exchanging import TreeChange
from .workspaces.rewinding import Rewound
from .workspaces.workspaces import AsyncWorkspaces, Workspaces

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_IGNORE",
    "SERVICE_USER",
    "A2APushConfig",
    "A2APushConfigChange",
    "A2APushConfigs",
    "A2ATask",
    "A2ATasks",
    "Acting",
    "Activities",
    "Activity",
    "Agent",
    "AgentChange",
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
    "AsyncCheckpoints",
    "AsyncCompactions",
    "AsyncContacts",
    "AsyncCrewMemories",
    "AsyncDiagnostics",
    "AsyncErasures",
    "AsyncFeedbacks",
    "AsyncFlows",
    "AsyncGeneralFeedbacks",
    "AsyncHoldfast",
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
    "AsyncTenantHandle",
    "AsyncTenants",
    "AsyncToolCalls",
    "AsyncToolServers",
    "AsyncWorkspaces",
    "Block",
    "Blocks",
    "Branch",
    "Branches",
    "BufferedSession",
    "Capture",
    "Changes",
    "CheckedThreads",
    "Checkpoint",
    "Checkpoints",
    "ClaimedRun",
    "Clock",
    "CommittedStep",
    "CompactionEvent",
    "CompactionPolicy",
    "Compactions",
    "Contact",
    "Contacts",
    "Context",
    "ContextMessage",
    "CrewMemories",
    "CrewMemory",
    "CronKey",
    "DamagedCheckpoint",
    "DamagedSnapshot",
    "DeletedMessage",
    "Diagnostics",
    "DirectKey",
    "Entry",
    "Erased",
    "Erasure",
    "Erasures",
    "Feedback",
    "Feedbacks",
    "Filter",
    "Findings",
    "FixedClock",
    "Flow",
    "FlowState",
    "Flows",
    "FoundAgentMemory",
    "FoundMemory",
    "GeneralFeedback",
    "GeneralFeedbackChange",
    "GeneralFeedbacks",
    "GroupKey",
    "Held",
    "History",
    "Hit",
    "Hold",
    "Holdfast",
    "IdSource",
    "Leases",
    "Limits",
    "LoadedRun",
    "MainKey",
    "Maintained",
    "MemoryScope",
    "Message",
    "Messages",
    "NewA2APushConfig",
    "NewAgent",
    "NewAgentMemory",
    "NewBlock",
    "NewCrewMemory",
    "NewGeneralFeedback",
    "NewMessage",
    "NewPendingMessage",
    "NewTool",
    "NewToolCall",
    "NewToolServer",
    "Objects",
    "PackPlace",
    "Page",
    "PendingCall",
    "PendingFeedback",
    "PendingGroup",
    "PendingMessage",
    "PendingMessages",
    "Piece",
    "Plan",
    "PoolOptions",
    "PrunedMemories",
    "PrunedSessions",
    "RandomIds",
    "Restored",
    "Retention",
    "RetentionPolicy",
    "Rewind",
    "RewindStatus",
    "Rewinds",
    "Rewound",
    "Run",
    "RunQueue",
    "RunStatus",
    "Runs",
    "SearchPage",
    "SeededIds",
    "Session",
    "SessionKey",
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
    "Stored",
    "Strategy",
    "SubagentKey",
    "Summarizer",
    "Swept",
    "SystemClock",
    "Tally",
    "TaskWrites",
    "TeamKey",
    "Tenant",
    "TenantHandle",
    "Tenants",
    "TokenCounter",
    "Tool",
    "ToolCall",
    "ToolCalls",
    "ToolOutcome",
    "ToolServer",
    "ToolServerChange",
    "ToolServers",
    "Tree",
    "TreeChange",
    "TreePage",
    "Usage",
    "Workspaces",
    "Write",
    "column",
    "content",
    "meta",
    "new_api_key",
    "thread_of",
]
