"""The commands of the loop. ``core`` yields them and receives their results; it does no input or output itself.

``core`` does not even read the clock. So a test can kill the process at every command, and the same core serves
threads, event loops and the simulator.

A ``StoreCommand`` is one call of one store: ``command.on(tenant)`` makes it, on a ``TenantHandle`` or, awaited, on an
``AsyncTenantHandle``; its error is thrown into the loop. Each can be repeated when its answer was lost, except the claim.
The executor carries out the others:

==============  ==================================================================================================
command         result
==============  ==================================================================================================
AskModel        the model's answer, or ``ModelFailure`` with the error it raised
CallTools       a ``CallAnswer`` (see ``tools``) for each call, in the order of the calls
Now             the current time, by the clock of the Holdfast
Sleep           nothing, after that many seconds
ShouldContinue  whether to start another iteration; if false, the run is released
EmitEvent       nothing; the event goes to the loop's listener
==============  ==================================================================================================

While a long command runs, the executor renews the lease, and throws ``Fenced`` into the loop if it cannot.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast import CompactionPolicy, NewMessage, NewToolCall, Summarizer, ToolOutcome, Usage

from .events import BegunCall, Event
from .replies import ModelTurn

T = TypeVar("T")


class Command(Struct, frozen=True):
    """A request of the loop to its executor."""


CommandGenerator = Generator[Command, Any, T]
"""A part of the loop: it yields commands, receives their results, and returns a ``T``."""


class AskModel(Command, frozen=True):
    """Call the model."""

    turn: ModelTurn


class CallTools(Command, frozen=True):
    """Make these calls: in parallel where the tools allow it, otherwise one after the other."""

    calls: Sequence[BegunCall]


class Now(Command, frozen=True):
    """Return the current time."""


class Sleep(Command, frozen=True):
    """Wait."""

    seconds: float


class ShouldContinue(Command, frozen=True):
    """Return whether to start another iteration."""


class EmitEvent(Command, frozen=True):
    """Pass an event to the loop's listener."""

    event: Event


class StoreCommand(Command, frozen=True):
    """One call of one store."""

    def on(self, tenant: Any) -> Any:
        """Make the call and return its result; on an asynchronous handle, an awaitable of it."""
        raise NotImplementedError


class ClaimRun(StoreCommand, frozen=True):
    """Claim the run."""

    run_id: str
    holder: str
    ttl_ms: int

    def on(self, tenant: Any) -> Any:
        return tenant.leases.claim(self.holder, ttl_ms=self.ttl_ms, run_id=self.run_id)


class ReleaseRun(StoreCommand, frozen=True):
    """Release the run, so that any worker can claim it."""

    run_id: str
    epoch: int

    def on(self, tenant: Any) -> Any:
        return tenant.leases.release(self.run_id, epoch=self.epoch)


class GetRun(StoreCommand, frozen=True):
    """Read the run."""

    run_id: str

    def on(self, tenant: Any) -> Any:
        return tenant.runs.get(self.run_id)


class LoadRun(StoreCommand, frozen=True):
    """Read the run, its last step and its calls."""

    run_id: str

    def on(self, tenant: Any) -> Any:
        return tenant.runs.load(self.run_id)


class GetCall(StoreCommand, frozen=True):
    """Read one call from the ledger."""

    run_id: str
    id: str

    def on(self, tenant: Any) -> Any:
        return tenant.tool_calls.get(self.run_id, self.id)


class ListChildren(StoreCommand, frozen=True):
    """List the child runs of a run."""

    run_id: str

    def on(self, tenant: Any) -> Any:
        return tenant.runs.list(parent=self.run_id)


class ReadLastMessages(StoreCommand, frozen=True):
    """Read the last messages of a session."""

    session_id: str
    count: int

    def on(self, tenant: Any) -> Any:
        return tenant.messages.last(self.session_id, self.count)


class BuildContext(StoreCommand, frozen=True):
    """Read the part of the session that is sent to the model."""

    session_id: str
    max_tokens: int

    def on(self, tenant: Any) -> Any:
        return tenant.messages.context(self.session_id, max_tokens=self.max_tokens)


class FindAgents(StoreCommand, frozen=True):
    """Read the definitions of agents; those that do not exist are left out."""

    ids: Sequence[str]

    def on(self, tenant: Any) -> Any:
        return tenant.agents.by_ids(self.ids)


class ListBlocks(StoreCommand, frozen=True):
    """Read the agent's core blocks."""

    agent: str

    def on(self, tenant: Any) -> Any:
        return tenant.blocks.list(self.agent)


class RecordIntents(StoreCommand, frozen=True):
    """Record calls before they are made: the first of an iteration's two commits."""

    run_id: str
    epoch: int
    calls: Sequence[NewToolCall]

    def on(self, tenant: Any) -> Any:
        return tenant.tool_calls.intend(self.run_id, epoch=self.epoch, calls=self.calls)


