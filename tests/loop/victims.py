"""An agent for worker processes that are killed and stopped: its side effects are written to a file, outside of any database.

``HANG`` names a tool that blocks forever after its side effect.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from holdfast.loop import Call, Loop, ModelTurn, Reply, ToolRequest, tool

STEPS = 4


def effect(call: Call) -> str:
    """Record a side effect that cannot be undone."""
    with open(os.environ["EFFECTS"], "a", encoding="utf-8") as file:
        file.write(f"{call.name} {call.key}\n")
    if os.environ.get("HANG") == call.name:
        threading.Event().wait()
    return "done"


@tool(safety="idempotent")
def look(call: Call) -> str:
    """A side effect that may happen twice."""
    return effect(call)


@tool(safety="at_most_once")
def pay(call: Call) -> str:
    """A side effect that must not happen twice."""
    return effect(call)


def model(turn: ModelTurn) -> Reply | str:
    """Look and pay alternately, then stop."""
    replies = sum(message["role"] == "assistant" for message in turn.messages)
    if replies == STEPS:
        return "Over."
    return Reply(f"{replies}", [ToolRequest("look"), ToolRequest("pay")] if replies % 2 else [ToolRequest("look")])


loop = Loop(model, tools=[look, pay])


def handler(acme: Any, run: Any) -> Loop:
    """The handler of the workers."""
    return loop


not_callable = 7
