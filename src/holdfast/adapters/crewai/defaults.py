"""Holdfast as the place for whatever names none of its own, in the whole process."""

from __future__ import annotations

from crewai.flow.persistence.factory import set_flow_persistence_factory
from crewai.memory.storage.factory import set_memory_storage_factory

from holdfast import TenantHandle

from .flows import HoldfastFlowPersistence
from .memories import HoldfastMemory


def install(
    where: str | TenantHandle, *, tenant: str = "default", user: str | None = None, thread_id: str = ""
) -> None:
    """From now on flows and memories that name no storage of their own are kept here. Call it once, at the start.

    Raises:
        InvalidInput: ``where`` is neither an address nor the handle of a tenant.
    """
    flows = HoldfastFlowPersistence(where, tenant=tenant, user=user, thread_id=thread_id)
    memory = HoldfastMemory(where, tenant=tenant, user=user, thread_id=thread_id)
    set_flow_persistence_factory(lambda: flows)
    # A spec that is not CrewAI's default was written by somebody who wanted something else.
    set_memory_storage_factory(lambda spec: memory if spec == "lancedb" else None)


def uninstall() -> None:
    """What names no storage of its own is kept where CrewAI keeps it."""
    set_flow_persistence_factory(None)
    set_memory_storage_factory(None)
