"""Log of all writes that a simulation has requested from the stores, acknowledged or not.

Every row in the database must stem from one of these requests, and every acknowledged request must be complete in it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...core import text
from .observer import Key, MessageRow, StepRow
from .recorder import RecordedCall


class MessageAttempt(Struct, frozen=True):
    """A message that a process requested to append."""

    id: str | None
    role: str | None
    content: Any

    def is_at(self, row: MessageRow) -> bool:
        """Return whether a row is this message."""
        # Plain text is stored as a list with one text block.
        content = [{"type": "text", "text": self.content}] if isinstance(self.content, str) else self.content
        return self.id in (None, row.id) and self.role == row.role and text.load(row.content) == content


class StepAttempt(Struct, frozen=True):
    """A step that a process requested to commit."""

    iteration: int
    epoch: int
    state: Any
    messages: tuple[MessageAttempt, ...]
    outcomes: dict[str, str]
    input_tokens: int
    output_tokens: int

    def is_at(self, row: StepRow, messages: list[MessageRow]) -> bool:
        """Return whether a row, with its messages, is this complete step."""
        return (
            (self.iteration, self.epoch) == (row.iteration, row.epoch)
            and (self.input_tokens, self.output_tokens) == (row.input_tokens, row.output_tokens)
            and self.state == text.load(row.state)
            and len(self.messages) == len(messages)
            and all(attempt.is_at(row) for attempt, row in zip(self.messages, messages, strict=True))
        )


class CallLog:
    """All requested writes, by kind."""

    def __init__(self) -> None:
        self.steps: dict[Key, list[StepAttempt]] = {}
        self.intents: dict[Key, set[str]] = {}
        self.messages: dict[Key, list[MessageAttempt]] = {}
        self.runs: dict[Key, set[str]] = {}
        self.decided: set[tuple[str, str, str]] = set()
        """Tool calls that a person has decided on."""
        self.resumed: set[Key] = set()
        self.deleted_agents: set[Key] = set()
        self.loose: set[str] = set()
        """Tenants whose logs are changed by calls that are not tracked here, such as compactions."""

    def add(self, call: RecordedCall) -> None:
        """Record a call that is about to be made."""
        handler = _HANDLERS.get(call.method)
        if handler is not None:
            handler(self, call)
        elif call.method.partition(".")[0] in ("messages", "branches", "compactions", "sessions") and not call.reads:
            self.loose.add(call.tenant)

    def step(self, call: RecordedCall) -> None:
        arguments = call.arguments
        usage = arguments.get("usage")
        attempt = StepAttempt(
            arguments["iteration"],
            arguments["epoch"],
            arguments["state"],
            tuple(_message(message) for message in arguments.get("messages", ())),
            {
                outcome.id: outcome.status or ("failed" if outcome.error else "finished")
                for outcome in arguments.get("tool_calls", ())
            },
            usage.input_tokens if usage else 0,
            usage.output_tokens if usage else 0,
        )
        self.steps.setdefault((call.tenant, arguments["run_id"]), []).append(attempt)

    def intent(self, call: RecordedCall) -> None:
        ids = {tool_call.id for tool_call in call.arguments["calls"]}
        self.intents.setdefault((call.tenant, call.arguments["run_id"]), set()).update(ids)

    def decision(self, call: RecordedCall) -> None:
        self.decided.add((call.tenant, call.arguments["run_id"], call.arguments["id"]))

    def resume(self, call: RecordedCall) -> None:
        self.resumed.add((call.tenant, call.arguments["run_id"]))

    def append(self, call: RecordedCall) -> None:
        arguments = call.arguments
        attempt = MessageAttempt(arguments.get("id"), arguments.get("role"), arguments["content"])
        self.messages.setdefault((call.tenant, arguments["session_id"]), []).append(attempt)

    def append_many(self, call: RecordedCall) -> None:
        attempts = [_message(message) for message in call.arguments["messages"]]
        self.messages.setdefault((call.tenant, call.arguments["session_id"]), []).extend(attempts)

    def delete_agent(self, call: RecordedCall) -> None:
        self.deleted_agents.add((call.tenant, call.arguments["key"][0]))

    def nothing(self, call: RecordedCall) -> None:
        """Ignore a call that changes no log."""


def _message(new: Any) -> MessageAttempt:
    return MessageAttempt(new.id, new.role, new.content)


_HANDLERS = {
    "runs.step": CallLog.step,
    "tool_calls.intend": CallLog.intent,
    "tool_calls.cancel": CallLog.decision,
    "tool_calls.discard": CallLog.decision,
    "runs.resume": CallLog.resume,
    "messages.append": CallLog.append,
    "messages.append_many": CallLog.append_many,
    "agents.delete": CallLog.delete_agent,
    "sessions.create": CallLog.nothing,
    "sessions.upsert": CallLog.nothing,
    "sessions.update": CallLog.nothing,
}
