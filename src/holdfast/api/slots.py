"""Slots that all tenants share: so many at once, and no tenant more than its share of them."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from holdfast.errors import Unavailable


class Slots:
    """What may be under way at once."""

    def __init__(self, name: str, most: int, tenant_share: float) -> None:
        self._name, self._most, self._per_tenant = name, most, max(1, int(most * tenant_share))
        self._taken: Counter[str] = Counter()
        self.in_use = 0

    def take(self, tenant: str) -> Slot:
        """One slot, until it is given back.

        Raises:
            Unavailable: all are taken, or this tenant has its share.
        """
        if self.in_use >= self._most:
            raise Unavailable(f"there are {self._name} = {self._most} under way already; come back later")
        if self._taken[tenant] >= self._per_tenant:
            raise Unavailable(
                f"this tenant has {self._per_tenant} of {self._name} = {self._most}, its tenant_share; come back later"
            )
        self._taken[tenant] += 1
        self.in_use += 1
        return Slot(self, tenant)

    def _give_back(self, tenant: str) -> None:
        self.in_use -= 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]


class Slot:
    """One that is taken. Giving it back twice does nothing."""

    __slots__ = ("_slots", "_tenant")

    def __init__(self, slots: Slots, tenant: str) -> None:
        self._slots: Slots | None = slots
        self._tenant = tenant

    def give_back(self) -> None:
        """Let somebody else have it."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._give_back(self._tenant)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.give_back()
