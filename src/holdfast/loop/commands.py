"""What the loop wants done. ``driving`` yields these and is sent their answers; it does nothing itself.

Those that are a ``StoreCommand`` are one call of one store: ``command.on(acme)`` makes it, on a ``TenantHandle`` or, awaited, on
an ``AsyncTenantHandle``; what it raises is thrown into the loop. Each can be repeated when its answer was lost, except the claim.
The others are carried out by whoever drives:

=============  ===================================================================================================
command        answer
=============  ===================================================================================================
AskModel       what the model answered, or ``Failure`` with what it raised
CallTools      an ``Answer`` of ``tools`` for each call, in their order
Now            the moment it is, by the clock of the Holdfast
Sleep          nothing, so many seconds later
GoOn           whether to go on with the next iteration; if not, the run is released
Tell           nothing: an event for whoever listens
=============  ===================================================================================================

While a command takes its time, whoever drives renews the lease, and throws ``Fenced`` into the loop if it cannot.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast import CompactionPolicy, NewMessage, NewToolCall, Summarizer, ToolOutcome, Usage

from .events import Event, ToMake
from .replies import Turn


class Command(Struct, frozen=True):
    """Something the loop wants done."""


class AskModel(Command, frozen=True):
    """Ask the model."""

    turn: Turn


class CallTools(Command, frozen=True):
    """Make these calls: those that may be made at once, the others one after the other."""

    calls: Sequence[ToMake]


class Now(Command, frozen=True):
    """Say what time it is."""


class Sleep(Command, frozen=True):
    """Wait."""

    seconds: float


class GoOn(Command, frozen=True):
    """Say whether there is to be another iteration."""


class Tell(Command, frozen=True):
    """Tell whoever listens."""

    event: Event


class StoreCommand(Command, frozen=True):
    """One call of one store."""

    def on(self, acme: Any) -> Any:
        """Make the call: its result, or on an asynchronous handle an awaitable of it."""
        raise NotImplementedError


class ClaimRun(StoreCommand, frozen=True):
    """Take the run."""

    run_id: str
    holder: str
    ttl_ms: int

    def on(self, acme: Any) -> Any:
        return acme.leases.claim(self.holder, ttl_ms=self.ttl_ms, run_id=self.run_id)


class ReleaseRun(StoreCommand, frozen=True):
    """Give it back, for anybody to go on with."""

    run_id: str
    epoch: int

    def on(self, acme: Any) -> Any:
        return acme.leases.release(self.run_id, epoch=self.epoch)


class GetRun(StoreCommand, frozen=True):
    """Look at it."""

    run_id: str

    def on(self, acme: Any) -> Any:
        return acme.runs.get(self.run_id)


class LoadRun(StoreCommand, frozen=True):
    """Read what is needed to go on."""

    run_id: str

    def on(self, acme: Any) -> Any:
        return acme.runs.load(self.run_id)


class GetCall(StoreCommand, frozen=True):
    """Read one call of the ledger."""

    run_id: str
    id: str

    def on(self, acme: Any) -> Any:
        return acme.tool_calls.get(self.run_id, self.id)


class ListChildren(StoreCommand, frozen=True):
    """Read which runs were started below it."""

    run_id: str

    def on(self, acme: Any) -> Any:
        return acme.runs.list(parent=self.run_id)


class ReadLast(StoreCommand, frozen=True):
    """Read the last messages of a session."""

    session_id: str
    count: int

    def on(self, acme: Any) -> Any:
        return acme.messages.last(self.session_id, self.count)


class BuildContext(StoreCommand, frozen=True):
    """Read what to send to the model."""

    session_id: str
    max_tokens: int

    def on(self, acme: Any) -> Any:
        return acme.messages.context(self.session_id, max_tokens=self.max_tokens)


class FindAgent(StoreCommand, frozen=True):
    """Read the agent's definition, if it has one."""

    agent: str

    def on(self, acme: Any) -> Any:
        return acme.agents.find(self.agent)


class ListBlocks(StoreCommand, frozen=True):
    """Read the agent's core blocks."""

    agent: str

    def on(self, acme: Any) -> Any:
        return acme.blocks.list(self.agent)


class Intend(StoreCommand, frozen=True):
    """Record calls before they are made: the first of an iteration's two commits."""

    run_id: str
    epoch: int
    calls: Sequence[NewToolCall]

    def on(self, acme: Any) -> Any:
        return acme.tool_calls.intend(self.run_id, epoch=self.epoch, calls=self.calls)


