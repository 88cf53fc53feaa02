"""``HoldfastFlowPersistence``: what a flow has come to, and what it waits for."""

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

from ..lazy_handle import Place


class HoldfastFlowPersistence(FlowPersistence):
    """Keeps the states of flows, for ``@persist`` and ``Flow(persistence=...)``.

    Args:
        where: a path, ``sqlite:///path`` or ``postgresql://...``, which is opened when it is first needed; or the handle of a
            tenant, ``hf.tenant("acme")``, which stays yours.
        tenant: whose flows, where ``where`` is an address.
        user: keeps the flows of this user apart from everybody else's in the tenant.
        thread_id: keeps the flows of this conversation apart from those of others.
    """

    persistence_type: str = Field(default="HoldfastFlowPersistence")
    where: str | None = None
    tenant: str = "default"
    user: str | None = None
    thread_id: str = ""
    _place: Place = PrivateAttr()

    def __init__(self, where: str | TenantHandle | None = None, /, **options: Any) -> None:
        given = options.pop("where", None) if where is None else where
        place = Place(given, options.get("tenant", "default"))
        super().__init__(where=place.address, **options)
        self._place = place

    def init_db(self) -> None:
        """Open the database and bring its schema up to date; the first call does it too."""
        self._flows()

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        """Save the state of a flow after a method. It is durable when this returns."""
        state = _state(state_data)
        self._flows().save(flow_uuid, method=method_name, state=state, thread_id=self.thread_id, user=self.user)

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """The state that was saved last, whichever method it came after."""
        found = self._flows().find(flow_uuid, thread_id=self.thread_id, user=self.user)
        return None if found is None else found.state

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """Save the state of a flow and what it asks a person, both or neither."""
        self._flows().save(
            flow_uuid,
            method=context.method_name,
            state=_state(state_data),
            feedback=_plain(context.to_dict()),
            thread_id=self.thread_id,
            user=self.user,
        )

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """The state in which a flow asked something, and what it asked; ``None`` if it waits for nobody."""
        found = self._flows().pending(flow_uuid, thread_id=self.thread_id, user=self.user)
        return None if found is None else (found.state, PendingFeedbackContext.from_dict(found.context))

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """The flow goes on. Its states stay."""
        self._flows().clear_pending(flow_uuid, thread_id=self.thread_id, user=self.user)

    def close(self) -> None:
        """Let go of the database, if it was opened here."""
        self._place.close()

    def _flows(self) -> Flows:
        return self._place.handle.flows


# A flow that is restored from a checkpoint looks its persistence up by this name.
_persistence_registry[HoldfastFlowPersistence.__name__] = HoldfastFlowPersistence


def _state(state: object) -> dict[str, Any]:
    if not isinstance(state, (BaseModel, Mapping)):
        raise InvalidInput(f"the state of a flow is a dictionary or a pydantic model, not {type(state).__name__}")
    found: dict[str, Any] = _plain(state)
    return found


def _plain(value: Any) -> Any:
    """A value as JSON, by the rules CrewAI's own persistence has: what JSON does not know is its text."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, BaseModel):
        return _plain(_dumped(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, date) else str(value)


def _dumped(model: BaseModel) -> dict[str, Any]:
    try:
        return model.model_dump(mode="json")
    except Exception:  # a field of a type that pydantic cannot write as JSON; its text will do
        return model.model_dump(mode="python")
