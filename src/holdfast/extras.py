"""Optional libraries: each extra of the package brings some of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import MissingExtra


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Import what an extra brings inside this block.

    Raises:
        MissingExtra: a library of it is not installed; the message is the line that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == __package__:
            raise  # a module of our own: the package is damaged
        message = f"this needs {error.name}: pip install '{__package__}[{extra}]'"
        raise MissingExtra(message, extra=extra, name=error.name) from error
