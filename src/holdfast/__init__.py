"""Holdfast: the durable state layer for AI agents."""

from .clock import Clock, FixedClock, SystemClock
from .core.filters import Filter, column, content, meta
from .core.packs import PackStorage
from .core.paging import Page
from .engines.postgres.options import PoolOptions
from .handles import AsyncHoldfast, Holdfast
from .ids import IdSource, RandomIds, SeededIds, new_api_key
from .limits import Limits
from .stores.agents.agents import AgentChange, NewAgent
from .stores.agents.blocks import NewBlock
from .stores.channels.channels import ChannelInstanceChange, NewChannelInstance
from .stores.conversation.compaction.policy import CompactionPolicy
from .stores.conversation.compaction.strategies import Strategy, Summarizer
from .stores.conversation.general_feedback import GeneralFeedbackChange, NewGeneralFeedback
from .stores.conversation.keys import CronKey, DirectKey, GroupKey, MainKey, SessionKey, SubagentKey, TeamKey
from .stores.conversation.linked_threads import SERVICE_USER, thread_of
from .stores.conversation.new_entries import NewMessage
from .stores.conversation.pending_messages import NewPendingMessage
from .stores.conversation.tokens import TokenCounter
from .stores.execution.a2a_push_configs import A2APushConfigChange, NewA2APushConfig
from .stores.execution.checkpoints.task_writes import Write
from .stores.execution.runs.ledger import NewToolCall, ToolOutcome
from .stores.execution.runs.step_log import Usage
from .stores.memory.agent_memories import NewAgentMemory
from .stores.memory.new_crew_memories import NewCrewMemory
from .stores.workspace.retention_rules import RetentionPolicy
from .tenant_handles import AsyncTenantHandle, TenantHandle
from .trees.ignore_rules import DEFAULT_IGNORE

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_IGNORE",
    "SERVICE_USER",
    "A2APushConfigChange",
    "AgentChange",
    "AsyncHoldfast",
    "AsyncTenantHandle",
    "ChannelInstanceChange",
    "Clock",
    "CompactionPolicy",
    "CronKey",
    "DirectKey",
    "Filter",
    "FixedClock",
    "GeneralFeedbackChange",
    "GroupKey",
    "Holdfast",
    "IdSource",
    "Limits",
    "MainKey",
    "NewA2APushConfig",
    "NewAgent",
    "NewAgentMemory",
    "NewBlock",
    "NewChannelInstance",
    "NewCrewMemory",
    "NewGeneralFeedback",
    "NewMessage",
    "NewPendingMessage",
    "NewToolCall",
    "PackStorage",
    "Page",
    "PoolOptions",
    "RandomIds",
    "RetentionPolicy",
    "SeededIds",
    "SessionKey",
    "Strategy",
    "SubagentKey",
    "Summarizer",
    "SystemClock",
    "TeamKey",
    "TenantHandle",
    "TokenCounter",
    "ToolOutcome",
    "Usage",
    "Write",
    "column",
    "content",
    "meta",
    "new_api_key",
    "thread_of",
]
