"""The durable loop: an agent that goes on where it was, however often whoever drives it dies.

::

    from holdfast import Holdfast
    from holdfast.loop import Loop, Reply, ToolRequest, tool

    loop = Loop(model, tools=[weather])
    ending = loop.drive(acme, run.id)
"""

from .events import Ending, Event
from .loop import Loop
from .plan import Progress
from .replies import Reply, ToolRequest, Turn
from .tools import Call, ChildRun, Later, Snooze, Tool, ToolError, subagent, tool
from .worker import Worker

__all__ = [
    "Call",
    "ChildRun",
    "Ending",
    "Event",
    "Later",
    "Loop",
    "Progress",
    "Reply",
    "Snooze",
    "Tool",
    "ToolError",
    "ToolRequest",
    "Turn",
    "Worker",
    "subagent",
    "tool",
]
