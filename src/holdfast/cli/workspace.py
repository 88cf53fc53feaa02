"""``holdfast workspace``: capture directory trees, compare snapshots, and rewind runs together with their files."""

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
"""The change of a file as one letter, as in git."""
ARCHIVE = "tar.zst"
"""The format of an exported snapshot."""
STEP = "@"
"""Prefix of a step number that selects the snapshot of that step."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@click.group()
def workspace() -> None:
    """Capture directory trees, compare snapshots, and rewind runs together with their files."""


def run_option(command: F) -> F:
    """Add ``--run``, ``--packs`` and the options of ``tenant_option``."""
    option = click.option("--run", metavar="ID", required=True, help="The id of the run.")
    decorated: F = packs_option(option(command))
    return tenant_option(decorated)


def force_option(command: F) -> F:
    """Add ``--force``."""
    return click.option("--force", is_flag=True, help="Overwrite the file if it exists.")(command)


@workspace.command()
@run_option
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option("--step", type=click.IntRange(0), help="The step that the snapshot belongs to. Default: the last step.")
@click.option("--ignore", metavar="PATTERN", multiple=True, help="Also leave out matching paths; repeatable.")
@click.option(
    "--no-default-ignore", is_flag=True, help="Also capture caches and build output that tools can regenerate."
)
@click.option(
    "--format", "archive", type=click.Choice([ARCHIVE]), help="Also write the snapshot to a file, as export does."
)
@click.option(
    "--to", metavar="FILE", type=click.Path(dir_okay=False), help="The file for --format. Default: ./ID.tar.zst."
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
    """Take a snapshot of the directory PATH. Only files changed since the last snapshot are read and stored."""
    if to is not None and archive is None:
        raise InvalidInput(f"--to requires --format {ARCHIVE}", field="to")
    if to is not None and not force and os.path.lexists(to):
        raise InvalidInput(f"{to} already exists: choose another name or use --force", field="to")
    with open_tenant(database, tenant, packs) as handle:
        at = handle.runs.get(run).iteration if step is None else step
        with _spinner(f"capturing {path}"):
            captured = handle.workspaces.capture(
                run, path, step=at, ignore=list(ignore), ignore_defaults=not no_default_ignore
            )
        snapshot = captured.snapshot
        if archive is not None:
            to = to or f"{snapshot.id}.{archive}"
            with progress_bar("writing", snapshot.entry_count) as advance:
                handle.workspaces.export(snapshot.id, to, replace=force, on_progress=advance)
    if as_json:
        print_json(_as_json(captured if to is None else {**msgspec.to_builtins(captured), "file": to}))
        return
    print_line(
        f"Snapshot {snapshot.id} of step {snapshot.step}: {snapshot.entry_count:,} entries, {_size(snapshot.tree_bytes)}; "
        f"{captured.changed:,} changed, {captured.removed:,} removed, {_size(snapshot.size_bytes)} stored."
    )
    for skipped in captured.skipped:
        print_line(f"  left out: {quoted(skipped.path)}: {skipped.reason}")
    for changing in captured.unsettled:
        print_line(f"  changed while it was read: {quoted(changing)}")
    if to is not None:
        print_line(f"Written to {to}.")


@workspace.command("list")
@tenant_option
@packs_option
@click.option("--run", metavar="ID", help="Only snapshots of this run, and its rewinds.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="Maximum number of rows.")
@json_option
def list_(database: str, tenant: str, packs: str | None, run: str | None, limit: int, as_json: bool) -> None:
    """List snapshots, newest first; with --run, also the rewinds of the run."""
    with open_tenant(database, tenant, packs) as handle:
        page = handle.snapshots.list(run_id=run, limit=limit)
        rewinds = handle.rewinds.list(run, limit=limit) if run is not None else []
    if as_json:
        print_json(_as_json({"snapshots": list(page), "rewinds": list(rewinds), "next": page.next}))
        return
    columns = ["id", "run", "step", "kind", "entries", "size", "stored", "taken"]
    print_table(f"Snapshots of {tenant}", columns, [_row(snapshot) for snapshot in page])
    if rewinds:
        columns = ["id", "from", "to", "status", "when", "path"]
        print_table("Rewinds", columns, [_rewind_row(rewind) for rewind in rewinds])


@workspace.command()
@tenant_option
@packs_option
@click.option("--run", metavar="ID", help="The run that @1, @2 and so on refer to.")
@click.argument("before")
@click.argument("after")
@click.option("--stat", is_flag=True, help="Only list the changed files.")
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
    """Show the changes from snapshot BEFORE to AFTER: each an id or, with --run, @ and the number of a step."""
    with open_tenant(database, tenant, packs) as handle:
        ids = [_snapshot_id(handle, snapshot, run) for snapshot in (before, after)]
        changes = handle.workspaces.diff(ids[0], ids[1], text=not stat)
    if as_json:
        print_json(_as_json({"before": ids[0], "after": ids[1], "changes": changes}))
        return
    for change in changes:
        if stat:
            print_line(_line(change))
        else:
            print_text(change.text or "")


@workspace.command()
@run_option
@click.argument("path", type=click.Path(file_okay=False))
@click.option(
    "--to", "to_step", type=click.IntRange(0), required=True, help="The step to rewind to; 0 is the start of the run."
)
@click.option(
    "--keep-snapshots-for",
    "--keep-checkpoints-for",
    "days",
    type=click.IntRange(0),
    help="Days to keep the snapshots of the run, 90 at most.",
)
@click.option("--resume", is_flag=True, help="Resume the run from that step at once.")
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
    """Rewind a run, its session and the directory PATH to a step. The current content of the directory is captured first."""
    with open_tenant(database, tenant, packs) as handle:
        with _spinner(f"rewinding {path} to step {to_step}"):
            rewound = handle.workspaces.rewind(run, to_step, path, keep_snapshots_for=days)
        if resume:
            handle.runs.resume(run)
    _print_rewound(rewound, as_json, f"was rewound from step {rewound.rewind.from_step} to step {to_step}")


@workspace.command()
@run_option
@click.argument("path", type=click.Path(file_okay=False), required=False)
@click.option(
    "--id", "rewind_id", metavar="ID", help="The rewind to undo. Default: the one that led to the current state."
)
@json_option
def redo(
    database: str, tenant: str, packs: str | None, run: str, path: str | None, rewind_id: str | None, as_json: bool
) -> None:
    """Undo a rewind: restore the run, its session and the directory. Give PATH if the directory was moved."""
    with open_tenant(database, tenant, packs) as handle, _spinner("undoing the rewind"):
        rewound = handle.workspaces.redo(run, path, id=rewind_id)
    _print_rewound(rewound, as_json, f"is at step {rewound.rewind.from_step} again")


@workspace.command()
@tenant_option
@packs_option
@click.option("--run", metavar="ID", help="The run that @1, @2 and so on refer to.")
@click.argument("snapshot")
@click.argument("path", type=click.Path(file_okay=False))
@click.option("--replace", is_flag=True, help="Restore into a directory that is not empty; its content is removed.")
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
    """Restore SNAPSHOT, an id or, with --run, @ and the number of a step, to the directory PATH. No run is changed."""
    with open_tenant(database, tenant, packs) as handle:
        id = _snapshot_id(handle, snapshot, run)
        with progress_bar("restoring", handle.snapshots.get(id).entry_count) as advance:
            restored = handle.workspaces.restore(id, path, replace=replace, on_progress=advance)
    if as_json:
        print_json(_as_json(restored))
        return
    print_line(f"{path} was restored to snapshot {id}: {_counts(restored)}.")


@workspace.command()
@tenant_option
@packs_option
@click.option("--run", metavar="ID", help="The run that @1, @2 and so on refer to.")
@click.argument("snapshot")
@click.argument("file", type=click.Path(dir_okay=False))
@force_option
@json_option
def export(
    database: str, tenant: str, packs: str | None, run: str | None, snapshot: str, file: str, force: bool, as_json: bool
) -> None:
    """Write SNAPSHOT to FILE as a tar archive compressed with zstd, with mode 0600. Equal trees produce equal files."""
    if not force and os.path.lexists(file):
        raise InvalidInput(f"{file} already exists: choose another name or use --force", field="file")
    with open_tenant(database, tenant, packs) as handle:
        id = _snapshot_id(handle, snapshot, run)
        with progress_bar("writing", handle.snapshots.get(id).entry_count) as advance:
            count = handle.workspaces.export(id, file, replace=force, on_progress=advance)
    if as_json:
        print_json(_as_json({"snapshot": id, "file": file, "entries": count}))
        return
    print_line(f"{count:,} entries of snapshot {id} were written to {file}.")


@workspace.command("import")
@run_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--step", type=click.IntRange(0), help="The step of the run that the snapshot belongs to.")
@click.option("--outside-links", is_flag=True, help="Accept links that point outside the tree.")
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
    """Store the archive FILE as a snapshot of a run. No file is written to a directory."""
    with open_tenant(database, tenant, packs) as handle, _spinner(f"reading {file}"):
        captured = handle.workspaces.import_archive(run, file, step=step, outside_links=outside_links)
    if as_json:
        print_json(_as_json(captured))
        return
    snapshot = captured.snapshot
    print_line(f"Snapshot {snapshot.id}: {snapshot.entry_count:,} entries, {_size(snapshot.tree_bytes)}.")


def _snapshot_id(handle: TenantHandle, text: str, run: str | None) -> str:
    """Return the id of a snapshot that was given by its id or by the number of a step."""
    if not text.startswith(STEP):
        return text
    if run is None:
        raise InvalidInput(f"{text} is a step of a run: add --run", field="run")
    if not text[1:].isdecimal():
        raise InvalidInput(f"{text} is not a step: a step is {STEP} followed by its number", field="snapshot")
    snapshot = handle.snapshots.find(run, step=int(text[1:]))
    if snapshot is None:
        raise NotFound(f"run {run} has no snapshot of step {text[1:]}", noun="snapshot", key=text)
    return snapshot.id


@contextmanager
def _spinner(label: str) -> Iterator[None]:
    """Show a spinner on standard error, if that is a terminal, for work of unknown size."""
    with needs("server"):
        from rich.console import Console

    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield
        return
    with console.status(one_line(label)):
        yield


def _print_rewound(rewound: RewindResult, as_json: bool, status: str) -> None:
    if as_json:
        print_json(_as_json(rewound))
        return
    print_line(f"Run {rewound.rewind.run_id} {status}: {_counts(rewound.restored)}.")
    if rewound.dirty is not None:
        print_line(f"The previous content of the directory is snapshot {rewound.dirty.id}.")


def _counts(restored: RestoreResult) -> str:
    kept = f", {len(restored.kept):,} directories kept because of ignored files" if restored.kept else ""
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
    """Convert a value to JSON types, with unpaired surrogates escaped."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    return value if isinstance(value, (int, float, type(None))) else _as_json(msgspec.to_builtins(value))


def _size(count: int) -> str:
    """Format a number of bytes for people."""
    size, unit = float(count), 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
