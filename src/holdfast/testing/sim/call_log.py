"""What a simulation has asked the stores to write, whether it was acknowledged or not.

Whatever is found in the database must be one of these, whole; and what was acknowledged must be there.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...core import text
from .observer import Key, MessageRow, StepRow
from .recorder import StoreCall


class MessageAttempt(Struct, frozen=True):
    """A message that somebody wanted to be there."""

    id: str | None
    role: str | None
    content: Any

    def is_at(self, row: MessageRow) -> bool:
        """Whether a row is this message."""
        # Plain text is kept as what it is short for.
        content = [{"type": "text", "text": self.content}] if isinstance(self.content, str) else self.content
        return self.id in (None, row.id) and self.role == row.role and text.load(row.content) == content


class StepAttempt(Struct, frozen=True):
    """A step that somebody wanted to commit."""

    iteration: int
    epoch: int
    state: Any
    messages: tuple[MessageAttempt, ...]
    outcomes: dict[str, str]
    input_tokens: int
    output_tokens: int

    def is_at(self, row: StepRow, messages: list[MessageRow]) -> bool:
        """Whether a row, with its messages, is this step and all of it."""
        return (
            (self.iteration, self.epoch) == (row.iteration, row.epoch)
            and (self.input_tokens, self.output_tokens) == (row.input_tokens, row.output_tokens)
            and self.state == text.load(row.state)
            and len(self.messages) == len(messages)
            and all(wanted.is_at(found) for wanted, found in zip(self.messages, messages, strict=True))
        )


class Attempts:
    """Everything that was asked for."""

    def __init__(self) -> None:
        self.steps: dict[Key, list[StepAttempt]] = {}
        self.intents: dict[Key, set[str]] = {}
        self.messages: dict[Key, list[MessageAttempt]] = {}
        self.runs: dict[Key, set[str]] = {}
        self.decided: set[tuple[str, str, str]] = set()
        """Calls of tools that a person was asked to decide about."""
        self.resumed: set[Key] = set()
        self.deleted_agents: set[Key] = set()
        self.loose: set[str] = set()
        """Tenants whose logs are changed by what is not known here, such as compactions."""

    def add(self, call: StoreCall) -> None:
        """A call is about to be made."""
        note = _NOTES.get(call.method)
        if note is not None:
            note(self, call)
        elif call.method.partition(".")[0] in ("messages", "branches", "compactions", "sessions") and not call.reads:
            self.loose.add(call.tenant)

    def step(self, call: StoreCall) -> None:
        given = call.arguments
        usage = given.get("usage")
        attempt = StepAttempt(
            given["iteration"],
            given["epoch"],
            given["state"],
            tuple(_message(each) for each in given.get("messages", ())),
            {each.id: each.status or ("failed" if each.error else "finished") for each in given.get("tool_calls", ())},
            usage.input_tokens if usage else 0,
            usage.output_tokens if usage else 0,
        )
        self.steps.setdefault((call.tenant, given["run_id"]), []).append(attempt)

    def intent(self, call: StoreCall) -> None:
        ids = {each.id for each in call.arguments["calls"]}
        self.intents.setdefault((call.tenant, call.arguments["run_id"]), set()).update(ids)

    def decision(self, call: StoreCall) -> None:
        self.decided.add((call.tenant, call.arguments["run_id"], call.arguments["id"]))

    def resume(self, call: StoreCall) -> None:
        self.resumed.add((call.tenant, call.arguments["run_id"]))

    def append(self, call: StoreCall) -> None:
        given = call.arguments
        new = MessageAttempt(given.get("id"), given.get("role"), given["content"])
        self.messages.setdefault((call.tenant, given["session_id"]), []).append(new)

    def append_many(self, call: StoreCall) -> None:
        new = [_message(each) for each in call.arguments["messages"]]
        self.messages.setdefault((call.tenant, call.arguments["session_id"]), []).extend(new)

    def delete_agent(self, call: StoreCall) -> None:
        self.deleted_agents.add((call.tenant, call.arguments["key"][0]))

    def nothing(self, call: StoreCall) -> None:
        """A call that changes no log."""


def _message(new: Any) -> MessageAttempt:
    return MessageAttempt(new.id, new.role, new.content)


_NOTES = {
    "runs.step": Attempts.step,
    "tool_calls.intend": Attempts.intent,
    "tool_calls.cancel": Attempts.decision,
    "tool_calls.discard": Attempts.decision,
    "runs.resume": Attempts.resume,
    "messages.append": Attempts.append,
    "messages.append_many": Attempts.append_many,
    "agents.delete": Attempts.delete_agent,
    "sessions.create": Attempts.nothing,
    "sessions.upsert": Attempts.nothing,
    "sessions.update": Attempts.nothing,
}
