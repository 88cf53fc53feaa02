"""Benchmark of opening a session with kagent's own client, compared with the client's own cost.

The client requests a session of 1,000 events from Holdfast's server. In turn, the same client receives the same response from
memory, which measures the client alone. Both measure the whole call, from the request to the session with its state.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from .case import Case, Job, Result

GROUP = "kagent"
EVENTS = 1_000
_PLACE = {"app_name": "ns__NS__app", "user_id": "bench@example.test", "session_id": "long"}
_MIN_OPENS = 5


def cases() -> list[Case]:
    """Return one case per engine."""
    return [
        Case(GROUP, f"Holdfast, {engine}", environment="kagent", engine=engine) for engine in ("sqlite", "postgres")
    ]


def run(job: Job) -> Result:
    """Return the time to open a session, the time to read the response from memory, and their ratio."""
    warnings.simplefilter("ignore")
    os.environ |= {"OTEL_SDK_DISABLED": "true"}
    with _served(job) as url:
        return asyncio.run(_measured(url, job.seconds))


async def _measured(url: str, seconds: float) -> Result:
    import httpx
    from kagent.adk._session_service import KAgentSessionService

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        service = KAgentSessionService(client)
        await _fill(service)
        query = {"user_id": _PLACE["user_id"], "order": "asc", "limit": -1}
        answer = (await client.get(f"/api/sessions/{_PLACE['session_id']}", params=query)).content
        kind = {"content-type": "application/json"}
        memory = httpx.MockTransport(lambda request: httpx.Response(200, content=answer, headers=kind))
        async with httpx.AsyncClient(base_url="http://memory", transport=memory) as reader:
            opened, read = await _in_turns(service, KAgentSessionService(reader), seconds)
    return {
        "open_ms": round(statistics.median(opened) * 1e3, 2),
        "parse_ms": round(statistics.median(read) * 1e3, 2),
        "open_ratio": round(statistics.median(opened) / statistics.median(read), 3),
        "answer_bytes": len(answer),
    }


async def _in_turns(ours: Any, memory: Any, seconds: float) -> tuple[list[float], list[float]]:
    took: tuple[list[float], list[float]] = ([], [])
    end = perf_counter() + seconds
    while perf_counter() < end or len(took[0]) < _MIN_OPENS:
        for service, times in zip((ours, memory), took, strict=True):
            before = perf_counter()
            session = await service.get_session(**_PLACE)
            times.append(perf_counter() - before)
            if len(session.events) != EVENTS:
                raise RuntimeError(f"{len(session.events)} events were returned, expected {EVENTS}")
    return took


async def _fill(service: Any) -> None:
    from google.adk.events import Event, EventActions
    from google.genai import types

    session = await service.create_session(**_PLACE)
    for number in range(EVENTS):
        content = types.Content(role="user", parts=[types.Part(text=f"{number} " + "some words of a talk " * 30)])
        actions = EventActions(state_delta={"n": number})
        await service.append_event(session, Event(invocation_id="i", author="user", content=content, actions=actions))


@contextmanager
def _served(job: Job) -> Iterator[str]:
    is_url = job.place.startswith("postgresql:")
    place = ["--database", job.place, "--migrate"] if is_url else ["--data-dir", job.place]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--trust", "127.0.0.1", *place],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        yield next(word for word in words if word.startswith("http://"))
    finally:
        process.terminate()
        process.wait()
