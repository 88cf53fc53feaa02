"""Which database, and whose part of it, a command is about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from holdfast import Holdfast, TenantHandle

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


@contextmanager
def open_tenant(database: str, tenant: str) -> Iterator[TenantHandle]:
    """What a tenant keeps in a database."""
    with Holdfast(database) as hf:
        yield hf.tenant(tenant)


def describe(url: str) -> str:
    """A database as it may be shown: without the user, the password and the options, which can hold one too."""
    if "://" not in url:
        return os.path.relpath(url) if os.path.isabs(url) and url.startswith(os.getcwd() + os.sep) else url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
