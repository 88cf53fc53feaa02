"""Makes Holdfast the default storage of CrewAI in this process."""

from __future__ import annotations

from crewai.flow.persistence.factory import set_flow_persistence_factory
from crewai.memory.storage.factory import set_memory_storage_factory

from holdfast import TenantHandle

from .flows import HoldfastFlowPersistence
from .memories import HoldfastMemory


def install(
    where: str | TenantHandle, *, tenant: str = "default", user: str | None = None, thread_id: str = ""
) -> None:
    """Store flows and memories that configure no storage of their own in Holdfast. Call it once, at startup.

    Raises:
        InvalidInput: ``where`` is neither an address nor a tenant handle.
    """
    flows = HoldfastFlowPersistence(where, tenant=tenant, user=user, thread_id=thread_id)
    memory = HoldfastMemory(where, tenant=tenant, user=user, thread_id=thread_id)
    set_flow_persistence_factory(lambda: flows)
    # A spec other than CrewAI's default was configured explicitly and is left alone.
    set_memory_storage_factory(lambda spec: memory if spec == "lancedb" else None)


def uninstall() -> None:
    """Restore CrewAI's own default storage."""
    set_flow_persistence_factory(None)
    set_memory_storage_factory(None)