class SnoozeCall(StoreCommand, frozen=True):
    """Record that a call is to be made later."""

    run_id: str
    id: str
    epoch: int
    until: datetime

    def on(self, acme: Any) -> Any:
        return acme.tool_calls.snooze(self.run_id, self.id, epoch=self.epoch, until=self.until)


class CommitStep(StoreCommand, frozen=True, kw_only=True):
    """Commit the iteration: the second of its two commits, and the only one where no tool was called."""

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

    def on(self, acme: Any) -> Any:
        return acme.runs.step(
            self.run_id,
            epoch=self.epoch,
            iteration=self.iteration,
            state=self.state,
            # A session whose messages do not count is never due to be compacted.
            messages=[
                each if each.token_count else replace(each, token_count=acme.count_tokens(each.content))
                for each in self.messages
            ],
            tool_calls=self.tool_calls,
            usage=self.usage,
            last_tool_result=self.last_tool_result,
            snapshot=self.snapshot,
            stop_reason=self.stop_reason,
            pause_until=self.pause_until,
        )


class PauseRun(StoreCommand, frozen=True):
    """Let go of the run until a time, or until it is resumed."""

    run_id: str
    epoch: int
    until: datetime | None

    def on(self, acme: Any) -> Any:
        return acme.runs.pause(self.run_id, epoch=self.epoch, until=self.until)


class FinishRun(StoreCommand, frozen=True):
    """End the run without another step."""

    run_id: str
    epoch: int
    stop_reason: str

    def on(self, acme: Any) -> Any:
        return acme.runs.finish(self.run_id, epoch=self.epoch, stop_reason=self.stop_reason)


class FailRun(StoreCommand, frozen=True):
    """End the run because it cannot go on."""

    run_id: str
    epoch: int
    error: str

    def on(self, acme: Any) -> Any:
        return acme.runs.fail(self.run_id, epoch=self.epoch, error=self.error)


class ResumeRun(StoreCommand, frozen=True):
    """Wake the run that waits for this one."""

    run_id: str

    def on(self, acme: Any) -> Any:
        return acme.runs.resume(self.run_id)


class OpenSession(StoreCommand, frozen=True):
    """The session of a run below this one."""

    key: str
    agent: str

    def on(self, acme: Any) -> Any:
        return acme.sessions.upsert(self.key, agent=self.agent)


class GiveTask(StoreCommand, frozen=True):
    """The first message of a run below this one."""

    session_id: str
    id: str
    task: Any

    def on(self, acme: Any) -> Any:
        return acme.messages.append(self.session_id, role="user", content=self.task, id=self.id)


class StartChild(StoreCommand, frozen=True):
    """A run below this one, for one call."""

    session_id: str
    agent: str
    parent: str
    parent_call: str
    parent_epoch: int
    metadata: Mapping[str, Any] | None

    def on(self, acme: Any) -> Any:
        return acme.runs.start(
            self.session_id,
            agent=self.agent,
            parent=self.parent,
            parent_call=self.parent_call,
            parent_epoch=self.parent_epoch,
            metadata=self.metadata,
        )


class FindPolicy(StoreCommand, frozen=True):
    """Read by which policy the session is to be made smaller."""

    session_id: str

    def on(self, acme: Any) -> Any:
        return acme.compactions.attached(self.session_id)


class Compact(StoreCommand, frozen=True):
    """Make the session smaller."""

    session_id: str
    policy: CompactionPolicy | None
    summarize: Summarizer

    def on(self, acme: Any) -> Any:
        return acme.compactions.compact(self.session_id, self.policy, summarize=self.summarize)


class PendingRewinds(StoreCommand, frozen=True):
    """Look whether the files are still to be brought to where the run is."""

    run_id: str

    def on(self, acme: Any) -> Any:
        return acme.rewinds.pending(self.run_id)


class FinishRewind(StoreCommand, frozen=True):
    """Bring the files to where the run is, if a rewind is pending."""

    run_id: str
    path: str | os.PathLike[str] | None

    def on(self, acme: Any) -> Any:
        return acme.workspaces.finish_rewinds(self.run_id, self.path)


class FindSnapshot(StoreCommand, frozen=True):
    """Look whether the files were captured as of a step."""

    run_id: str
    step: int

    def on(self, acme: Any) -> Any:
        return acme.snapshots.find(self.run_id, step=self.step)


class CaptureFiles(StoreCommand, frozen=True):
    """Capture the directory that the run works in."""

    run_id: str
    path: str | os.PathLike[str]
    step: int

    def on(self, acme: Any) -> Any:
        return acme.workspaces.capture(self.run_id, self.path, step=self.step)


LONG = (AskModel, CallTools, Sleep, Compact, FinishRewind, CaptureFiles)
"""Commands that may take longer than a lease lasts."""
