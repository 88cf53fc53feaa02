"""Automatic compaction, run when an append has made a session due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core.scope import Scope
from ....engines.protocol import Engine
from . import attachments
from .attachments import Attachments
from .compactions import AsyncCompactions
from .events import queries

if TYPE_CHECKING:
    from logging import Logger


async def compact_if_attached(engine: Engine, scope: Scope, session_id: str) -> None:
    """Compact a session that an append has made due, if this process has functions attached for it. Log errors, never raise."""
    registry = attachments.of(scope)
    if engine.joined or not registry.may_apply_to(scope, session_id) or not registry.begin(scope, session_id):
        return
    try:
        await _compact(engine, scope, session_id, registry)
    except Exception as error:
        await _log_and_postpone(engine, scope, session_id, error)
    finally:
        registry.end(scope, session_id)


async def _compact(engine: Engine, scope: Scope, session_id: str, registry: Attachments) -> None:
    params = scope.params(session_id=session_id)
    attached = await engine.read(lambda connection: attachments.find(connection, params))
    functions = None if attached is None else registry.find(scope, attached)
    if attached is not None and functions is not None:
        await AsyncCompactions(engine, scope).compact(
            session_id, attached.policy, summarize=functions.summarize, strategy=functions.strategy
        )


async def _log_and_postpone(engine: Engine, scope: Scope, session_id: str, error: Exception) -> None:
    """Log the error, and let the session grow by a sixteenth of its threshold before the next attempt."""
    log = _log()
    log.warning("automatic compaction of session %s failed: %s: %s", session_id, type(error).__name__, error)
    params = scope.params(session_id=session_id)
    try:
        await engine.write(lambda connection: queries.postpone.all(connection, params))
    except Exception as second:
        log.warning(
            "postponing the next compaction of session %s failed: %s: %s", session_id, type(second).__name__, second
        )


def _log() -> Logger:
    import logging  # imported only when needed: it is slow to load

    return logging.getLogger("holdfast")
