"""``holdfast worker``."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from typing import Any

import click

from .database import database_option, describe, open_async, packs_option, pool_options, with_pool
from .output import print_line


@click.command()
@database_option
@packs_option
@pool_options
@click.option(
    "--handler",
    required=True,
    metavar="MODULE:NAME",
    help="What to drive runs with: a Loop, or a function from a tenant's handle and a run to one.",
)
@click.option("--concurrency", default=8, show_default=True, type=click.IntRange(1, 10_000), help="Runs at once.")
@click.option("--tenant", "tenants", multiple=True, help="Only runs of this tenant; may be said several times.")
@click.option("--agent", "agents", multiple=True, help="Only runs of this agent; may be said several times.")
@click.option(
    "--lease",
    "lease_s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0.1, 900),
    help="Seconds after its last sign of life until others may take over what it holds.",
)
@click.option(
    "--grace",
    "grace_s",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds that runs get to come to the end of their iteration when it is told to stop.",
)
def worker(
    database: str,
    packs: str | None,
    pool_max_connections: int | None,
    pool_min_connections: int | None,
    handler: str,
    concurrency: int,
    tenants: tuple[str, ...],
    agents: tuple[str, ...],
    lease_s: float,
    grace_s: float,
) -> None:
    """Claim runs as they come and drive them, until stopped.

    Told to stop (Ctrl-C or SIGTERM), it claims nothing more and hands over what it holds: each run after the iteration it is in,
    or where it is when the grace is over. Told again, at once.
    """
    import asyncio  # here and not above: it takes longer to import than most commands take to run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    options: dict[str, Any] = {
        "concurrency": concurrency,
        "tenants": tenants or None,
        "agents": agents or None,
        "ttl_ms": round(lease_s * 1_000),
        "grace_s": grace_s,
    }
    database = with_pool(database, pool_max_connections, pool_min_connections)
    asyncio.run(_work(database, packs, _named(handler), options))


async def _work(database: str, packs: str | None, handler: Any, options: dict[str, Any]) -> None:
    import asyncio

    from holdfast.loop.worker import Worker

    async with open_async(database, packs) as hf:
        made = Worker(hf, handler, **options)
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, made.stop)
        print_line(f"Holdfast's worker {made.holder} is ready  (database: {describe(database)}; stop with Ctrl-C)")
        await made.work()


def _named(handler: str) -> Any:
    """What ``module:name`` means, seen from the folder that is here."""
    module, colon, name = handler.partition(":")
    if not (module and colon and name):
        raise click.BadParameter(f"{handler!r} is not MODULE:NAME", param_hint="--handler")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
            raise
        raise click.BadParameter(f"there is no module {module!r}", param_hint="--handler") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise click.BadParameter(f"{module} has no {name!r}", param_hint="--handler")
        found = getattr(found, part)
    return found
