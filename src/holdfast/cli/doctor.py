"""``holdfast doctor``: check a database, its packs and its snapshots for damage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from holdfast import Holdfast
from holdfast.errors import HoldfastError
from holdfast.schema import check_integrity
from holdfast.types import DiagnosticReport, Erasure

from .database import database_option, describe, open_existing, packs_option
from .output import json_option, print_json, print_line, shorten

SHOWN = 10
"""How many faults of one kind are listed."""


@click.command()
@database_option
@click.option("--tenant", "tenants", metavar="NAME", multiple=True, help="Only this tenant; repeatable.")
@packs_option
@click.option("--repair", is_flag=True, help="Remove unused data. Lost data is reported and left unchanged.")
@json_option
def doctor(database: str, tenants: Sequence[str], packs: str | None, repair: bool, as_json: bool) -> None:
    """Check the database, its large objects and its snapshots for damage.

    The exit code is 1 if data is lost or damaged or an erasure is overdue, and 0 otherwise.
    """
    faults = check_integrity(database)
    overdue: list[Erasure] = []
    tenant_findings: dict[str, DiagnosticReport] = {}
    if not faults:
        with open_existing(database, packs) as hf:
            erasures = hf.erasures.list(only_open=True, limit=1_000)
            overdue = [erasure for erasure in erasures if erasure.due_at <= _now(hf)]
            tenant_findings = {name: _diagnose(hf, name, repair) for name in tenants or _names(hf)}
    is_sound = not faults and not overdue and all(findings.is_sound for findings in tenant_findings.values())
    if as_json:
        print_json({"sound": is_sound, "database": faults, "overdue_erasures": overdue, "tenants": tenant_findings})
    else:
        _print(
            database,
            faults,
            [f"the erasure of {late.tenant} was due by {late.due_at:%Y-%m-%d %H:%M}" for late in overdue],
        )
        for name, findings in tenant_findings.items():
            _print_tenant(name, findings)
        print_line("No problems found." if is_sound else "Problems found: see above.")
    if not is_sound:
        raise click.exceptions.Exit(1)


def _diagnose(hf: Holdfast, tenant: str, repair: bool) -> DiagnosticReport:
    handle = hf.tenant(tenant)
    if not repair:
        return handle.diagnostics.look()
    for rewind in handle.rewinds.pending():
        try:
            handle.workspaces.finish_rewinds(rewind.run_id)
        except HoldfastError:
            pass  # for example, its directory is on another machine; it is counted as pending below
    return handle.diagnostics.repair()


def _names(hf: Holdfast) -> Iterator[str]:
    cursor: str | None = None
    while True:
        page = hf.tenants.list(limit=100, cursor=cursor)
        yield from [tenant.id for tenant in page]
        cursor = page.next
        if cursor is None:
            return


def _now(hf: Holdfast) -> datetime:
    return datetime.fromtimestamp(hf.tenant("doctor").clock.now_us() / 1_000_000, UTC)


def _print(database: str, faults: Sequence[str], overdue: Sequence[str]) -> None:
    print_line(f"{describe(database)}: {'sound' if not faults else f'{len(faults):,} faults'}")
    for line in [*faults[:SHOWN], *overdue[:SHOWN]]:
        print_line(f"  {shorten(line, 200)}")


def _print_tenant(name: str, findings: DiagnosticReport) -> None:
    lines = [line for line in _lines(findings) if line]
    if lines:
        print_line(f"{name}:")
    for line in lines:
        print_line(f"  {line}")


def _lines(findings: DiagnosticReport) -> list[str]:
    damaged = [
        f"snapshot {snapshot.id} is damaged: {shorten(snapshot.reason, 120)}" for snapshot in findings.damaged_snapshots
    ]
    return [
        *damaged[:SHOWN],
        _name_list("packs that contain objects are missing", findings.missing_packs),
        _count_line(findings.dangling_refs, "referenced objects are missing"),
        _name_list("packs are not referenced", findings.orphan_packs),
        _name_list("packs were left by an interrupted write", findings.unsealed_packs),
        _count_line(findings.unheld_objects, "objects are not referenced and will be removed"),
        _count_line(findings.loose_layers, "layers are not referenced"),
        _count_line(findings.pending_rewinds, "rewinds are in progress or were interrupted"),
    ]


def _count_line(count: int, words: str) -> str:
    return f"{count:,} {words}" if count else ""


def _name_list(words: str, names: Sequence[Any]) -> str:
    if not names:
        return ""
    more = ", ..." if len(names) > SHOWN else ""
    return f"{len(names):,} {words}: {', '.join(map(str, names[:SHOWN]))}{more}"
