"""``holdfast workspace``: capture directory trees, look at what changed, and take runs back with their files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import msgspec

from holdfast import TenantHandle
from holdfast.errors import InvalidInput, NotFound
from holdfast.extras import needs
from holdfast.types import RestoreResult, Rewind, RewindResult, Snapshot, TreeChange

from .database import open_tenant, packs_option, tenant_option
from .output import (
    encodable,
    json_option,
    one_line,
    print_json,
    print_line,
    print_table,
    print_text,
    progress_bar,
    quoted,
)

F = TypeVar("F", bound=Callable[..., Any])
MARKS = {"added": "A", "removed": "D", "changed": "M", "mode": "T", "renamed": "R"}
"""What happened to a file, in one letter, as git says it."""
ARCHIVE = "tar.zst"
"""What a snapshot is exported as."""
STEP = "@"
"""Before the number of a step: its snapshot."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@click.group()
def workspace() -> None:
    """Capture directory trees, look at what changed, and take runs back with their files."""


def run_option(command: F) -> F:
    """``--run`` and whose."""
    option = click.option("--run", metavar="ID", required=True, help="A run, by its id.")
    decorated: F = packs_option(option(command))
    return tenant_option(decorated)


def force_option(command: F) -> F:
    """``--force``."""
    return click.option("--force", is_flag=True, help="Overwrite the file if it is there.")(command)


