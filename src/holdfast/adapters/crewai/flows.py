"""``HoldfastFlowPersistence``: stores the states of flows and their pending feedback requests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.persistence.base import FlowPersistence, _persistence_registry
from pydantic import BaseModel, Field, PrivateAttr

from holdfast import TenantHandle
from holdfast.errors import InvalidInput
from holdfast.types import Flows

from ..lazy_handle import LazyHandle


class HoldfastFlowPersistence(FlowPersistence):
    """Stores the states of flows, for ``@persist`` and ``Flow(persistence=...)``.

    Args:
        where: a path, ``sqlite:///path`` or ``postgresql://...``, which is opened on first use; or the handle of a tenant,
            ``hf.tenant("acme")``, which you close yourself.
        tenant: the tenant, if ``where`` is an address.
        user: separates the flows of this user from those of other users of the tenant.
        thread_id: separates the flows of this conversation from those of other conversations.
    """

    persistence_type: str = Field(default="HoldfastFlowPersistence")
    where: str | None = None
    tenant: str = "default"
    user: str | None = None
    thread_id: str = ""
    _lazy: LazyHandle = PrivateAttr()

    def __init__(self, where: str | TenantHandle | None = None, /, **options: Any) -> None:
        database = options.pop("where", None) if where is None else where
        lazy = LazyHandle(database, options.get("tenant", "default"))
        super().__init__(where=lazy.address, **options)
        self._lazy = lazy

    def init_db(self) -> None:
        """Open the database and migrate its schema; otherwise the first call does so."""
        self._flows()

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        """Save the state of a flow after a method. It is durable when this returns."""
        state = _state(state_data)
        self._flows().save(flow_uuid, method=method_name, state=state, thread_id=self.thread_id, user=self.user)

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Return the most recently saved state, after any method."""
        flow = self._flows().find(flow_uuid, thread_id=self.thread_id, user=self.user)
        return None if flow is None else flow.state

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """Save the state of a flow and its feedback request, in one transaction."""
        self._flows().save(
            flow_uuid,
            method=context.method_name,
            state=_state(state_data),
            feedback=_plain(context.to_dict()),
            thread_id=self.thread_id,
            user=self.user,
        )

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """Return the state and the feedback request of a waiting flow; ``None`` if the flow is not waiting."""
        pending = self._flows().pending(flow_uuid, thread_id=self.thread_id, user=self.user)
        return None if pending is None else (pending.state, PendingFeedbackContext.from_dict(pending.context))

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Delete the feedback request of a flow that is resumed. Its states are kept."""
        self._flows().clear_pending(flow_uuid, thread_id=self.thread_id, user=self.user)

    def close(self) -> None:
        """Close the database, if it was opened here."""
        self._lazy.close()

    def _flows(self) -> Flows:
        return self._lazy.handle.flows


# A flow that is restored from a checkpoint finds its persistence class by this name.
_persistence_registry[HoldfastFlowPersistence.__name__] = HoldfastFlowPersistence


def _state(state: object) -> dict[str, Any]:
    if not isinstance(state, (BaseModel, Mapping)):
        raise InvalidInput(
            f"the state of a flow must be a dictionary or a pydantic model, not {type(state).__name__}", field="state"
        )
    plain: dict[str, Any] = _plain(state)
    return plain


def _plain(value: Any) -> Any:
    """Convert a value to JSON types like CrewAI's own persistence: other types become their text."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, BaseModel):
        return _plain(_dump(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, date) else str(value)


def _dump(model: BaseModel) -> dict[str, Any]:
    try:
        return model.model_dump(mode="json")
    except Exception:  # pydantic cannot convert the type of a field to JSON; its text is used instead
        return model.model_dump(mode="python")
