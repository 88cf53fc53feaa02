"""The command line: ``holdfast serve``, ``migrate``, ``sessions``, ``runs``, ``checkpoints``, ``import``, ``worker`` and others.

Commands contain no logic of their own: each is a few lines over the public API of Holdfast. Tables are for people, ``--json`` is
for programs. An error is one line on standard error. The exit code is 2 for a usage error and 1 for any other error.
"""

from __future__ import annotations

import sys

from holdfast.errors import MissingExtra
from holdfast.extras import needs


def main() -> None:
    """Run the command line: the entry point of ``holdfast`` and ``python -m holdfast``."""
    try:
        with needs("server"):
            from .commands import run
    except MissingExtra as error:
        sys.exit(f"Error: {error}")
    run()
