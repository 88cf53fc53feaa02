"""``holdfast worker``: claim runs and drive them."""

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
    help="A Loop that drives the runs, or a function that takes a tenant handle and a run and returns a Loop.",
)
@click.option(
    "--concurrency",
    default=8,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Maximum number of runs at once.",
)
@click.option("--tenant", "tenants", multiple=True, help="Only runs of this tenant; repeatable.")
@click.option("--agent", "agents", multiple=True, help="Only runs of this agent; repeatable.")
@click.option(
    "--lease",
    "lease_s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0.1, 900),
    help="Seconds without a heartbeat until other workers may take over its runs.",
)
@click.option(
    "--grace",
    "grace_s",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds that runs have to finish their current iteration when the worker is stopped.",
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
    """Claim runs and drive them until stopped.

    When stopped (Ctrl-C or SIGTERM), the worker claims no more runs and releases those it holds: each run after its current
    iteration, or when the grace period is over. A second signal stops it at once.
    """
    import asyncio  # imported here because the import takes longer than most commands take to run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    options: dict[str, Any] = {
        "concurrency": concurrency,
        "tenants": tenants or None,
        "agents": agents or None,
        "ttl_ms": round(lease_s * 1_000),
        "grace_s": grace_s,
    }
    database = with_pool(database, pool_max_connections, pool_min_connections)
    asyncio.run(_work(database, packs, _load(handler), options))


async def _work(database: str, packs: str | None, handler: Any, options: dict[str, Any]) -> None:
    import asyncio

    from holdfast.loop.worker import Worker

    async with open_async(database, packs) as hf:
        worker = Worker(hf, handler, **options)
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, worker.stop)
        print_line(f"Worker {worker.holder} is ready  (database: {describe(database)}; stop with Ctrl-C)")
        await worker.work()


def _load(handler: str) -> Any:
    """Import ``module:name``, with the current directory on the path."""
    module, colon, name = handler.partition(":")
    if not (module and colon and name):
        raise click.BadParameter(f"{handler!r} is not of the form MODULE:NAME", param_hint="--handler")
    sys.path.insert(0, os.getcwd())
    try:
        target: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
            raise
        raise click.BadParameter(f"module {module!r} does not exist", param_hint="--handler") from None
    for part in name.split("."):
        if not hasattr(target, part):
            raise click.BadParameter(f"module {module!r} has no attribute {name!r}", param_hint="--handler")
        target = getattr(target, part)
    return target
