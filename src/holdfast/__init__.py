"""Holdfast: the durable state layer for AI agents."""

from .clock import Clock, FixedClock, SystemClock
from .core.acting import Acting
from .core.filters import Filter, column, meta
from .core.packs import PackPlace
from .core.paging import Page
from .engines.postgres.options import PoolOptions
from .handles import AsyncHoldfast, AsyncTenantHandle, Holdfast, TenantHandle
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
from .stores.conversation.feedback import AsyncFeedbacks, Feedback, Feedbacks
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
from .stores.conversation.search.search import Hit
from .stores.conversation.sessions import AsyncSessions, Session, Sessions
from .stores.conversation.tokens import TokenCounter
from .stores.execution.checkpoints.checking import CheckedThreads, DamagedCheckpoint
from .stores.execution.checkpoints.checkpoints import AsyncCheckpoints, Checkpoints, Stored
from .stores.execution.checkpoints.reading import Checkpoint, Held
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
from .stores.memory.blocks import AsyncBlocks, Block, Blocks, NewBlock
from .stores.memory.crew_memories import (
    AsyncCrewMemories,
    CrewMemories,
    CrewMemory,
    FoundMemory,
    MemoryScope,
    NewCrewMemory,
)
from .stores.platform.activity import Activities, Activity, AsyncActivities
from .stores.platform.api_keys import ApiKey, ApiKeys, AsyncApiKeys
from .stores.platform.objects import AsyncObjects, Objects
from .stores.platform.tenants import AsyncTenants, Tenant, Tenants
from .stores.registry.agents import Agent, Agents, AsyncAgents
from .stores.workspace.rewinds import AsyncRewinds, Rewind, Rewinds, RewindStatus
from .stores.workspace.snapshots import AsyncSnapshots, Snapshot, Snapshots, SnapshotUsage
from .trees.entries import Entry, Piece, Tree

__version__ = "0.1.0"

__all__ = [
    "Acting",
    "Activities",
    "Activity",
    "Agent",
    "Agents",
    "ApiKey",
    "ApiKeys",
    "ArchivedMessage",
    "AsyncActivities",
    "AsyncAgents",
    "AsyncApiKeys",
    "AsyncBlocks",
    "AsyncBranches",
    "AsyncBufferedSession",
    "AsyncCheckpoints",
    "AsyncCompactions",
    "AsyncContacts",
    "AsyncCrewMemories",
    "AsyncFeedbacks",
    "AsyncFlows",
    "AsyncHoldfast",
    "AsyncLeases",
    "AsyncMessages",
    "AsyncObjects",
    "AsyncPendingMessages",
    "AsyncRewinds",
    "AsyncRunQueue",
    "AsyncRuns",
    "AsyncSessions",
    "AsyncSnapshots",
    "AsyncSteps",
    "AsyncTenantHandle",
    "AsyncTenants",
    "AsyncToolCalls",
    "Block",
    "Blocks",
    "Branch",
    "Branches",
    "BufferedSession",
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
    "DirectKey",
    "Entry",
    "Feedback",
    "Feedbacks",
    "Filter",
    "FixedClock",
    "Flow",
    "FlowState",
    "Flows",
    "FoundMemory",
    "GroupKey",
    "Held",
    "History",
    "Hit",
    "Holdfast",
    "IdSource",
    "Leases",
    "Limits",
    "LoadedRun",
    "MainKey",
    "MemoryScope",
    "Message",
    "Messages",
    "NewBlock",
    "NewCrewMemory",
    "NewMessage",
    "NewPendingMessage",
    "NewToolCall",
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
    "RandomIds",
    "Rewind",
    "RewindStatus",
    "Rewinds",
    "Run",
    "RunQueue",
    "RunStatus",
    "Runs",
    "SeededIds",
    "Session",
    "SessionKey",
    "SessionState",
    "Sessions",
    "Snapshot",
    "SnapshotUsage",
    "Snapshots",
    "Step",
    "Steps",
    "Stored",
    "Strategy",
    "SubagentKey",
    "Summarizer",
    "SystemClock",
    "TaskWrites",
    "TeamKey",
    "Tenant",
    "TenantHandle",
    "Tenants",
    "TokenCounter",
    "ToolCall",
    "ToolCalls",
    "ToolOutcome",
    "Tree",
    "Usage",
    "Write",
    "column",
    "meta",
    "new_api_key",
]
