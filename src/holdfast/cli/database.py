"""Which database, and whose part of it, a command is about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from holdfast import Holdfast, TenantHandle, address

F = TypeVar("F", bound=Callable[..., Any])


def database_option(command: F) -> F:
    """``--database``, or the environment's."""
    return click.option(
        "--database",
        metavar="URL",
        required=True,
        envvar="HOLDFAST_DATABASE_URL",
        show_envvar=True,
        help="A path, sqlite:///path or postgresql://...",
    )(command)


def tenant_option(command: F) -> F:
    """``--tenant`` and ``--database``, or the environment's."""
    option = click.option(
        "--tenant", metavar="NAME", required=True, envvar="HOLDFAST_TENANT", show_envvar=True, help="Whose."
    )
    return option(database_option(command))


def packs_option(command: F) -> F:
    """``--packs``, or the environment's."""
    return click.option(
        "--packs",
        metavar="PLACE",
        envvar="HOLDFAST_PACKS",
        show_envvar=True,
        help="Where large objects lie: a directory, or an address such as s3://bucket/folder.",
    )(command)


def open_there(database: str, packs: str | None = None) -> Holdfast:
    """A database that is there; a mistyped one is not made, to look empty.

    Raises:
        Unavailable: it is not there.
    """
    address.check_there(database)
    return Holdfast(database, packs=packs)


@contextmanager
def open_tenant(database: str, tenant: str, packs: str | None = None) -> Iterator[TenantHandle]:
    """What a tenant keeps in a database."""
    with open_there(database, packs) as hf:
        yield hf.tenant(tenant)


def describe(url: str) -> str:
    """A database as it may be shown: without the user, the password and the options, which can hold one too."""
    is_below = os.path.isabs(url) and url.startswith(os.getcwd() + os.sep)
    return os.path.relpath(url) if is_below else address.shown(url)
