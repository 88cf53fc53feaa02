"""Options of commands that can also be set by environment variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def option(*names: str, envvar: str | Sequence[str], **settings: Any) -> Callable[[F], F]:
    """Declare an option with an environment variable. ``--help`` shows the variable, and the default if there is one."""
    settings.setdefault("show_default", "default" in settings)
    return click.option(*names, envvar=envvar, show_envvar=True, **settings)
