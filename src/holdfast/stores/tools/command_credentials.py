"""The environment of a command: variables with credentials, and removing those credentials from its output."""

from __future__ import annotations

import os
import re
from typing import Any

from msgspec import Struct

from ...core.crypto import Secret
from ...errors import InvalidInput
from .scrubbing import ScrubbedStream, Scrubber

INHERITED = ("PATH", "HOME", "LANG", "USER")
"""The variables that a command inherits from the process that starts it."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNPASSABLE = re.compile("[\x00\ud800-\udfff]")


class WithCredentials(Struct, frozen=True, kw_only=True):
    """A command with variables that hold credentials."""

    env: Secret[dict[str, str]] | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment for the command: ``PATH``, ``HOME``, ``LANG`` and ``USER`` of this process, and the credentials.

        Relative directories are removed from ``PATH``, so that no program is found in the directory in which an agent works.
        """
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        if "PATH" in inherited:
            inherited["PATH"] = ":".join(part for part in inherited["PATH"].split(":") if part.startswith("/"))
        return inherited | self._credentials()

    def scrub(self, text: str) -> str:
        """Return output of the command with its credentials replaced by a mask; see ``scrubber``."""
        return self.scrubber().scrub(text)

    def scrub_stream(self) -> ScrubbedStream:
        """Return a stream that removes the credentials from output that arrives in pieces."""
        return self.scrubber().stream()

    def scrubber(self) -> Scrubber:
        """Return a scrubber of the credentials. Those with fewer than ``MIN_SCRUBBED_CHARS`` characters are not removed."""
        return Scrubber(self._credentials().values())

    def _credentials(self) -> dict[str, str]:
        return {} if self.env is None else dict(self.env.reveal())


def check_environment(env: Secret[dict[str, Any]] | None, what: str) -> None:
    """Check the names and values of environment variables. Errors name a variable and never show its value.

    Raises:
        InvalidInput: a name is not the name of a variable, or a value is not a text that a process can receive.
    """
    if env is None:
        return
    # Only names are in variables: a traceback must not show a value.
    wrong = next((name for name in env.reveal() if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise InvalidInput(
            f"env of {what}: {wrong[:60]!r} is not the name of a variable: use letters, digits and _", field="env"
        )
    wrong = next((name for name, value in env.reveal().items() if not is_passable(value)), None)
    if wrong is not None:
        raise InvalidInput(f"env of {what}: {wrong} must be a text without NUL characters", field="env")


def is_passable(value: object) -> bool:
    """Return whether a value is a text that can be an argument or a variable of a process."""
    return isinstance(value, str) and _UNPASSABLE.search(value) is None
