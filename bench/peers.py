"""The other systems, set up as their documentation recommends, on SQLite and PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from .workload import AsyncAppend, Message

APP, USER = "bench", "user"


def sqlalchemy_url(place: str) -> str:
    """Return the SQLAlchemy URL of a PostgreSQL database, or of a SQLite file in a directory."""
    if place.startswith("postgresql:"):
        return place.replace("postgresql:", "postgresql+asyncpg:", 1)
    return f"sqlite+aiosqlite:///{place}/agents.db"


@asynccontextmanager
async def sqlalchemy_sessions(url: str, count: int) -> AsyncIterator[list[Any]]:
    """Yield sessions of the OpenAI Agents SDK on one SQLAlchemy engine, with their tables created."""
    from agents.extensions.memory import SQLAlchemySession
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url)
    first = SQLAlchemySession("session-0", engine=engine, create_tables=True)
    await first.get_items(limit=1)
    yield [first, *(SQLAlchemySession(f"session-{place}", engine=engine) for place in range(1, count))]
    await engine.dispose()


async def adk_append(service: Any, writers: int) -> AsyncAppend:
    """Return an append function for an ADK session service, with one session per writer."""
    # ADK logs a warning that it is experimental for each object.
    logging.disable(logging.WARNING)
    sessions = [await adk_session(service, writer) for writer in range(writers)]
    return lambda writer, message: service.append_event(sessions[writer], adk_event(message))


async def adk_session(service: Any, place: int) -> Any:
    """Create a session."""
    return await service.create_session(app_name=APP, user_id=USER, session_id=f"session-{place}")


def adk_event(message: Message) -> Any:
    """Return a message as an ADK event."""
    from google.adk.events.event import Event
    from google.genai import types

    content = types.Content(role=message["role"], parts=[types.Part(text=message["content"])])
    return Event(author=message["role"], invocation_id="invocation", content=content)
