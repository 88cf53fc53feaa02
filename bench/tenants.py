"""Benchmark of concurrent appends to many tenants, compared with appends to one tenant."""

from __future__ import annotations

import asyncio
from pathlib import Path

from . import append_postgres, append_sqlite
from .case import Case, Job, Result
from .workload import write_from_many

GROUPS = ("tenants-sqlite", "tenants-postgres")
WRITERS = (16, 64)
ONE, MANY = 1, 50


def cases() -> list[Case]:
    """Return the cases: the same writers in one tenant and in many."""
    return [
        Case(
            group,
            "Holdfast",
            engine="postgres" if group == "tenants-postgres" else "sqlite",
            params={"writers": writers, "tenants": tenants},
        )
        for group in GROUPS
        for writers in WRITERS
        for tenants in (ONE, MANY)
    ]


def run(job: Job) -> Result:
    """Append for the given time, then verify that every acknowledged message is stored."""
    return asyncio.run(_run(job))


async def _run(job: Job) -> Result:
    from holdfast import AsyncHoldfast

    on_postgres = job.group == "tenants-postgres"
    place = job.place if on_postgres else str(Path(job.place) / "agents.db")
    writers = job.params["writers"]
    async with AsyncHoldfast(place, auto_migrate=True) as hf:
        tenants = [hf.tenant(f"tenant-{writer % job.params['tenants']}") for writer in range(writers)]
        sessions = [(await tenant.sessions.create()).id for tenant in tenants]
        result = await write_from_many(
            job.seconds,
            lambda writer, message: tenants[writer].messages.append(
                sessions[writer], role=message["role"], content=message["content"]
            ),
            writers,
        )
    saved = await append_postgres.stored_in(place) if on_postgres else append_sqlite.stored_in(place)
    if saved != result["appended"]:
        raise RuntimeError(f"{result['appended']} messages were acknowledged, but {saved} are stored")
    return result
