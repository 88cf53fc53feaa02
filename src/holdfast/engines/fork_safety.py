"""Engines across a fork: the child has the parent's locks and connections but none of its threads, so it may use none of them."""

from __future__ import annotations

import os
from typing import Any, NoReturn
from weakref import WeakSet

from ..errors import Closed

_open: WeakSet[Any] = WeakSet()


def opened(engine: Any) -> None:
    """Note that an engine has connections: in a child of this process it will refuse every call."""
    _open.add(engine)


def closed(engine: Any) -> None:
    """Note that it has none any more."""
    _open.discard(engine)


def _refuse_in_child() -> None:
    # The methods themselves are replaced: no call has to ask in which process it is, and none touches a lock of the parent's.
    for engine in [*_open]:
        for name in ("open", "read", "write", "grouped", "exclusive"):
            setattr(engine, name, _refuse)
        engine.close = _leave_alone
    _open.clear()


async def _refuse(*arguments: Any) -> NoReturn:
    raise Closed("this Holdfast was opened before a fork: close it before you fork, and open one in each process")


async def _leave_alone() -> None:
    """What is open belongs to the parent."""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_in_child)
