"""``holdfast checkpoints``: inspect and compare the checkpoints of graphs, and remove old ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from holdfast import Page, TenantHandle
from holdfast.errors import NotFound
from holdfast.types import Checkpoint

from . import graph_values
from .database import open_tenant, packs_option, tenant_option
from .graph_values import Channel, Unreadable
from .output import json_option, one_line, print_json, print_line, print_table, shorten

F = TypeVar("F", bound=Callable[..., Any])
DAY_S = 86_400
PREVIEW = 72
"""Characters of a value that a table shows."""


@click.group()
def checkpoints() -> None:
    """Inspect and compare the checkpoints of graphs, and remove old ones."""


def user_option(command: F) -> F:
    """Add ``--user``, ``--packs`` and the options of ``tenant_option``."""
    help = "The user whose threads to use, if threads are separated by user."
    return tenant_option(packs_option(click.option("--user", help=help)(command)))


def thread_option(command: F) -> F:
    """Add ``--thread``, ``--namespace`` and the options of ``user_option``."""
    thread = click.option("--thread", metavar="ID", required=True, help="The id of the thread.")
    namespace = click.option(
        "--namespace", metavar="NAME", default="", help="The namespace of a subgraph. Default: the root graph."
    )
    return user_option(thread(namespace(command)))


@checkpoints.command("list")
@user_option
@click.option("--thread", metavar="ID", help="Only checkpoints of this thread.")
@click.option("--namespace", metavar="NAME", help="Only checkpoints of this subgraph.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="Maximum number of rows.")
@click.option("--cursor", help="Continue after the previous page: the cursor that it printed.")
@json_option
def list_(
    database: str,
    tenant: str,
    packs: str | None,
    user: str | None,
    thread: str | None,
    namespace: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List checkpoints, newest first."""
    with open_tenant(database, tenant, packs) as handle:
        page = handle.checkpoints.list(thread, namespace=namespace, user=user, limit=limit, cursor=cursor)
    if as_json:
        print_json({"checkpoints": [_summary(checkpoint) for checkpoint in page], "next": page.next})
        return
    columns = ["thread", "namespace", "step", "source", "saved", "size", "writes", "id"]
    print_table(f"Checkpoints of {tenant}", columns, [_row(checkpoint) for checkpoint in page])
    _print_more(page)


@checkpoints.command()
@thread_option
@click.option("--id", metavar="ID", help="The id of the checkpoint. Default: the newest.")
@json_option
def show(
    database: str,
    tenant: str,
    packs: str | None,
    user: str | None,
    thread: str,
    namespace: str,
    id: str | None,
    as_json: bool,
) -> None:
    """Show a checkpoint: its channels with their versions and values, and the writes of its tasks."""
    with open_tenant(database, tenant, packs) as handle:
        checkpoint = _find(handle, thread, namespace, user, id)
    channels, problem = _channels(checkpoint)
    tasks = [_task(task) for task in checkpoint.tasks]
    if as_json:
        print_json({**_summary(checkpoint), "channels": channels, "problem": problem, "tasks": tasks})
        return
    print_line(f"{checkpoint.id}  of {thread}{f' in {namespace}' if namespace else ''}, saved {_when(checkpoint)}")
    print_line(f"parent {checkpoint.parent or '(none)'}; metadata {shorten(_text(checkpoint.metadata), 300)}")
    if problem:
        print_line(
            f"The values cannot be shown: {problem}. {_size(checkpoint):,} bytes in {len(checkpoint.pieces)} pieces."
        )
    else:
        print_table(
            "Channels", ["channel", "version", "size", "value"], [_channel_row(channel) for channel in channels]
        )
    rows = [
        [task["task_id"], str(write["index"]), write["channel"], shorten(_brief(write["value"]), PREVIEW)]
        for task in tasks
        for write in task["writes"]
    ]
    if rows:
        print_table("Writes of tasks", ["task", "", "channel", "value"], rows)


