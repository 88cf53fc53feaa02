"""``holdfast context-files``: the files of an agent's prompt, and the copies of its users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .database import open_tenant, tenant_option
from .output import json_option, print_json, print_line, print_table, print_text
from .record_commands import acting_option, as_user

F = TypeVar("F", bound=Callable[..., Any])
_agent = click.option("--agent", metavar="ID", required=True, help="The agent.")
_file = click.argument("file_name", metavar="FILE")


def _user(about: str) -> Callable[[F], F]:
    return click.option("--user", help=about)


@click.group("context-files")
def context_files() -> None:
    """Manage the files of an agent's prompt, such as SOUL.md, and the copies of its users."""


@context_files.command("list")
@tenant_option
@_agent
@_user("The user to whom the files apply. Default: the agent's own files.")
@json_option
def list_(database: str, tenant: str, agent: str, user: str | None, as_json: bool) -> None:
    """List the files that apply to a user."""
    with open_tenant(database, tenant) as handle:
        files = handle.context_files.list(agent, user=user)
    if as_json:
        print_json({"context_files": files})
        return
    rows = [
        [file.file_name, file.user, f"{len(file.content):,}", str(file.version), f"{file.updated_at:%Y-%m-%d %H:%M:%S}"]
        for file in files
    ]
    print_table(f"Context files of {agent}", ["file", "copy of", "characters", "version", "updated"], rows)


@context_files.command()
@tenant_option
@_agent
@_file
@_user("The user to whom the file applies. Default: the agent's own file.")
@json_option
def show(database: str, tenant: str, agent: str, file_name: str, user: str | None, as_json: bool) -> None:
    """Print the content of FILE as it applies to a user."""
    with open_tenant(database, tenant) as handle:
        file = handle.context_files.get(agent, file_name, user=user)
    if as_json:
        print_json({"context_file": file})
        return
    print_text(file.content if file.content.endswith("\n") else f"{file.content}\n")


@context_files.command("set")
@tenant_option
@_agent
@_file
@click.option(
    "--from",
    "source",
    type=click.File(encoding="utf-8"),
    required=True,
    help="A file with the content; - is the input.",
)
@_user("Write the copy of this user. Default: the agent's own file.")
@click.option("--version", type=int, help="Only if it still has this version; 0: only if it does not exist.")
@acting_option
@json_option
def set_(
    database: str,
    tenant: str,
    agent: str,
    file_name: str,
    source: Any,
    user: str | None,
    version: int | None,
    acting: str | None,
    as_json: bool,
) -> None:
    """Write FILE of an agent, or a user's copy of it."""
    content = source.read()
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        file = handle.context_files.set(agent, file_name, content, user=user, version=version)
    if as_json:
        print_json({"context_file": file})
        return
    print_line(f"{_named(agent, file_name, user)} has version {file.version}.")


@context_files.command()
@tenant_option
@_agent
@_file
@_user("Delete the copy of this user. Default: the agent's own file.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@acting_option
@json_option
def delete(
    database: str,
    tenant: str,
    agent: str,
    file_name: str,
    user: str | None,
    yes: bool,
    acting: str | None,
    as_json: bool,
) -> None:
    """Delete FILE of an agent, or a user's copy of it."""
    if not yes:
        click.confirm(f"Permanently delete {_named(agent, file_name, user)}?", abort=True, err=True)
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        handle.context_files.delete(agent, file_name, user=user)
    if as_json:
        print_json({"deleted": [agent, file_name, user]})
        return
    print_line(f"Deleted {_named(agent, file_name, user)}.")


@context_files.command()
@tenant_option
@_agent
@_file
@acting_option
@json_option
def propagate(database: str, tenant: str, agent: str, file_name: str, acting: str | None, as_json: bool) -> None:
    """Copy FILE of an agent over the copies that its users have."""
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        count = handle.context_files.propagate(agent, file_name)
    if as_json:
        print_json({"copies": count})
        return
    print_line(f"{count:,} users have the content of {_named(agent, file_name, None)}.")


@context_files.command()
@tenant_option
@_agent
@click.option("--user", required=True, help="The user who gets copies.")
@acting_option
@json_option
def seed(database: str, tenant: str, agent: str, user: str, acting: str | None, as_json: bool) -> None:
    """Give a user copies of the agent's templates that the user does not have."""
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        files = handle.context_files.seed(agent, user)
    if as_json:
        print_json({"context_files": files})
        return
    print_line(f"Copied {', '.join(file.file_name for file in files) or 'no file'}.")


def _named(agent: str, file_name: str, user: str | None) -> str:
    return f"{file_name} of {agent}" + ("" if user is None else f" for {user}")
