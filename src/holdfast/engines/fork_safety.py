"""Disable engines in a forked child, which inherits the parent's locks and connections but none of its threads."""

from __future__ import annotations

import os
from typing import Any, NoReturn
from weakref import WeakSet

from ..errors import Closed

_open: WeakSet[Any] = WeakSet()


def register(engine: Any) -> None:
    """Record that an engine has open connections; in a forked child it will refuse every call."""
    _open.add(engine)


def unregister(engine: Any) -> None:
    """Record that an engine has closed its connections."""
    _open.discard(engine)


def _refuse_in_child() -> None:
    # Replacing the methods saves a process id check in every call, and no call touches a lock inherited from the parent.
    for engine in [*_open]:
        for name in ("open", "read", "write", "grouped", "exclusive"):
            setattr(engine, name, _refuse)
        engine.close = _keep_open
    _open.clear()


async def _refuse(*arguments: Any) -> NoReturn:
    message = "this Holdfast was opened before a fork: close it before you fork, and open one in each process"
    raise Closed(message, reason="forked")


async def _keep_open() -> None:
    """Do nothing: the open connections belong to the parent."""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_in_child)
