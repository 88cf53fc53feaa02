"""The commands as a whole, and what becomes of an error."""

from __future__ import annotations

import os
from typing import Any

import click

import holdfast
from holdfast.errors import HoldfastError

from . import (
    bundles,
    checkpoints,
    completion,
    doctor,
    importing,
    keys,
    migrate,
    retention,
    runs,
    serve,
    sessions,
    sim,
    worker,
    workspace,
)

_EXTRAS = {
    "starlette": "server",
    "uvicorn": "server",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "asyncpg": "postgres",
    "redis": "erasure",
}


class OneLineErrors(click.Group):
    """A group whose commands fail with one line instead of a traceback. HOLDFAST_DEBUG=1 brings the traceback back."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except (HoldfastError, OSError, ModuleNotFoundError) as error:
            if os.environ.get("HOLDFAST_DEBUG"):
                raise
            raise click.ClickException(_in_one_line(error)) from error
        except (click.ClickException, click.exceptions.Exit, click.Abort, EOFError):
            raise
        except Exception as error:
            if os.environ.get("HOLDFAST_DEBUG"):
                raise
            message = f"unexpected {type(error).__name__}: {_in_one_line(error)} (HOLDFAST_DEBUG=1 shows where)"
            raise click.ClickException(message) from error


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def root() -> None:
    """Holdfast: durable state for AI agents."""


@root.command()
def version() -> None:
    """Say which release this is."""
    click.echo(f"holdfast {holdfast.__version__}")


root.add_command(serve.serve)
root.add_command(migrate.migrate)
root.add_command(sessions.sessions)
root.add_command(runs.runs)
root.add_command(checkpoints.checkpoints)
root.add_command(workspace.workspace)
root.add_command(retention.retention)
root.add_command(doctor.doctor)
root.add_command(importing.importing)
importing.importing.add_command(bundles.bundle)
root.add_command(bundles.exporting)
root.add_command(keys.keys)
root.add_command(worker.worker)
root.add_command(sim.sim)
root.add_command(completion.completion)


def run() -> None:
    """Run the command that the process was started with."""
    root(prog_name="holdfast")


def _in_one_line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get((error.name or "").partition(".")[0], "all")
        return f"this needs {error.name}: pip install 'holdfast[{extra}]'"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
