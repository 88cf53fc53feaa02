"""``holdfast retention``: retention policies, holds, sweeps and erasures."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import click

from holdfast import Holdfast, RetentionPolicy, address
from holdfast.errors import HoldfastError, Unavailable
from holdfast.types import Hold, SweepResult

from .database import database_option, describe, open_async, open_existing, packs_option, redis_options, tenant_option
from .logs import show_deletions
from .output import json_option, print_json, print_line, print_table

DAY_S = 86_400
MAX_DAYS = 24_000
"""Maximum number of days; in seconds, it still fits the column that stores it."""
REASONS = ("per_run_cap", "grace_expired", "per_tenant_cap")
WHY = {
    "per_run_cap": "exceeds the number per run",
    "grace_expired": "the grace period after the run has expired",
    "per_tenant_cap": "exceeds the tenant's quota",
}


@click.group()
def retention() -> None:
    """Set retention policies, place holds, and remove snapshots that are no longer kept."""


@retention.command()
@tenant_option
@packs_option
@json_option
def plan(database: str, tenant: str, packs: str | None, as_json: bool) -> None:
    """Show what a sweep would remove now. Changes nothing."""
    with open_existing(database, packs) as hf:
        retention = hf.tenant(tenant).retention
        swept, policy = retention.plan(), retention.policy()
    if as_json:
        print_json({"plan": swept, "policy": policy})
        return
    print_table(f"A sweep of {tenant} would remove", ["snapshots", "bytes", "reason"], _rows(swept))
    for line in _about(swept, policy):
        print_line(line)


@retention.command()
@database_option
@click.option("--tenant", "tenants", metavar="NAME", multiple=True, help="Only this tenant; repeatable.")
@packs_option
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0, min_open=True),
    help="Keep running, with about this many seconds between two rounds, until stopped.",
)
@redis_options
@click.option(
    "--only-snapshots",
    is_flag=True,
    help="In erasures, remove only the snapshots and keep the other data of a tenant.",
)
@click.option(
    "--log", "log_file", metavar="FILE", help="Write a line of JSON for each removal to this file. Default: stderr."
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
    """Sweep every tenant and carry out erasures: once, or periodically with --every."""
    import asyncio  # imported here because the import takes longer than most commands take to run

    address.check_exists(database)
    options = {"url": redis, "stream": stream, "event": event, "whole": not only_snapshots}
    show_deletions(log_file)
    if every_s is not None:
        asyncio.run(_work(database, packs, tenants or None, every_s, options))
        return
    totals = asyncio.run(_once(database, packs, tenants or None, options))
    if as_json:
        print_json({"round": totals})
    else:
        from holdfast.retention_worker import describe as describe_round

        print_line(f"{describe_round(totals)}.")
    if totals.failed:
        raise click.exceptions.Exit(1)


@retention.command()
@tenant_option
@click.option("--run", "run_id", metavar="ID", help="The policy of one run instead of the tenant.")
@click.option("--per-run", type=click.IntRange(1), help="The number of snapshots to keep for each run, or for --run.")
@click.option("--grace-days", type=click.FloatRange(0), help="Days to keep snapshots after their run has ended.")
@click.option("--keep-days", type=click.FloatRange(0), help="With --run: days to keep its snapshots, 90 at most.")
@click.option("--quota-mib", type=click.IntRange(0), help="The quota of the tenant's snapshots in MiB.")
@click.option("--clear", is_flag=True, help="First reset the policy to the defaults.")
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
    """Show or change the retention policy of a tenant or a run."""
    if keep_days is not None and run_id is None:
        raise click.UsageError("--keep-days applies to one run: add --run")
    grace_s, keep_s = _seconds(grace_days), _seconds(keep_days)
    with open_existing(database) as hf:
        retention = hf.tenant(tenant).retention
        if clear:
            retention.clear_policy(run_id=run_id)
        if per_run is not None or grace_s is not None:
            retention.set_policy(per_run=per_run, grace_s=grace_s, run_id=run_id)
        if keep_s is not None and run_id is not None:
            retention.keep_snapshots_for(run_id, seconds=keep_s)
        if quota_mib is not None or (clear and run_id is None and _tenant_exists(hf, tenant)):
            hf.tenants.set_quota(tenant, snapshot_quota_mib=quota_mib)
        current = retention.policy(run_id=run_id)
    if as_json:
        print_json({"policy": current})
        return
    subject = tenant if run_id is None else f"run {run_id}"
    print_line(f"{subject} keeps {current.per_run} snapshots of a run until {_days(current.grace_s)} after its end,")
    print_line(f"and {current.quota_mib:,} MiB in total.")


@retention.command()
@tenant_option
@click.option("--reason", required=True, help="The reason, which is stored with the hold.")
@click.option("--run", "run_id", metavar="ID", help="Only the snapshots of this run.")
@click.option("--session", "session_id", metavar="ID", help="Only the snapshots of this session.")
@click.option("--by", "placed_by", metavar="NAME", help="The person who places the hold.")
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
    """Keep all snapshots of a tenant, a session or a run, regardless of any policy, until the hold is released."""
    with open_existing(database) as hf:
        placed = hf.tenant(tenant).retention.hold(reason, run_id=run_id, session_id=session_id, placed_by=placed_by)
    if as_json:
        print_json({"hold": placed})
        return
    print_line(f"Hold {placed.id} keeps {_subject(placed, tenant)}.")


@retention.command()
@tenant_option
@click.option("--hold", "hold_id", metavar="ID", required=True, help="The id of the hold.")
@click.option("--reason", default="", help="The reason for the release.")
@json_option
def release(database: str, tenant: str, hold_id: str, reason: str, as_json: bool) -> None:
    """Release a hold. The policies apply to its snapshots again."""
    with open_existing(database) as hf:
        released = hf.tenant(tenant).retention.release(hold_id, reason=reason)
    if as_json:
        print_json({"hold": released})
        return
    print_line(f"Hold {released.id} no longer keeps {_subject(released, tenant)}.")


@retention.command()
@tenant_option
@json_option
def holds(database: str, tenant: str, as_json: bool) -> None:
    """List the active holds."""
    with open_existing(database) as hf:
        active = list(hf.tenant(tenant).retention.holds())
    if as_json:
        print_json({"holds": active})
        return
    rows = [[h.id, _subject(h, tenant), h.reason, h.placed_by, f"{h.created_at:%Y-%m-%d %H:%M}"] for h in active]
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
            await worker.round()  # sweeps do not depend on the stream
            if isinstance(error, HoldfastError):
                raise
            raise Unavailable(f"the sweep is complete, but the stream of erasures cannot be read: {error}") from error
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
        print_line(f"Retention worker {worker.holder} is ready  (database: {describe(database)}; stop with Ctrl-C)")
        await asyncio.gather(worker.work(), consumer.work())


def _rows(swept: SweepResult) -> list[list[str]]:
    tallies = [(getattr(swept, reason), WHY[reason]) for reason in REASONS]
    rows = [[f"{tally.count:,}", f"{tally.size_bytes:,}", why] for tally, why in tallies if tally.count]
    return rows or [["0", "0", "nothing to remove"]]


def _about(swept: SweepResult, policy: RetentionPolicy) -> list[str]:
    lines = []
    if swept.used_bytes is not None:
        lines.append(f"The remaining snapshots use {swept.used_bytes:,} bytes of {policy.quota_mib:,} MiB.")
    if swept.over_bytes:
        lines.append(
            f"This exceeds the quota by {swept.over_bytes:,} bytes: the newest snapshot of a run is always kept."
        )
    if swept.held_runs:
        lines.append(f"{swept.held_runs:,} runs are on hold and keep all their snapshots.")
    return lines


def _subject(hold: Hold, tenant: str) -> str:
    if hold.run_id is not None:
        return f"run {hold.run_id}"
    return f"all of {tenant}" if hold.session_id is None else f"session {hold.session_id}"


def _tenant_exists(hf: Holdfast, tenant: str) -> bool:
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
        raise click.UsageError(f"the number of days must be at most {MAX_DAYS:,}, not {days}")
    return round(days * DAY_S)


def _days(seconds: int) -> str:
    return f"{seconds / DAY_S:g} days"
