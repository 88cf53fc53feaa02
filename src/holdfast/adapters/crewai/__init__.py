"""CrewAI keeps its flows, its memories and its checkpoints in Holdfast.

install("agents.db")                                        everything that names no storage of its own
Flow(persistence=HoldfastFlowPersistence("agents.db"))      the state of one flow
Memory(storage=HoldfastMemory("agents.db"))                 one memory
CheckpointConfig(provider=HoldfastProvider("agents.db"))    the checkpoints of one crew
"""

from holdfast.extras import needs

with needs("crewai"):
    from .defaults import install, uninstall
    from .flows import HoldfastFlowPersistence
    from .memories import HoldfastMemory
    from .provider import HoldfastProvider

__all__ = ["HoldfastFlowPersistence", "HoldfastMemory", "HoldfastProvider", "install", "uninstall"]
