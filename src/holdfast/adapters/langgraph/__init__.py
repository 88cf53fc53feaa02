"""A LangGraph checkpointer: ``graph.compile(checkpointer=HoldfastSaver("agents.db"))``."""

from holdfast.extras import needs

with needs("langgraph"):
    from .retention import ThreadRetention
    from .saver import HoldfastSaver
    from .serializer import StrictSerializer

__all__ = ["HoldfastSaver", "StrictSerializer", "ThreadRetention"]
