"""An agent for worker processes that are killed and stopped: what it does is written into a file, outside of any database.

``HANG`` names a tool that, once it has done what it does, never comes back.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from holdfast.loop import Call, Loop, ModelTurn, Reply, ToolRequest, tool

STEPS = 4


def effect(call: Call) -> str:
    """Something happens that cannot be undone."""
    with open(os.environ["EFFECTS"], "a", encoding="utf-8") as file:
        file.write(f"{call.name} {call.key}\n")
    if os.environ.get("HANG") == call.name:
        threading.Event().wait()
    return "done"


@tool(safety="idempotent")
def look(call: Call) -> str:
    """May happen twice."""
    return effect(call)


@tool(safety="at_most_once")
def pay(call: Call) -> str:
    """Must not happen twice."""
    return effect(call)


def model(turn: ModelTurn) -> Reply | str:
    """Look and pay by turns, then stop."""
    said = sum(message["role"] == "assistant" for message in turn.messages)
    if said == STEPS:
        return "Over."
    return Reply(f"{said}", [ToolRequest("look"), ToolRequest("pay")] if said % 2 else [ToolRequest("look")])


loop = Loop(model, tools=[look, pay])


def handler(acme: Any, run: Any) -> Loop:
    """What a worker is told to drive runs with."""
    return loop


not_callable = 7
