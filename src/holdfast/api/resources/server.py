"""The server itself: liveness, readiness, metrics and the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

import holdfast
from holdfast.errors import HoldfastError, Unavailable
from holdfast.retention_worker import overdue_erasures

from ..metrics import TEXT_TYPE
from ..operations import operation
from ..responses import PlainText
from ..schemas import Health, Index
from ..state import Service


@operation("GET", "/", need="open")
async def index(service: Service) -> Index:
    """Show the name and version of the server, and links to its endpoints."""
    links = {"openapi": "/openapi.json", "health": "/healthz", "readiness": "/readyz", "metrics": "/metrics"}
    return Index("holdfast", holdfast.__version__, links)


@operation("GET", "/healthz", need="open")
async def health(service: Service) -> Health:
    """Whether the process is alive. The database is not queried."""
    return Health("ok")


@operation("GET", "/readyz", raises=[Unavailable], need="open")
async def readiness(service: Service) -> Health:
    """Whether requests can be answered: the database answers, and is still the one that was opened.

    The response also contains the number of overdue erasures. They do not affect readiness, but an operator must act.
    """
    await service.check_ready()
    return Health("ready", await overdue_erasures(service.holdfast, service.clock.now_us()))


@operation("GET", "/metrics", need="watch")
async def metrics(service: Service) -> PlainText:
    """Request metrics in the text format of Prometheus.

    While the database does not answer, a key that was verified before is accepted.
    """
    overdue: int | None = None
    try:
        await service.check_ready()
        overdue = await overdue_erasures(service.holdfast, service.clock.now_us())
        is_ready = True
    except HoldfastError:
        is_ready = False
    text = service.metrics.text(is_ready=is_ready, streams=service.streams.in_use, overdue_erasures=overdue)
    return PlainText(text, media_type=TEXT_TYPE, headers={"cache-control": "no-store"})


@operation("GET", "/openapi.json", need="open")
async def openapi(service: Service) -> dict[str, Any]:
    """This OpenAPI document."""
    document: dict[str, Any] = msgspec.json.decode(await asyncio.to_thread(service.document))
    return document
