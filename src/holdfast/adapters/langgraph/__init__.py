"""LangGraph keeps its checkpoints in Holdfast: ``graph.compile(checkpointer=HoldfastSaver("agents.db"))``."""

from holdfast.extras import needs

with needs("langgraph"):
    from .retention import Retention
    from .saver import HoldfastSaver
    from .serializer import StrictSerializer

__all__ = ["HoldfastSaver", "Retention", "StrictSerializer"]