@checkpoints.command()
@thread_option
@click.option("--from", "first", metavar="ID", help="The older checkpoint. Default: the parent of the newer one.")
@click.option("--to", "second", metavar="ID", help="The newer checkpoint. Default: the newest.")
@json_option
def diff(
    database: str,
    tenant: str,
    packs: str | None,
    user: str | None,
    thread: str,
    namespace: str,
    first: str | None,
    second: str | None,
    as_json: bool,
) -> None:
    """Show the differences between two checkpoints of a thread."""
    with open_tenant(database, tenant, packs) as handle:
        newer = _find(handle, thread, namespace, user, second)
        older = None if first is None and newer.parent is None else first or newer.parent
        before = [] if older is None else _readable(_find(handle, thread, namespace, user, older))
    changes = _changes(before, _readable(newer))
    if as_json:
        print_json({"from": older, "to": newer.id, "changes": changes})
        return
    rows = [
        [change["channel"], change["change"], change["where"], shorten(_brief(change["value"]), PREVIEW)]
        for change in changes
    ]
    if rows:
        print_table(f"{older or 'nothing'} -> {newer.id}", ["channel", "", "where", "value"], rows)
    else:
        print_line(f"{older or 'nothing'} and {newer.id} have the same values.")


@checkpoints.command()
@user_option
@click.option("--thread", "threads", metavar="ID", multiple=True, required=True, help="The id of a thread; repeatable.")
@click.option(
    "--keep", default=1, show_default=True, type=click.IntRange(min=0), help="Checkpoints to keep in each namespace."
)
@click.option("--days", type=click.IntRange(min=0), help="Also keep checkpoints that are younger than this.")
@click.option("--runs", type=click.IntRange(min=0), help="Also keep the checkpoints of this many newest runs.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def prune(
    database: str,
    tenant: str,
    packs: str | None,
    user: str | None,
    threads: Sequence[str],
    keep: int,
    days: int | None,
    runs: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove all but the newest checkpoints of threads. Data that the remaining checkpoints depend on is kept."""
    named = f"thread {threads[0]}" if len(threads) == 1 else f"{len(threads)} threads"
    if not yes:
        keeps_some = keep or days or runs
        subject = f"all but the newest {keep} checkpoints of every namespace" if keeps_some else "all checkpoints"
        click.confirm(one_line(f"Remove {subject} of {named} of tenant {tenant}?"), abort=True, err=True)
    with open_tenant(database, tenant, packs) as handle:
        max_age_s = None if days is None else days * DAY_S
        removed = handle.checkpoints.prune(list(threads), keep=keep, younger_than_s=max_age_s, runs=runs, user=user)
    if as_json:
        print_json({"removed": removed})
    else:
        print_line(f"{removed:,} checkpoints of {named} removed.")


def _find(handle: TenantHandle, thread: str, namespace: str, user: str | None, id: str | None) -> Checkpoint:
    checkpoint = handle.checkpoints.find(thread, id=id, namespace=namespace, user=user)
    if checkpoint is not None:
        return checkpoint
    if id is not None:
        raise NotFound(f"checkpoint {id} of thread {thread!r} does not exist", noun="checkpoint", key=id)
    if not namespace:
        of_subgraphs = handle.checkpoints.list(thread, user=user, limit=1)
        if of_subgraphs:
            raise NotFound(
                f"the root graph of thread {thread!r} has no checkpoints: try --namespace {of_subgraphs[0].namespace}",
                noun="checkpoint",
                key=thread,
            )
    place = f" in namespace {namespace!r}" if namespace else ""
    raise NotFound(f"thread {thread!r} has no checkpoints{place}", noun="checkpoint", key=thread)


def _channels(checkpoint: Checkpoint) -> tuple[Sequence[Channel], str | None]:
    try:
        return graph_values.channels(checkpoint), None
    except Unreadable as error:
        return [], str(error)


def _readable(checkpoint: Checkpoint) -> Sequence[Channel]:
    channels, problem = _channels(checkpoint)
    if problem:
        raise click.ClickException(f"the values of {checkpoint.id} cannot be shown: {problem}")
    return channels


def _changes(before: Sequence[Channel], after: Sequence[Channel]) -> list[dict[str, Any]]:
    old, new = (
        {channel.name: channel.value for channel in channels if channel.has_value} for channels in (before, after)
    )
    changes: list[dict[str, Any]] = []
    for name in dict.fromkeys([*old, *new]):
        for change, where, value in _differences(old, new, name):
            changes.append({"channel": name, "change": change, "where": where, "value": value})
    return changes


def _differences(old: dict[str, Any], new: dict[str, Any], name: str) -> list[tuple[str, str, Any]]:
    """Return the changes of one channel: of the whole value, of the elements of a list, or of the keys of a dictionary."""
    if name not in new:
        return [("removed", "", old[name])]
    if name not in old:
        return [("added", "", new[name])]
    one, other = old[name], new[name]
    if one == other:
        return []
    if isinstance(one, list) and isinstance(other, list):
        one, other = (dict(enumerate(value_list)) for value_list in (one, other))
    elif not isinstance(one, dict) or not isinstance(other, dict):
        return [("changed", "", other)]
    changes: list[tuple[str, str, Any]] = []
    for key in dict.fromkeys([*one, *other]):
        if key not in other:
            changes.append(("removed", f"[{key}]", one[key]))
        elif key not in one or one[key] != other[key]:
            changes.append(("changed" if key in one else "added", f"[{key}]", other[key]))
    return changes


def _summary(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "thread_id": checkpoint.thread_id,
        "namespace": checkpoint.namespace,
        "id": checkpoint.id,
        "parent": checkpoint.parent,
        "metadata": checkpoint.metadata,
        "created_at": checkpoint.created_at,
        "size_bytes": _size(checkpoint),
        "writes": sum(len(task.writes) for task in checkpoint.tasks),
    }


def _row(checkpoint: Checkpoint) -> list[str]:
    metadata = checkpoint.metadata
    return [
        checkpoint.thread_id,
        checkpoint.namespace,
        str(metadata.get("step", "")),
        str(metadata.get("source", "")),
        _when(checkpoint),
        f"{_size(checkpoint):,}",
        str(sum(len(task.writes) for task in checkpoint.tasks)),
        checkpoint.id,
    ]


def _channel_row(channel: Channel) -> list[str]:
    value = shorten(_brief(channel.value), PREVIEW) if channel.has_value else "(stored with an ancestor, or not set)"
    return [channel.name, str(channel.version), f"{channel.size_bytes:,}", value]


def _task(task: Any) -> dict[str, Any]:
    writes = [
        {"index": write.index, "channel": write.channel, "value": graph_values.write_value(write)}
        for write in task.writes
    ]
    return {"task_id": task.task_id, "task_path": task.task_path, "writes": writes}


def _print_more(page: Page[Checkpoint]) -> None:
    if page.next is not None:
        print_line(f"More checkpoints: --cursor {page.next}")


def _size(checkpoint: Checkpoint) -> int:
    """Return the size of a checkpoint, including the pieces that it shares with others."""
    return len(checkpoint.state) + sum(len(piece or b"") for piece in checkpoint.pieces)


def _when(checkpoint: Checkpoint) -> str:
    return checkpoint.created_at.strftime("%Y-%m-%d %H:%M:%S")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _brief(value: Any) -> str:
    """Format a value for people: objects with their short class name, lists as their length and last element."""
    if isinstance(value, list) and len(value) > 1 and isinstance(value[-1], dict):
        return f"{len(value):,}, the last: {_brief(value[-1])}"
    if isinstance(value, list) and len(value) == 1:
        return f"[{_brief(value[0])}]"
    if isinstance(value, dict) and "$type" in value:
        name = str(value["$type"]).rpartition(".")[2]
        inside = value.get("content", {key: field for key, field in value.items() if key != "$type"})
        return f"{name}: {_text(inside)}"
    return _text(value)
