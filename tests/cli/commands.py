"""Lists every command of the command line with its path."""

from __future__ import annotations

from collections.abc import Iterator

import click

from holdfast.cli.record_commands import RecordGroup


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the commands of a group; the commands of a nested group follow it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def is_inherited(group: click.Group, path: tuple[str, ...]) -> bool:
    """Return whether a command, given by its path in a group, is one that every record store has."""
    *parents, last = path
    parent: click.Command | None = group
    for name in parents:
        assert isinstance(parent, click.Group)
        parent = parent.get_command(click.Context(parent), name)
    return isinstance(parent, RecordGroup) and last in parent.inherited
