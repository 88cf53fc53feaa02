"""``holdfast retention``: what is kept, for how long, what must be kept, and tidying up."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import click

from holdfast import Holdfast, RetentionPolicy, address
from holdfast.errors import HoldfastError, Unavailable
from holdfast.types import Hold, SweepResult

from .database import database_option, describe, open_async, open_there, packs_option, redis_options, tenant_option
from .logs import show_deletions
from .output import json_option, print_json, print_line, print_table

DAY_S = 86_400
MAX_DAYS = 24_000
"""Days that can be asked for: as many seconds as can be kept."""
REASONS = ("per_run_cap", "grace_expired", "per_tenant_cap")
WHY = {
    "per_run_cap": "more than a run keeps",
    "grace_expired": "the run ended long enough ago",
    "per_tenant_cap": "over the tenant's quota",
}


@click.group()
def retention() -> None:
    """Say what is kept and for how long, hold what must be kept, and tidy up."""


@retention.command()
@tenant_option
@packs_option
@json_option
def plan(database: str, tenant: str, packs: str | None, as_json: bool) -> None:
    """Show what a sweep would remove now. Nothing is changed."""
    with open_there(database, packs) as hf:
        there = hf.tenant(tenant)
        found, policy = there.retention.plan(), there.retention.policy()
    if as_json:
        print_json({"plan": found, "policy": policy})
        return
    print_table(f"A sweep of {tenant} would remove", ["snapshots", "bytes", "why"], _rows(found))
    for line in _about(found, policy):
        print_line(line)


@retention.command()
@database_option
@click.option("--tenant", "tenants", metavar="NAME", multiple=True, help="Only this tenant; may be said several times.")
@packs_option
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0, min_open=True),
    help="Go on, one round about every so many seconds, until stopped.",
)
@redis_options
@click.option("--only-snapshots", is_flag=True, help="Forget only snapshots, and leave the rest of a tenant to others.")
@click.option(
    "--log", "log_file", metavar="FILE", help="Where a line of JSON for each removal goes; otherwise to stderr."
)
@json_option
def run(
    database: str,
    tenants: Sequence[str],
    packs: str | None,
    every_s: float | None,
    redis: str | None,
    stream: str,
    event: str,
    only_snapshots: bool,
    log_file: str | None,
    as_json: bool,
) -> None:
    """Remove what must go: once for every tenant, or again and again."""
    import asyncio  # here and not above: it takes longer to import than most commands take to run

    address.check_there(database)
    options = {"url": redis, "stream": stream, "event": event, "whole": not only_snapshots}
    show_deletions(log_file)
    if every_s is not None:
        asyncio.run(_work(database, packs, tenants or None, every_s, options))
        return
    done = asyncio.run(_once(database, packs, tenants or None, options))
    if as_json:
        print_json({"round": done})
    else:
        from holdfast.retention_worker import describe as in_words

        print_line(f"{in_words(done)}.")
    if done.failed:
        raise click.exceptions.Exit(1)


@retention.command()
@tenant_option
@click.option("--run", "run_id", metavar="ID", help="Of one run.")
@click.option("--per-run", type=click.IntRange(1), help="Keep so many snapshots of each run, or of this one.")
@click.option("--grace-days", type=click.FloatRange(0), help="Keep them for so long after a run has ended.")
@click.option(
    "--keep-days", type=click.FloatRange(0), help="With --run: keep them for longer than that, 90 days at most."
)
@click.option("--quota-mib", type=click.IntRange(0), help="MiB that all snapshots of the tenant may take.")
@click.option("--clear", is_flag=True, help="First take back what was set.")
@json_option
def policy(
    database: str,
    tenant: str,
    run_id: str | None,
    per_run: int | None,
    grace_days: float | None,
    keep_days: float | None,
    quota_mib: int | None,
    clear: bool,
    as_json: bool,
) -> None:
    """Show what holds for a tenant or a run, or change it."""
    if keep_days is not None and run_id is None:
        raise click.UsageError("--keep-days is for one run: say which with --run")
    grace_s, keep_s = _seconds(grace_days), _seconds(keep_days)
    with open_there(database) as hf:
        there = hf.tenant(tenant).retention
        if clear:
            there.clear_policy(run_id=run_id)
        if per_run is not None or grace_s is not None:
            there.set_policy(per_run=per_run, grace_s=grace_s, run_id=run_id)
        if keep_s is not None and run_id is not None:
            there.keep_snapshots_for(run_id, seconds=keep_s)
        if quota_mib is not None or (clear and run_id is None and _is_known(hf, tenant)):
            hf.tenants.set_quota(tenant, snapshot_quota_mib=quota_mib)
        found = there.policy(run_id=run_id)
    if as_json:
        print_json({"policy": found})
        return
    whose = tenant if run_id is None else f"run {run_id}"
    print_line(f"{whose} keeps {found.per_run} snapshots of a run, {_days(found.grace_s)} after its end,")
    print_line(f"and {found.quota_mib:,} MiB in all.")


@retention.command()
@tenant_option
@click.option("--reason", required=True, help="Why; whoever asks later will read it.")
@click.option("--run", "run_id", metavar="ID", help="Only what belongs to this run.")
@click.option("--session", "session_id", metavar="ID", help="Only what belongs to this session.")
@click.option("--by", "placed_by", metavar="NAME", help="Who wants it so.")
@json_option
def hold(
    database: str,
    tenant: str,
    reason: str,
    run_id: str | None,
    session_id: str | None,
    placed_by: str | None,
    as_json: bool,
) -> None:
    """Keep all snapshots of a tenant, a session or a run, whatever the rules say, until the hold is released."""
    with open_there(database) as hf:
        placed = hf.tenant(tenant).retention.hold(reason, run_id=run_id, session_id=session_id, placed_by=placed_by)
    if as_json:
        print_json({"hold": placed})
        return
    print_line(f"Hold {placed.id} keeps {_subject(placed, tenant)}.")


@retention.command()
@tenant_option
@click.option("--hold", "hold_id", metavar="ID", required=True, help="A hold, by its id.")
@click.option("--reason", default="", help="Why it is no longer needed.")
@json_option
def release(database: str, tenant: str, hold_id: str, reason: str, as_json: bool) -> None:
    """End a hold. What it kept goes when the rules say so."""
    with open_there(database) as hf:
        released = hf.tenant(tenant).retention.release(hold_id, reason=reason)
    if as_json:
        print_json({"hold": released})
        return
    print_line(f"Hold {released.id} no longer keeps {_subject(released, tenant)}.")


@retention.command()
@tenant_option
@json_option
def holds(database: str, tenant: str, as_json: bool) -> None:
    """List the holds there are."""
    with open_there(database) as hf:
        found = list(hf.tenant(tenant).retention.holds())
    if as_json:
        print_json({"holds": found})
        return
    rows = [[h.id, _subject(h, tenant), h.reason, h.placed_by, f"{h.created_at:%Y-%m-%d %H:%M}"] for h in found]
    print_table(f"Holds of {tenant}", ["id", "keeps", "reason", "by", "since"], rows)


async def _once(database: str, packs: str | None, tenants: Sequence[str] | None, options: dict[str, Any]) -> Any:
    from holdfast.erasure import ErasureConsumer
    from holdfast.retention_worker import RetentionWorker

    async with open_async(database, packs) as hf:
        worker = RetentionWorker(hf, tenants=tenants)
        consumer = ErasureConsumer(hf, options.pop("url"), **options)
        try:
            await consumer.receive()
        except Exception as error:
            await worker.round()  # a stream that cannot be read keeps nothing else from going
            if isinstance(error, HoldfastError):
                raise
            raise Unavailable(f"the rest was done, but the stream cannot be read: {error}") from error
        finally:
            await consumer.close()
        return await worker.round()


async def _work(
    database: str, packs: str | None, tenants: Sequence[str] | None, every_s: float, options: dict[str, Any]
) -> None:
    import asyncio

    from holdfast.erasure import ErasureConsumer
    from holdfast.retention_worker import RetentionWorker

    async with open_async(database, packs) as hf:
        worker = RetentionWorker(hf, every_s=every_s, tenants=tenants)
        consumer = ErasureConsumer(hf, options.pop("url"), **options)

        def stop() -> None:
            worker.stop()
            consumer.stop()

        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stop)
        print_line(f"Holdfast's retention {worker.holder} is ready  (database: {describe(database)}; stop with Ctrl-C)")
        await asyncio.gather(worker.work(), consumer.work())


def _rows(found: SweepResult) -> list[list[str]]:
    tallies = [(getattr(found, reason), WHY[reason]) for reason in REASONS]
    rows = [[f"{tally.count:,}", f"{tally.size_bytes:,}", why] for tally, why in tallies if tally.count]
    return rows or [["0", "0", "everything may stay"]]


def _about(found: SweepResult, policy: RetentionPolicy) -> list[str]:
    lines = []
    if found.used_bytes is not None:
        lines.append(f"What is left takes {found.used_bytes:,} bytes of {policy.quota_mib:,} MiB.")
    if found.over_bytes:
        lines.append(f"That is {found.over_bytes:,} bytes over the quota: the newest snapshot of a run stays.")
    if found.held_runs:
        lines.append(f"{found.held_runs:,} runs are held, and keep all they have.")
    return lines


def _subject(hold: Hold, tenant: str) -> str:
    if hold.run_id is not None:
        return f"run {hold.run_id}"
    return f"all of {tenant}" if hold.session_id is None else f"session {hold.session_id}"


def _is_known(hf: Holdfast, tenant: str) -> bool:
    from holdfast.errors import NotFound

    try:
        hf.tenants.get(tenant)
    except NotFound:
        return False
    return True


def _seconds(days: float | None) -> int | None:
    if days is None:
        return None
    if not days <= MAX_DAYS:
        raise click.UsageError(f"that is no number of days up to {MAX_DAYS:,}: {days}")
    return round(days * DAY_S)


def _days(seconds: int) -> str:
    return f"{seconds / DAY_S:g} days"
