"""``holdfast doctor``: is all well, and if not, what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from holdfast import Holdfast
from holdfast.errors import HoldfastError
from holdfast.schema import check_integrity
from holdfast.types import DiagnosticReport, Erasure

from .database import database_option, describe, open_there, packs_option
from .output import json_option, print_json, print_line, shorten

SHOWN = 10
"""Things of one kind that are named."""


@click.command()
@database_option
@click.option("--tenant", "tenants", metavar="NAME", multiple=True, help="Only this tenant; may be said several times.")
@packs_option
@click.option("--repair", is_flag=True, help="Remove what nobody needs. What was lost is named and left as it is.")
@json_option
def doctor(database: str, tenants: Sequence[str], packs: str | None, repair: bool, as_json: bool) -> None:
    """Look for what is not as it should be: in the database, among large objects, and in snapshots.

    Ends with 1 if something was lost or is damaged, and with 0 if not.
    """
    wrong = check_integrity(database)
    overdue: list[Erasure] = []
    found: dict[str, DiagnosticReport] = {}
    if not wrong:
        with open_there(database, packs) as hf:
            overdue = [each for each in hf.erasures.list(only_open=True, limit=1_000) if each.due_at <= _now(hf)]
            found = {name: _look(hf, name, repair) for name in tenants or _names(hf)}
    is_sound = not wrong and not overdue and all(each.is_sound for each in found.values())
    if as_json:
        print_json({"sound": is_sound, "database": wrong, "overdue_erasures": overdue, "tenants": found})
    else:
        _print(
            database, wrong, [f"{each.tenant} was to be forgotten by {each.due_at:%Y-%m-%d %H:%M}" for each in overdue]
        )
        for name, findings in found.items():
            _print_tenant(name, findings)
        print_line("All is well." if is_sound else "Something is wrong: see above.")
    if not is_sound:
        raise click.exceptions.Exit(1)


def _look(hf: Holdfast, tenant: str, repair: bool) -> DiagnosticReport:
    there = hf.tenant(tenant)
    if not repair:
        return there.diagnostics.look()
    for each in there.rewinds.pending():
        try:
            there.workspaces.finish_rewinds(each.run_id)
        except HoldfastError:
            pass  # its directory is not on this machine, say; it is counted below
    return there.diagnostics.repair()


def _names(hf: Holdfast) -> Iterator[str]:
    cursor: str | None = None
    while True:
        page = hf.tenants.list(limit=100, cursor=cursor)
        yield from [each.id for each in page]
        cursor = page.next
        if cursor is None:
            return


def _now(hf: Holdfast) -> datetime:
    return datetime.fromtimestamp(hf.tenant("doctor").clock.now_us() / 1_000_000, UTC)


def _print(database: str, wrong: Sequence[str], overdue: Sequence[str]) -> None:
    print_line(f"{describe(database)}: {'sound' if not wrong else f'{len(wrong):,} faults'}")
    for line in [*wrong[:SHOWN], *overdue[:SHOWN]]:
        print_line(f"  {shorten(line, 200)}")


def _print_tenant(name: str, found: DiagnosticReport) -> None:
    lines = [line for line in _lines(found) if line]
    if lines:
        print_line(f"{name}:")
    for line in lines:
        print_line(f"  {line}")


def _lines(found: DiagnosticReport) -> list[str]:
    damaged = [f"snapshot {each.id} is damaged: {shorten(each.reason, 120)}" for each in found.damaged_snapshots]
    return [
        *damaged[:SHOWN],
        _named("packs are missing, and objects lie in them", found.missing_packs),
        _counted(found.dangling_refs, "objects are needed and not there"),
        _named("packs are nobody's", found.orphan_packs),
        _named("packs were written for something that never came", found.unsealed_packs),
        _counted(found.unheld_objects, "objects are needed by nobody, and wait to be removed"),
        _counted(found.loose_layers, "layers are needed by nobody"),
        _counted(found.pending_rewinds, "rewinds are under way, or were broken off"),
    ]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count else ""


def _named(what: str, names: Sequence[Any]) -> str:
    if not names:
        return ""
    more = ", ..." if len(names) > SHOWN else ""
    return f"{len(names):,} {what}: {', '.join(map(str, names[:SHOWN]))}{more}"
