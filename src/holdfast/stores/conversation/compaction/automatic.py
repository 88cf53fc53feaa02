"""Automatic compaction: what happens when an append has made a session due."""

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
    """Compact a session that an append has made due, if this process knows how. Never raises what went wrong: it is logged."""
    here = attachments.of(scope)
    if engine.joined or not here.may_concern(scope, session_id) or not here.begin(scope, session_id):
        return
    try:
        await _compact(engine, scope, session_id, here)
    except Exception as error:
        await _failed(engine, scope, session_id, error)
    finally:
        here.end(scope, session_id)


async def _compact(engine: Engine, scope: Scope, session_id: str, here: Attachments) -> None:
    params = scope.params(session_id=session_id)
    attached = await engine.read(lambda connection: attachments.find(connection, params))
    attachment = None if attached is None else here.find(scope, attached)
    if attached is not None and attachment is not None:
        await AsyncCompactions(engine, scope).compact(
            session_id, attached.policy, summarize=attachment.summarize, strategy=attachment.strategy
        )


async def _failed(engine: Engine, scope: Scope, session_id: str, error: Exception) -> None:
    """Say so, and let the session grow a little before the next try."""
    log = _log()
    log.warning("session %s was not compacted by itself: %s: %s", session_id, type(error).__name__, error)
    params = scope.params(session_id=session_id)
    try:
        await engine.write(lambda connection: queries.postpone.all(connection, params))
    except Exception as second:
        log.warning("and its next compaction was not put off: %s: %s", type(second).__name__, second)


def _log() -> Logger:
    import logging  # nobody else here needs it, and it takes its time to load

    return logging.getLogger("holdfast")
