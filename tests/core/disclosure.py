"""Everything that an error report could disclose."""

from __future__ import annotations

import traceback
from pathlib import Path

TESTS = str(Path(__file__).parents[1])


def everything_about(error: BaseException) -> str:
    """Return what the most verbose error reporter would send: all errors of the chain, with the variables of every frame.

    Frames of tests are left out: they know the secret.
    """
    told: list[str] = []
    for item in _chain(error):
        whole = traceback.TracebackException.from_exception(item, capture_locals=True)
        frames = [frame for frame in whole.stack if not frame.filename.startswith(TESTS)]
        told += [*whole.format_exception_only(), *(repr(frame.locals) for frame in frames)]
    return "\n".join(told)


def _chain(error: BaseException | None) -> list[BaseException]:
    return [] if error is None else [error, *_chain(error.__cause__), *_chain(error.__context__)]
