"""``holdfast checkpoints``: look at the saved states of graphs, compare them, and remove old ones."""

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
    """Look at the saved states of graphs, compare them, and remove old ones."""


def user_option(command: F) -> F:
    """``--user``, and whose."""
    help = "Whose threads, where they are kept apart by user."
    return tenant_option(packs_option(click.option("--user", help=help)(command)))


def thread_option(command: F) -> F:
    """``--thread`` and ``--namespace``."""
    thread = click.option("--thread", metavar="ID", required=True, help="A thread, by its id.")
    namespace = click.option(
        "--namespace", metavar="NAME", default="", help="A subgraph; without it, the graph itself."
    )
    return user_option(thread(namespace(command)))


@checkpoints.command("list")
@user_option
@click.option("--thread", metavar="ID", help="Only those of this thread.")
@click.option("--namespace", metavar="NAME", help="Only those of this subgraph.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="How many at most.")
@click.option("--cursor", help="Where the page before ended.")
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
    """List checkpoints, the newest first."""
    with open_tenant(database, tenant, packs) as there:
        found = there.checkpoints.list(thread, namespace=namespace, user=user, limit=limit, cursor=cursor)
    if as_json:
        print_json({"checkpoints": [_summary(each) for each in found], "next": found.next})
        return
    columns = ["thread", "namespace", "step", "source", "saved", "size", "writes", "id"]
    print_table(f"Checkpoints of {tenant}", columns, [_row(each) for each in found])
    _print_more(found)


@checkpoints.command()
@thread_option
@click.option("--id", metavar="ID", help="A checkpoint; without it, the newest.")
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
    """Show a checkpoint: its channels with their versions and values, and what tasks wrote to it."""
    with open_tenant(database, tenant, packs) as there:
        found = _find(there, thread, namespace, user, id)
    channels, problem = _channels(found)
    tasks = [_task(each) for each in found.tasks]
    if as_json:
        print_json({**_summary(found), "channels": channels, "problem": problem, "tasks": tasks})
        return
    print_line(f"{found.id}  of {thread}{f' in {namespace}' if namespace else ''}, saved {_when(found)}")
    print_line(f"parent {found.parent or '(none)'}; metadata {shorten(_text(found.metadata), 300)}")
    if problem:
        print_line(f"Its values cannot be shown: {problem}. {_size(found):,} bytes in {len(found.pieces)} pieces.")
    else:
        print_table("Channels", ["channel", "version", "size", "value"], [_channel_row(each) for each in channels])
    rows = [
        [task["task_id"], str(write["index"]), write["channel"], shorten(_brief(write["value"]), PREVIEW)]
        for task in tasks
        for write in task["writes"]
    ]
    if rows:
        print_table("Written by tasks", ["task", "", "channel", "value"], rows)


@checkpoints.command()
@thread_option
@click.option("--from", "first", metavar="ID", help="The older one; without it, the parent of the newer.")
@click.option("--to", "second", metavar="ID", help="The newer one; without it, the newest.")
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
    """Show what is different between two checkpoints of a thread."""
    with open_tenant(database, tenant, packs) as there:
        newer = _find(there, thread, namespace, user, second)
        older = None if first is None and newer.parent is None else first or newer.parent
        before = [] if older is None else _readable(_find(there, thread, namespace, user, older))
    changes = _changes(before, _readable(newer))
    if as_json:
        print_json({"from": older, "to": newer.id, "changes": changes})
        return
    rows = [
        [each["channel"], each["change"], each["where"], shorten(_brief(each["value"]), PREVIEW)] for each in changes
    ]
    if rows:
        print_table(f"{older or 'nothing'} -> {newer.id}", ["channel", "", "where", "value"], rows)
    else:
        print_line(f"{older or 'nothing'} and {newer.id} have the same values.")


@checkpoints.command()
@user_option
@click.option(
    "--thread", "threads", metavar="ID", multiple=True, required=True, help="A thread; may be given several times."
)
@click.option(
    "--keep", default=1, show_default=True, type=click.IntRange(min=0), help="How many of each namespace stay."
)
@click.option("--days", type=click.IntRange(min=0), help="Whatever is younger than so many days stays as well.")
@click.option("--runs", type=click.IntRange(min=0), help="Whatever is of the newest runs, so many, stays as well.")
@click.option("--yes", is_flag=True, help="Do not ask.")
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
    """Remove all but the newest checkpoints of threads. What those that stay cannot do without stays too."""
    named = f"thread {threads[0]}" if len(threads) == 1 else f"{len(threads)} threads"
    if not yes:
        kept = keep or days or runs
        what = f"all but the newest {keep} checkpoints of every namespace" if kept else "everything"
        click.confirm(one_line(f"Remove {what} of {named} of {tenant}?"), abort=True, err=True)
    with open_tenant(database, tenant, packs) as there:
        young = None if days is None else days * DAY_S
        removed = there.checkpoints.prune(list(threads), keep=keep, younger_than_s=young, runs=runs, user=user)
    if as_json:
        print_json({"removed": removed})
    else:
        print_line(f"{removed:,} checkpoints of {named} removed.")


def _find(there: TenantHandle, thread: str, namespace: str, user: str | None, id: str | None) -> Checkpoint:
    found = there.checkpoints.find(thread, id=id, namespace=namespace, user=user)
    if found is None and id is None and not namespace:
        inside = there.checkpoints.list(thread, user=user, limit=1)
        if inside:
            raise NotFound(f"thread {thread!r} has nothing in the graph itself; try --namespace {inside[0].namespace}")
    if found is None:
        what = "no checkpoint" if id is None else f"no checkpoint {id}"
        raise NotFound(f"thread {thread!r} has {what}{f' in {namespace!r}' if namespace else ''} here")
    return found


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
    old, new = ({each.name: each.value for each in channels if each.has_value} for channels in (before, after))
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys([*old, *new]):
        for change, where, value in _differences(old, new, name):
            found.append({"channel": name, "change": change, "where": where, "value": value})
    return found


def _differences(old: dict[str, Any], new: dict[str, Any], name: str) -> list[tuple[str, str, Any]]:
    """How the value under a name has changed: whole, or by the elements of a list or the keys of a dictionary."""
    if name not in new:
        return [("removed", "", old[name])]
    if name not in old:
        return [("added", "", new[name])]
    one, other = old[name], new[name]
    if one == other:
        return []
    if isinstance(one, list) and isinstance(other, list):
        one, other = (dict(enumerate(each)) for each in (one, other))
    elif not isinstance(one, dict) or not isinstance(other, dict):
        return [("changed", "", other)]
    found: list[tuple[str, str, Any]] = []
    for key in dict.fromkeys([*one, *other]):
        if key not in other:
            found.append(("removed", f"[{key}]", one[key]))
        elif key not in one or one[key] != other[key]:
            found.append(("changed" if key in one else "added", f"[{key}]", other[key]))
    return found


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
    value = shorten(_brief(channel.value), PREVIEW) if channel.has_value else "(with an ancestor, or none)"
    return [channel.name, str(channel.version), f"{channel.size_bytes:,}", value]


def _task(task: Any) -> dict[str, Any]:
    writes = [
        {"index": each.index, "channel": each.channel, "value": graph_values.written(each)} for each in task.writes
    ]
    return {"task_id": task.task_id, "task_path": task.task_path, "writes": writes}


def _print_more(page: Page[Checkpoint]) -> None:
    if page.next is not None:
        print_line(f"There are more: --cursor {page.next}")


def _size(checkpoint: Checkpoint) -> int:
    """What a checkpoint would take if it shared nothing with others."""
    return len(checkpoint.state) + sum(len(piece or b"") for piece in checkpoint.pieces)


def _when(checkpoint: Checkpoint) -> str:
    return checkpoint.created_at.strftime("%Y-%m-%d %H:%M:%S")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _brief(value: Any) -> str:
    """A value for people: objects by their short names, of a list how long it is and the last element."""
    if isinstance(value, list) and len(value) > 1 and isinstance(value[-1], dict):
        return f"{len(value):,}, the last: {_brief(value[-1])}"
    if isinstance(value, list) and len(value) == 1:
        return f"[{_brief(value[0])}]"
    if isinstance(value, dict) and "$type" in value:
        name = str(value["$type"]).rpartition(".")[2]
        inside = value.get("content", {key: each for key, each in value.items() if key != "$type"})
        return f"{name}: {_text(inside)}"
    return _text(value)
