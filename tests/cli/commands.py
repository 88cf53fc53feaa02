"""Every command of the command line, by its path."""

from __future__ import annotations

from collections.abc import Iterator

import click


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The commands of a group, those of the groups in it after each."""
    context = click.Context(group)
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        assert each is not None
        yield (*path, name), each
        if isinstance(each, click.Group):
            yield from commands(each, (*path, name))
