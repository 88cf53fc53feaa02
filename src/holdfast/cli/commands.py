"""The root command: imports the other commands on demand and prints errors."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

import holdfast
from holdfast.errors import HoldfastError

from .output import one_line, print_line

_COMMANDS = {
    "agent-overrides": "registry.agent_overrides",
    "agents": "agents.agents",
    "apply": "apply.apply",
    "channels": "registry.channels",
    "checkpoints": "checkpoints.checkpoints",
    "completion": "completion.completion",
    "context-files": "context_files.context_files",
    "declared": "registry.declared",
    "doctor": "doctor.doctor",
    "export": "bundles.export",
    "import": "imports.imports",
    "keys": "keys.keys",
    "mcp": "mcp.mcp",
    "migrate": "migrate.migrate",
    "models": "registry.models",
    "pairing": "pairing.pairing",
    "profiles": "registry.profiles",
    "providers": "registry.providers",
    "retention": "retention.retention",
    "runs": "runs.runs",
    "secrets": "secrets.secrets",
    "serve": "serve.serve",
    "sessions": "sessions.sessions",
    "sim": "sim.sim",
    "tools": "tools.tools",
    "worker": "worker.worker",
    "workspace": "workspace.workspace",
}
"""Each module is imported when its command runs, so that the server does not load the code of the other commands."""


class Root(click.Group):
    """A group of commands that print an error as one line. HOLDFAST_DEBUG=1 prints the traceback instead."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*self.commands, *_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, name = _COMMANDS[cmd_name].partition(".")
        command: click.Command = getattr(import_module(f"{__package__}.{module}"), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command and translate its errors."""
        try:
            return super().invoke(ctx)
        except (HoldfastError, OSError) as error:
            if os.environ.get("HOLDFAST_DEBUG"):
                raise
            raise click.ClickException(_in_one_line(error)) from error
        except click.ClickException as error:
            error.message = one_line(error.message)  # type: ignore[misc]  # click prints it unchanged
            raise
        except (click.exceptions.Exit, click.Abort, EOFError):
            raise
        except Exception as error:
            if os.environ.get("HOLDFAST_DEBUG"):
                raise
            message = (
                f"unexpected {type(error).__name__}: {_in_one_line(error)} (HOLDFAST_DEBUG=1 prints the traceback)"
            )
            raise click.ClickException(message) from error


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def root() -> None:
    """Holdfast: durable state for AI agents."""


@root.command()
def version() -> None:
    """Print the version."""
    print_line(f"holdfast {holdfast.__version__}")


def run() -> None:
    """Run the command in the arguments of the process."""
    root(prog_name="holdfast")


def _in_one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    return one_line(" ".join(str(error).split())) or type(error).__name__