class SnoozeCall(StoreCommand, frozen=True):
    """Record that a call must be made later."""

    run_id: str
    id: str
    epoch: int
    until: datetime

    def on(self, tenant: Any) -> Any:
        return tenant.tool_calls.snooze(self.run_id, self.id, epoch=self.epoch, until=self.until)


class CommitStep(StoreCommand, frozen=True, kw_only=True):
    """Commit the iteration: the second of its two commits, and the only one if no tool was called."""

    run_id: str
    epoch: int
    iteration: int
    state: Any
    messages: Sequence[NewMessage] = ()
    tool_calls: Sequence[ToolOutcome] = ()
    usage: Usage | None = None
    last_tool_result: str | None = None
    snapshot: str | None = None
    stop_reason: str | None = None
    pause_until: datetime | None = None

    def on(self, tenant: Any) -> Any:
        return tenant.runs.step(
            self.run_id,
            epoch=self.epoch,
            iteration=self.iteration,
            state=self.state,
            # Compaction becomes due by token counts, so every message needs one.
            messages=[
                message if message.token_count else replace(message, token_count=tenant.count_tokens(message.content))
                for message in self.messages
            ],
            tool_calls=self.tool_calls,
            usage=self.usage,
            last_tool_result=self.last_tool_result,
            snapshot=self.snapshot,
            stop_reason=self.stop_reason,
            pause_until=self.pause_until,
        )


class PauseRun(StoreCommand, frozen=True):
    """Pause the run and release it, until a time or until it is resumed."""

    run_id: str
    epoch: int
    until: datetime | None

    def on(self, tenant: Any) -> Any:
        return tenant.runs.pause(self.run_id, epoch=self.epoch, until=self.until)


class FinishRun(StoreCommand, frozen=True):
    """End the run without another step."""

    run_id: str
    epoch: int
    stop_reason: str

    def on(self, tenant: Any) -> Any:
        return tenant.runs.finish(self.run_id, epoch=self.epoch, stop_reason=self.stop_reason)


class FailRun(StoreCommand, frozen=True):
    """End the run as failed."""

    run_id: str
    epoch: int
    error: str

    def on(self, tenant: Any) -> Any:
        return tenant.runs.fail(self.run_id, epoch=self.epoch, error=self.error)


class ResumeRun(StoreCommand, frozen=True):
    """Resume the parent run that waits for this one."""

    run_id: str

    def on(self, tenant: Any) -> Any:
        return tenant.runs.resume(self.run_id)


class OpenSession(StoreCommand, frozen=True):
    """Create or read the session of a child run."""

    key: str
    agent: str

    def on(self, tenant: Any) -> Any:
        return tenant.sessions.upsert(self.key, agent=self.agent)


class AppendTask(StoreCommand, frozen=True):
    """Append the first message of a child run."""

    session_id: str
    id: str
    task: Any

    def on(self, tenant: Any) -> Any:
        return tenant.messages.append(self.session_id, role="user", content=self.task, id=self.id)


class StartChild(StoreCommand, frozen=True):
    """Start a child run for one call."""

    session_id: str
    agent: str
    parent: str
    parent_call: str
    parent_epoch: int
    metadata: Mapping[str, Any] | None

    def on(self, tenant: Any) -> Any:
        return tenant.runs.start(
            self.session_id,
            agent=self.agent,
            parent=self.parent,
            parent_call=self.parent_call,
            parent_epoch=self.parent_epoch,
            metadata=self.metadata,
        )


class FindPolicy(StoreCommand, frozen=True):
    """Read the compaction policy of the session."""

    session_id: str

    def on(self, tenant: Any) -> Any:
        return tenant.compactions.attached(self.session_id)


class Compact(StoreCommand, frozen=True):
    """Compact the session."""

    session_id: str
    policy: CompactionPolicy | None
    summarize: Summarizer

    def on(self, tenant: Any) -> Any:
        return tenant.compactions.compact(self.session_id, self.policy, summarize=self.summarize)


class PendingRewinds(StoreCommand, frozen=True):
    """List the pending rewinds of the run."""

    run_id: str

    def on(self, tenant: Any) -> Any:
        return tenant.rewinds.pending(self.run_id)


class FinishRewind(StoreCommand, frozen=True):
    """Restore the files of the run if a rewind is pending."""

    run_id: str
    path: str | os.PathLike[str] | None

    def on(self, tenant: Any) -> Any:
        return tenant.workspaces.finish_rewinds(self.run_id, self.path)


class FindSnapshot(StoreCommand, frozen=True):
    """Find the snapshot of the run's files at a step."""

    run_id: str
    step: int

    def on(self, tenant: Any) -> Any:
        return tenant.snapshots.find(self.run_id, step=self.step)


class CaptureFiles(StoreCommand, frozen=True):
    """Capture the run's workspace."""

    run_id: str
    path: str | os.PathLike[str]
    step: int

    def on(self, tenant: Any) -> Any:
        return tenant.workspaces.capture(self.run_id, self.path, step=self.step)


LONG_COMMANDS = (AskModel, CallTools, Sleep, Compact, FinishRewind, CaptureFiles)
"""Commands that may take longer than a lease lasts."""
