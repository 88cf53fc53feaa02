"""The command line: ``holdfast serve``, ``migrate``, ``sessions``, ``runs``, ``checkpoints``, ``import``, ``worker`` and others.

Commands translate, they never decide: each is a few lines over the public names of Holdfast. Tables are for people, ``--json`` is
for programs. An error is one line on standard error: exit code 2 for a command that was not understood, 1 for everything else.
"""

from __future__ import annotations

import sys

from holdfast.errors import MissingExtra
from holdfast.extras import needs


def main() -> None:
    """Run the command line; what ``holdfast`` and ``python -m holdfast`` do."""
    try:
        with needs("server"):
            from .commands import run
    except MissingExtra as error:
        sys.exit(f"Error: {error}")
    run()