@workspace.command()
@run_option
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option("--step", type=click.IntRange(0), help="The step after which the tree is so; without it, the run's last.")
@click.option("--ignore", metavar="PATTERN", multiple=True, help="Leave this out too; may be said several times.")
@click.option("--no-default-ignore", is_flag=True, help="Capture what tools make anew by themselves as well.")
@click.option(
    "--format", "archive", type=click.Choice([ARCHIVE]), help="Write the snapshot to a file as well, as export does."
)
@click.option(
    "--to", metavar="FILE", type=click.Path(dir_okay=False), help="That file; without it, ID.tar.zst in this directory."
)
@force_option
@json_option
def capture(
    database: str,
    tenant: str,
    packs: str | None,
    run: str,
    path: str,
    step: int | None,
    ignore: Sequence[str],
    no_default_ignore: bool,
    archive: str | None,
    to: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Take a snapshot of the directory PATH. Only what changed since the last one is read and stored."""
    if to is not None and archive is None:
        raise InvalidInput(f"--to says where an archive goes: say --format {ARCHIVE} with it")
    if to is not None and not force and os.path.lexists(to):
        raise InvalidInput(f"{to} is there already; choose another name, or say --force")
    with open_tenant(database, tenant, packs) as there:
        at = there.runs.get(run).iteration if step is None else step
        with _busy(f"capturing {path}"):
            done = there.workspaces.capture(
                run, path, step=at, ignore=list(ignore), ignore_defaults=not no_default_ignore
            )
        snapshot = done.snapshot
        if archive is not None:
            to = to or f"{snapshot.id}.{archive}"
            with progress_bar("writing", snapshot.entry_count) as advance:
                there.workspaces.export(snapshot.id, to, replace=force, on_progress=advance)
    if as_json:
        print_json(_as_json(done if to is None else {**msgspec.to_builtins(done), "file": to}))
        return
    print_line(
        f"Snapshot {snapshot.id} of step {snapshot.step}: {snapshot.entry_count:,} entries, {_size(snapshot.tree_bytes)}; "
        f"{done.changed:,} changed, {done.removed:,} removed, {_size(snapshot.size_bytes)} stored."
    )
    for each in done.skipped:
        print_line(f"  left out: {quoted(each.path)}: {each.reason}")
    for changing in done.unsettled:
        print_line(f"  changed while it was read: {quoted(changing)}")
    if to is not None:
        print_line(f"It is in {to} as well.")


@workspace.command("list")
@tenant_option
@packs_option
@click.option("--run", metavar="ID", help="Only those of this run, and its rewinds.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="How many at most.")
@json_option
def list_(database: str, tenant: str, packs: str | None, run: str | None, limit: int, as_json: bool) -> None:
    """List snapshots, the newest first; and of a run, how it was taken back and forth."""
    with open_tenant(database, tenant, packs) as there:
        found = there.snapshots.list(run_id=run, limit=limit)
        rewinds = there.rewinds.list(run, limit=limit) if run is not None else []
    if as_json:
        print_json(_as_json({"snapshots": list(found), "rewinds": list(rewinds), "next": found.next}))
        return
    columns = ["id", "run", "step", "kind", "entries", "size", "stored", "taken"]
    print_table(f"Snapshots of {tenant}", columns, [_row(each) for each in found])
    if rewinds:
        columns = ["id", "from", "to", "status", "when", "where"]
        print_table("Rewinds", columns, [_rewind_row(each) for each in rewinds])


@workspace.command()
@tenant_option
@packs_option
@click.option("--run", metavar="ID", help="The run whose steps are meant by @1, @2 and so on.")
@click.argument("before")
@click.argument("after")
@click.option("--stat", is_flag=True, help="Only list what changed.")
@json_option
def diff(
    database: str,
    tenant: str,
    packs: str | None,
    run: str | None,
    before: str,
    after: str,
    stat: bool,
    as_json: bool,
) -> None:
    """Show what changed from snapshot BEFORE to AFTER, given by their ids or, with --run, as @ and the number of a step."""
    with open_tenant(database, tenant, packs) as there:
        ids = [_snapshot(there, each, run) for each in (before, after)]
        found = there.workspaces.diff(ids[0], ids[1], text=not stat)
    if as_json:
        print_json(_as_json({"before": ids[0], "after": ids[1], "changes": found}))
        return
    for each in found:
        if stat:
            print_line(_line(each))
        else:
            print_text(each.text or "")


@workspace.command()
@run_option
@click.argument("path", type=click.Path(file_okay=False))
@click.option(
    "--to", "to_step", type=click.IntRange(0), required=True, help="The step to go back to; 0 is the beginning."
)
@click.option(
    "--keep-snapshots-for",
    "--keep-checkpoints-for",
    "days",
    type=click.IntRange(0),
    help="Days to keep its snapshots, 90 at most.",
)
@click.option("--resume", is_flag=True, help="Have it go on from there at once.")
@json_option
def rewind(
    database: str,
    tenant: str,
    packs: str | None,
    run: str,
    path: str,
    to_step: int,
    days: int | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Take a run, its conversation and the directory PATH back to a step. What is in the directory is captured first."""
    with open_tenant(database, tenant, packs) as there:
        with _busy(f"rewinding {path} to step {to_step}"):
            done = there.workspaces.rewind(run, to_step, path, keep_snapshots_for=days)
        if resume:
            there.runs.resume(run)
    _print_moved(done, as_json, f"is at step {to_step}, from {done.rewind.from_step}")


@workspace.command()
@run_option
@click.argument("path", type=click.Path(file_okay=False), required=False)
@click.option(
    "--id", "rewind_id", metavar="ID", help="Which rewind to undo; without it, the last that led to where it is."
)
@json_option
def redo(
    database: str, tenant: str, packs: str | None, run: str, path: str | None, rewind_id: str | None, as_json: bool
) -> None:
    """Undo a rewind: the run, its conversation and the directory, which is PATH if it moved, are as they were before it."""
    with open_tenant(database, tenant, packs) as there, _busy("going back to where it was"):
        done = there.workspaces.redo(run, path, id=rewind_id)
    _print_moved(done, as_json, f"is at step {done.rewind.from_step} again")


@workspace.command()
@tenant_option
@packs_option
@click.option("--run", metavar="ID", help="The run whose steps are meant by @1, @2 and so on.")
@click.argument("snapshot")
@click.argument("path", type=click.Path(file_okay=False))
@click.option("--replace", is_flag=True, help="Even if there is something in the directory: that goes away.")
@json_option
def restore(
    database: str,
    tenant: str,
    packs: str | None,
    run: str | None,
    snapshot: str,
    path: str,
    replace: bool,
    as_json: bool,
) -> None:
    """Bring the directory PATH to SNAPSHOT, an id or, with --run, @ and the number of a step. No run is touched."""
    with open_tenant(database, tenant, packs) as there:
        id = _snapshot(there, snapshot, run)
        with progress_bar("restoring", there.snapshots.get(id).entry_count) as advance:
            done = there.workspaces.restore(id, path, replace=replace, on_progress=advance)
    if as_json:
        print_json(_as_json(done))
        return
    print_line(f"{path} is snapshot {id}: {_done(done)}.")


@workspace.command()
@tenant_option
@packs_option
@click.option("--run", metavar="ID", help="The run whose steps are meant by @1, @2 and so on.")
@click.argument("snapshot")
@click.argument("file", type=click.Path(dir_okay=False))
@force_option
@json_option
def export(
    database: str, tenant: str, packs: str | None, run: str | None, snapshot: str, file: str, force: bool, as_json: bool
) -> None:
    """Write SNAPSHOT to FILE, as tar compressed with zstd, for you alone to read. The same tree always makes the same file."""
    if not force and os.path.lexists(file):
        raise InvalidInput(f"{file} is there already; choose another name, or say --force")
    with open_tenant(database, tenant, packs) as there:
        id = _snapshot(there, snapshot, run)
        with progress_bar("writing", there.snapshots.get(id).entry_count) as advance:
            count = there.workspaces.export(id, file, replace=force, on_progress=advance)
    if as_json:
        print_json(_as_json({"snapshot": id, "file": file, "entries": count}))
        return
    print_line(f"{count:,} entries of snapshot {id} are in {file}.")


@workspace.command("import")
@run_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--step", type=click.IntRange(0), help="The step of the run that it is to belong to.")
@click.option("--outside-links", is_flag=True, help="Let links pass that lead out of the tree.")
@json_option
def import_(
    database: str,
    tenant: str,
    packs: str | None,
    run: str,
    file: str,
    step: int | None,
    outside_links: bool,
    as_json: bool,
) -> None:
    """Record what is in the archive FILE as a snapshot of a run. Nothing is written to any directory."""
    with open_tenant(database, tenant, packs) as there, _busy(f"reading {file}"):
        done = there.workspaces.import_archive(run, file, step=step, outside_links=outside_links)
    if as_json:
        print_json(_as_json(done))
        return
    snapshot = done.snapshot
    print_line(f"Snapshot {snapshot.id}: {snapshot.entry_count:,} entries, {_size(snapshot.tree_bytes)}.")


def _snapshot(there: TenantHandle, given: str, run: str | None) -> str:
    """A snapshot that was given by its id, or by the number of a step."""
    if not given.startswith(STEP):
        return given
    if run is None:
        raise InvalidInput(f"{given} is a step of a run: say which with --run")
    if not given[1:].isdecimal():
        raise InvalidInput(f"{given} is no step: a step is {STEP} and its number")
    found = there.snapshots.find(run, step=int(given[1:]))
    if found is None:
        raise NotFound(f"run {run} has no snapshot of step {given[1:]}")
    return found.id


@contextmanager
def _busy(what: str) -> Iterator[None]:
    """A sign of life on standard error, where somebody sees it, for what cannot be counted."""
    with needs("server"):
        from rich.console import Console

    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield
        return
    with console.status(one_line(what)):
        yield


def _print_moved(done: RewindResult, as_json: bool, where: str) -> None:
    if as_json:
        print_json(_as_json(done))
        return
    print_line(f"Run {done.rewind.run_id} {where}: {_done(done.restored)}.")
    if done.dirty is not None:
        print_line(f"What was there before is snapshot {done.dirty.id}.")


def _done(restored: RestoreResult) -> str:
    kept = f", {len(restored.kept):,} kept for what is ignored in them" if restored.kept else ""
    return f"{restored.written:,} written ({_size(restored.bytes)}), {restored.removed:,} removed{kept}"


def _row(snapshot: Snapshot) -> list[str]:
    return [
        snapshot.id,
        snapshot.run_id,
        "" if snapshot.step is None else str(snapshot.step),
        snapshot.kind,
        f"{snapshot.entry_count:,}",
        _size(snapshot.tree_bytes),
        _size(snapshot.size_bytes),
        f"{snapshot.created_at:%Y-%m-%d %H:%M:%S}",
    ]


def _rewind_row(rewind: Rewind) -> list[str]:
    when = f"{rewind.created_at:%Y-%m-%d %H:%M:%S}"
    where = rewind.path or rewind.pending_reason or ""
    return [rewind.id, str(rewind.from_step), str(rewind.to_step), rewind.status, when, quoted(where)]


def _line(change: TreeChange) -> str:
    old = f"{quoted(change.old_path)} -> " if change.old_path else ""
    return f"{MARKS[change.kind]} {old}{quoted(change.path)}"


def _as_json(value: Any) -> Any:
    """A value as JSON, in which everything can be printed."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(key): _as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(each) for each in value]
    return value if isinstance(value, (int, float, type(None))) else _as_json(msgspec.to_builtins(value))


def _size(count: int) -> str:
    """Bytes, as a person would say it."""
    size, unit = float(count), 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
