"""A database that the tests of a module share, because opening one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, Limits, SeededIds, TenantHandle

_NUMBERS = count(1)


class Place:
    """Tenants of one test."""

    def __init__(self, opened: Holdfast) -> None:
        self._opened, self._number = opened, next(_NUMBERS)

    def tenant(self, name: str) -> TenantHandle:
        """A tenant of this name that no other test has."""
        return self._opened.tenant(f"{name} {self._number}")


def fixtures(limits: Limits) -> tuple[Any, Any, Any, Any]:
    """What a module names ``clock``, ``opened``, ``hf`` and ``acme``."""

    @pytest.fixture(scope="module")
    def clock() -> FixedClock:
        return FixedClock()

    @pytest.fixture(scope="module")
    def opened(clock: FixedClock) -> Iterator[Holdfast]:
        with Holdfast(":memory:", clock=clock, ids=SeededIds(), limits=limits) as opened:
            yield opened

    @pytest.fixture
    def hf(opened: Holdfast) -> Place:
        return Place(opened)

    @pytest.fixture
    def acme(hf: Place) -> TenantHandle:
        return hf.tenant("acme")

    return clock, opened, hf, acme
