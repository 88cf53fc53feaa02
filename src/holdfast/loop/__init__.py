"""The durable agent loop: a run resumes where it stopped, however often its process dies.

::

    from holdfast import Holdfast
    from holdfast.loop import Loop, Reply, ToolRequest, tool

    loop = Loop(model, tools=[weather])
    ending = loop.drive(tenant, run.id)
"""

from .config import StepProgress
from .events import Ending, Event
from .loop import Loop
from .replies import ModelTurn, Reply, ToolRequest
from .tools import Call, ChildRun, Later, Snooze, Tool, ToolError, subagent, tool
from .worker import Worker

__all__ = [
    "Call",
    "ChildRun",
    "Ending",
    "Event",
    "Later",
    "Loop",
    "ModelTurn",
    "Reply",
    "Snooze",
    "StepProgress",
    "Tool",
    "ToolError",
    "ToolRequest",
    "Worker",
    "subagent",
    "tool",
]
