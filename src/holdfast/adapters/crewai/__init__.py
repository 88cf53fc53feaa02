"""Storage for CrewAI: flows, memories and checkpoints.

install("agents.db")                                        the default storage of flows and memories
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
