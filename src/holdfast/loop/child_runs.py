"""Child runs, which answer calls of their parent run: their start, their outcome, and the end that resumes the parent."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid5

from holdfast import ToolOutcome
from holdfast.errors import Conflict, NotFound
from holdfast.types import Message, Run

from . import commands as do
from .commands import CommandGenerator
from .events import BegunCall
from .replies import NormalizedReply
from .tools import Delegated

ANSWER_MESSAGES = 10
"""Messages at the end of a child run's session that are searched for its answer."""


def start_child(run: Run, call: BegunCall, answer: Delegated) -> CommandGenerator[Run]:
    """Start a child run. Each step can be repeated, because the call's id identifies the session, the task and the run."""
    child, session_id = answer.child, answer.child.session_id
    if session_id is None:
        session = yield do.OpenSession(f"run:{run.id}:{call.id}", child.agent)
        session_id = session.id
    yield do.AppendTask(session_id, str(uuid5(UUID(run.id), call.id)), child.task)
    started: Run = yield do.StartChild(session_id, child.agent, run.id, call.id, run.epoch, child.metadata)
    return started


def outcome_of(call_id: str, child: Run) -> CommandGenerator[ToolOutcome]:
    """Return the outcome of a call from the ended child run that answers it."""
    if child.status == "cancelled":
        return ToolOutcome(id=call_id, status="cancelled", error=child.error or "its run was cancelled")
    if child.status == "failed":
        return ToolOutcome(id=call_id, status="failed", error=f"its run failed: {child.error or child.stop_reason}")
    messages: Sequence[Message] = yield do.ReadLastMessages(child.session_id, ANSWER_MESSAGES)
    replies = (message for message in reversed(messages) if message.role == "assistant")
    text = next((NormalizedReply(message.content).text for message in replies), "")
    return ToolOutcome(id=call_id, result=text, status="finished")


def wake_parent(run: Run) -> CommandGenerator[None]:
    """Resume the parent run, if there is one. If that is lost, the parent polls after a while."""
    if run.parent_run_id is not None:
        try:
            yield do.ResumeRun(run.parent_run_id)
        except (Conflict, NotFound):
            pass  # the parent has ended in the meantime
