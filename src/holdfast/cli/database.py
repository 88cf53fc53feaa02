"""Which database a command is about."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

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


def describe(url: str) -> str:
    """A database as it may be shown: without the user, the password and the options, which can hold one too."""
    if "://" not in url:
        return os.path.relpath(url) if os.path.isabs(url) and url.startswith(os.getcwd() + os.sep) else url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
