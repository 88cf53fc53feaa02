"""``holdfast tools``: custom tools, builtin tools and programs with credentials."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.types import AsyncBuiltinTools, AsyncCustomTools, AsyncSecureCLIs, NewBuiltinTool

from .database import open_tenant, tenant_option
from .output import json_option, print_json, print_line, print_table
from .record_commands import MAX_ROWS, acting_option, as_user, cell, record_commands
from .record_options import json_value

_agent = click.option("--agent", default="", help="The agent; without it, what applies to all agents.")


@click.group()
def tools() -> None:
    """Manage the tools of agents that run as commands."""


custom = record_commands(
    "custom_tools", AsyncCustomTools, columns=["name", "agent", "description", "is_enabled", "id"], name="custom"
)
builtin = record_commands(
    "builtin_tools", AsyncBuiltinTools, columns=["category", "name", "display_name", "is_enabled"], name="builtin"
)
cli = record_commands(
    "secure_cli", AsyncSecureCLIs, columns=["binary_name", "agent", "binary_path", "is_enabled", "id"], name="cli"
)
for group in (custom, builtin, cli):
    tools.add_command(group)


def _effective(store: str, kind: Any, columns: Sequence[str]) -> click.Command:
    @click.command("effective", help=f"List the enabled {kind.nouns} that an agent uses.")
    @tenant_option
    @_agent
    @json_option
    def command(database: str, tenant: str, agent: str, as_json: bool) -> None:
        with open_tenant(database, tenant) as handle:
            rows = list(getattr(handle, store).effective(agent, limit=MAX_ROWS))
        if as_json:
            print_json({kind.nouns.replace(" ", "_").lower(): rows})
            return
        title = f"{kind.nouns[0].upper()}{kind.nouns[1:]} of {agent or 'all agents'}"
        print_table(title, columns, [[cell(getattr(row, field)) for field in columns] for row in rows])

    return command


custom.add_command(_effective("custom_tools", AsyncCustomTools, ["name", "agent", "description"]))
cli.add_command(_effective("secure_cli", AsyncSecureCLIs, ["binary_name", "agent", "description"]))


@custom.command()
@tenant_option
@click.argument("name")
@click.option("--arguments", type=json_value, metavar="JSON", default="{}", help="The arguments: JSON, or @FILE.")
@_agent
@json_option
def render(database: str, tenant: str, name: str, arguments: Any, agent: str, as_json: bool) -> None:
    """Print the command of the tool NAME for these arguments, without running it."""
    with open_tenant(database, tenant) as handle:
        rendered = handle.custom_tools.render(name, arguments, agent=agent)
    if as_json:
        print_json({"command": rendered})
    else:
        print_line(rendered.command)


@builtin.command()
@tenant_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--prune", is_flag=True, help="Remove the tools that are not in FILE.")
@acting_option
@json_option
def seed(database: str, tenant: str, file: Path, prune: bool, acting: str | None, as_json: bool) -> None:
    """Create and describe the tools in FILE, a JSON list of objects. What people have set stays."""
    try:
        described = msgspec.json.decode(file.read_bytes(), type=list[NewBuiltinTool])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file} is not a JSON list of tools: {error}") from error
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        result = handle.builtin_tools.seed(described, prune=prune)
    if as_json:
        print_json({"seeded": result})
    else:
        print_line(f"{len(result.created)} created, {len(result.changed)} changed, {len(result.removed)} removed.")


@cli.command()
@tenant_option
@click.argument("command")
@_agent
@acting_option
@json_option
def prepare(database: str, tenant: str, command: str, agent: str, acting: str | None, as_json: bool) -> None:
    """Check COMMAND against the configuration of its program, and print its words, without running it."""
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        prepared = handle.secure_cli.prepare(command, agent)
    if as_json:
        print_json({"command": prepared})
    else:
        print_line(shlex.join(prepared.argv))
