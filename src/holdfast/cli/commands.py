"""The commands as a whole, and what becomes of an error."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

import holdfast
from holdfast.errors import HoldfastError

from .output import one_line, print_line

_COMMANDS = {
    "checkpoints": "checkpoints.checkpoints",
    "completion": "completion.completion",
    "doctor": "doctor.doctor",
    "export": "bundles.exporting",
    "import": "importing.importing",
    "keys": "keys.keys",
    "migrate": "migrate.migrate",
    "retention": "retention.retention",
    "runs": "runs.runs",
    "secrets": "secrets.secrets",
    "serve": "serve.serve",
    "sessions": "sessions.sessions",
    "sim": "sim.sim",
    "worker": "worker.worker",
    "workspace": "workspace.workspace",
}
"""Each is imported when it is asked for: nobody who serves wants to wait for what restores a workspace, or give it memory."""


class Root(click.Group):
    """Commands that fail with one line instead of a traceback. HOLDFAST_DEBUG=1 brings the traceback back."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted([*self.commands, *_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name."""
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, name = _COMMANDS[cmd_name].partition(".")
        command: click.Command = getattr(import_module(f"{__package__}.{module}"), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (HoldfastError, OSError) as error:
            if os.environ.get("HOLDFAST_DEBUG"):
                raise
            raise click.ClickException(_in_one_line(error)) from error
        except click.ClickException as error:
            error.message = one_line(error.message)  # type: ignore[misc]  # click prints it as it is
            raise
        except (click.exceptions.Exit, click.Abort, EOFError):
            raise
        except Exception as error:
            if os.environ.get("HOLDFAST_DEBUG"):
                raise
            message = f"unexpected {type(error).__name__}: {_in_one_line(error)} (HOLDFAST_DEBUG=1 shows where)"
            raise click.ClickException(message) from error


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def root() -> None:
    """Holdfast: durable state for AI agents."""


@root.command()
def version() -> None:
    """Say which release this is."""
    print_line(f"holdfast {holdfast.__version__}")


def run() -> None:
    """Run the command that the process was started with."""
    root(prog_name="holdfast")


def _in_one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    return one_line(" ".join(str(error).split())) or type(error).__name__
