"""Slots that all tenants share: a maximum in total, and a share of it for each tenant."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from holdfast.errors import Unavailable


class Slots:
    """A limited number of concurrent operations."""

    def __init__(self, name: str, maximum: int, tenant_share: float) -> None:
        self._name, self._maximum, self._per_tenant = name, maximum, max(1, int(maximum * tenant_share))
        self._taken: Counter[str] = Counter()
        self.in_use = 0

    def take(self, tenant: str) -> TakenSlot:
        """Take a slot until it is released.

        Raises:
            Unavailable: all slots are taken, or this tenant has used up its share.
            Unavailable: all are taken, or this tenant has its share.
        """
        if self.in_use >= self._maximum:
            raise Unavailable(f"the limit {self._name} = {self._maximum} is reached; retry later")
        if self._taken[tenant] >= self._per_tenant:
            raise Unavailable(
                f"this tenant uses {self._per_tenant} of {self._name} = {self._maximum}, its tenant_share; retry later"
            )
        self._taken[tenant] += 1
        self.in_use += 1
        return TakenSlot(self, tenant)

    def _release(self, tenant: str) -> None:
        self.in_use -= 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]


class TakenSlot:
    """A slot in use. Releasing it twice has no effect."""

    __slots__ = ("_slots", "_tenant")

    def __init__(self, slots: Slots, tenant: str) -> None:
        self._slots: Slots | None = slots
        self._tenant = tenant

    def release(self) -> None:
        """Release the slot."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._release(self._tenant)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
