"""Imports of optional libraries, which the extras of the package install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import MissingExtra


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Wrap imports of libraries that an extra installs.

    Raises:
        MissingExtra: a library is not installed; the message contains the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == __package__:
            raise  # one of our own modules is missing: the installation is damaged
        message = f"{error.name} is not installed: pip install '{__package__}[{extra}]'"
        raise MissingExtra(message, extra=extra, name=error.name) from error
