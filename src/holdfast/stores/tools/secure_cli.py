"""Programs with credentials: which programs an agent may start, with which environment and without which arguments.

``prepare`` checks a command line and returns the arguments for ``subprocess``. Holdfast never runs it. Credentials are in the
program's environment only, so a model sees them neither in the command nor, with ``scrub``, in its output.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from ...core.actor_context import ActorContext
from ...core.blocking import blocking
from ...core.crypto import Secret
from ...core.overlay import OverlayTable
from ...core.records import (
    AtLeast,
    Filterable,
    Format,
    Key,
    Limited,
    Merged,
    Names,
    Natural,
    Searchable,
)
from ...core.rows import Column
from ...core.store import writes_with_actor
from ...engines.protocol import Connection
from ...errors import NotFound
from ...ids import Id
from ..agents.agent_shares import LIVE_AGENT
from . import command_lines, json_schemas
from .agent_overlay import AgentOverlay, AsyncAgentOverlay
from .command_credentials import WithCredentials, check_environment


class SecureCLI(Struct, frozen=True):
    """The configuration of a program. ``agent`` is empty for a configuration for all agents."""

    id: Annotated[Id, Key()]
    binary_name: Annotated[
        str,
        Natural(),
        Limited("name_bytes", empty=False),
        Format(r"[^/\s\x00\ud800-\udfff]+", "the name of a program without its directory", "gh"),
        Filterable(),
        Searchable(),
    ]
    agent: Annotated[str, Column("agent_id"), Natural(), Limited("name_bytes"), Filterable(), LIVE_AGENT]
    binary_path: Annotated[
        str, Limited("path_bytes"), Format(r"/[^\x00\ud800-\udfff]*", "an absolute path", "/usr/bin/gh")
    ]
    """The program to start. If it is empty, the program is searched in ``PATH``."""
    description: Annotated[str, Limited("text_bytes"), Searchable()]
    env: Annotated[Secret[dict[str, str]] | None, Merged()]
    deny_args: Annotated[list[str], Names("deny_patterns")]
    """Regular expressions; a command is refused if one matches any part of its arguments, joined by spaces."""
    deny_verbose: Annotated[list[str], Names("deny_patterns")]
    """The same for arguments that make the program print its credentials."""
    timeout_seconds: Annotated[int, AtLeast(1), Limited("command_timeout_s")]
    tips: Annotated[str, Limited("text_bytes")]
    """For the model."""
    is_enabled: Annotated[bool, Filterable()]
    hides_global: Annotated[bool, Filterable()]
    """Whether the agent cannot use the configuration for all agents, even if its own is disabled."""
    created_by: Annotated[str, Limited("name_bytes"), Filterable()]
    version: int
    created_at: datetime
    updated_at: datetime


class NewSecureCLI(Struct, frozen=True):
    """The configuration of a program to create."""

    binary_name: str
    id: str | UnsetType = UNSET
    agent: str = ""
    binary_path: str = ""
    description: str = ""
    env: Secret[dict[str, str]] | None = None
    deny_args: list[str] = []
    deny_verbose: list[str] = []
    timeout_seconds: int = 30
    tips: str = ""
    is_enabled: bool = True
    hides_global: bool = False
    created_by: str = ""


class SecureCLIChange(Struct, frozen=True):
    """A change of the configuration of a program. Variables are merged into the stored ones; ``None`` removes all."""

    binary_name: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    binary_path: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    env: Secret[dict[str, str]] | UnsetType | None = UNSET
    deny_args: list[str] | UnsetType = UNSET
    deny_verbose: list[str] | UnsetType = UNSET
    timeout_seconds: int | UnsetType = UNSET
    tips: str | UnsetType = UNSET
    is_enabled: bool | UnsetType = UNSET
    hides_global: bool | UnsetType = UNSET


class PreparedCommand(WithCredentials, frozen=True, kw_only=True):
    """A command to run: ``subprocess.run(argv, env=environment(), timeout=timeout_seconds)``.

    ``environment()`` returns the environment with the credentials, and ``scrub`` removes them from the output.
    """

    argv: list[str]
    timeout_seconds: int


USED = OverlayTable(
    "secure_cli",
    SecureCLI,
    name_field="binary_name",
    level="agent",
    noun="CLI program",
    condition="(secure_cli.is_enabled OR secure_cli.hides_global)",
)


class AsyncSecureCLIs(AsyncAgentOverlay[SecureCLI, NewSecureCLI, SecureCLIChange]):
    """The programs with credentials of one tenant, by name. An agent's own configuration of a program comes first."""

    table, noun, order = "secure_cli", "CLI program", ("binary_name", "agent")
    overlay = USED

    @writes_with_actor
    async def prepare(
        self, connection: Connection, acting: ActorContext, command: str, agent: str = ""
    ) -> PreparedCommand:
        """Check a command line against the configuration of its program; return its words, environment and timeout.

        If the program has credentials, the activity log gets an entry in the same transaction.

        Raises:
            InvalidInput: the command is empty, or a quote is not closed.
            LimitExceeded: the command is longer than ``cli_command_bytes``.
            NotFound: the agent does not exist, or has no enabled configuration of the program.
            CommandRefused: a rule refuses the command; ``rule`` and ``pattern`` name it.
            DecryptionFailed: the credentials cannot be decrypted.
        """
        words = command_lines.split(command, self._scope.limits)
        name = command_lines.program_of(words)
        row = await self._used(connection, name, agent) if name else None
        if row is None:
            raise NotFound(f"{self.noun} {name!r} does not exist or is disabled", noun=self.noun, key=name)
        program = command_lines.check_path(words[0], row.binary_path)
        denied = {"deny_args": row.deny_args, "deny_verbose": row.deny_verbose}
        command_lines.check_arguments(words[1:], denied)
        env = None if row.env is None else Secret(row.env.reveal())
        if env is not None:
            await self._on_change(connection, acting, "revealed", row, ["env"])
        return PreparedCommand(argv=[program, *words[1:]], env=env, timeout_seconds=row.timeout_seconds)

    def _check(self, given: Struct, row: SecureCLI) -> None:
        patterns: dict[str, Any] = {"deny_args": row.deny_args, "deny_verbose": row.deny_verbose}
        for field, listed in patterns.items():
            for pattern in listed:
                json_schemas.check_pattern(pattern, field)
        if getattr(given, "env", UNSET) is not UNSET:
            check_environment(row.env, self.a_noun)


class SecureCLIs(AgentOverlay[SecureCLI, NewSecureCLI, SecureCLIChange]):
    """The programs with credentials of one tenant, by name. An agent's own configuration of a program comes first."""

    prepare = blocking(AsyncSecureCLIs.prepare)
