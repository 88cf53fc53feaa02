"""Custom tools: commands of a shell with a description and parameters for a model.

``render`` checks the arguments of a call and returns the command. Holdfast never runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from ...core import text
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
    Natural,
    Searchable,
)
from ...core.rows import Column
from ...core.store import reads
from ...engines.protocol import Connection
from ...errors import InvalidInput, NotFound
from ...ids import Id
from ...limits import Limits
from ..agents.agent_shares import LIVE_AGENT
from . import command_templates, json_schemas
from .agent_overlay import AgentOverlay, AsyncAgentOverlay
from .command_credentials import WithCredentials, check_environment, is_passable

PASSABLE = Format(r"[^\x00\ud800-\udfff]*", "a text without NUL characters and lone surrogates", "ls")


class CustomTool(Struct, frozen=True):
    """A tool that runs a command. ``agent`` is empty for a tool of all agents."""

    id: Annotated[Id, Key()]
    name: Annotated[str, Natural(), Limited("name_bytes", empty=False), Filterable(), Searchable()]
    agent: Annotated[str, Column("agent_id"), Natural(), Limited("name_bytes"), Filterable(), LIVE_AGENT]
    description: Annotated[str, Limited("text_bytes"), Searchable()]
    """For the model."""
    parameters: Annotated[dict[str, Any], Limited("metadata_bytes")]
    """The JSON Schema of the arguments."""
    command: Annotated[str, Limited("command_bytes", empty=False), PASSABLE]
    """Shell text with a placeholder ``{{.name}}`` for each argument; see ``command_templates``."""
    working_dir: Annotated[str, Limited("path_bytes"), PASSABLE]
    timeout_seconds: Annotated[int, AtLeast(1), Limited("command_timeout_s")]
    env: Annotated[Secret[dict[str, str]] | None, Merged()]
    is_enabled: Annotated[bool, Filterable()]
    created_by: Annotated[str, Limited("name_bytes"), Filterable()]
    version: int
    created_at: datetime
    updated_at: datetime


class NewCustomTool(Struct, frozen=True):
    """A custom tool to create."""

    name: str
    command: str
    id: str | UnsetType = UNSET
    agent: str = ""
    description: str = ""
    parameters: dict[str, Any] = {}
    working_dir: str = ""
    timeout_seconds: int = 60
    env: Secret[dict[str, str]] | None = None
    is_enabled: bool = True
    created_by: str = ""


class CustomToolChange(Struct, frozen=True):
    """A change of a custom tool. Variables are merged into the stored ones; ``None`` removes all."""

    name: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET
    command: str | UnsetType = UNSET
    working_dir: str | UnsetType = UNSET
    timeout_seconds: int | UnsetType = UNSET
    env: Secret[dict[str, str]] | UnsetType | None = UNSET
    is_enabled: bool | UnsetType = UNSET


class RenderedCommand(WithCredentials, frozen=True, kw_only=True):
    """A command to run: ``subprocess.run(["sh", "-c", command], env=..., cwd=..., timeout=...)``.

    ``environment()`` returns the environment, and ``scrub`` removes the values of ``env`` from the output.
    """

    command: str
    working_dir: str
    """Empty if the tool has none."""
    timeout_seconds: int


USED = OverlayTable(
    "custom_tools",
    CustomTool,
    name_field="name",
    level="agent",
    noun="custom tool",
    condition="custom_tools.is_enabled",
)


class AsyncCustomTools(AsyncAgentOverlay[CustomTool, NewCustomTool, CustomToolChange]):
    """The custom tools of one tenant, by name. A tool of an agent shadows the tool of the same name for all agents."""

    table, noun, order = "custom_tools", "custom tool", ("name", "agent")
    overlay = USED

    @reads
    async def render(
        self, connection: Connection, name: str, arguments: Mapping[str, Any], *, agent: str = ""
    ) -> RenderedCommand:
        """Return the command of the tool that an agent uses under this name, with the arguments filled in.

        Each value is one argument of the command, whatever it contains: a string as it is, any other value as JSON. A
        property without a value has its ``default`` in the parameters.

        Raises:
            NotFound: the agent does not exist, or has no enabled tool of this name.
            InvalidInput: the arguments do not match the parameters; ``field`` names the place.
            LimitExceeded: the arguments or the command are over ``command_bytes``.
            DecryptionFailed: the variables of the tool cannot be decrypted.
        """
        tool = await self._used(connection, name, agent)
        if tool is None:
            raise NotFound(f"{self.noun} {name!r} does not exist or is disabled", noun=self.noun, key=name)
        return _render(tool, arguments, self._scope.limits)

    def _check(self, given: Struct, row: CustomTool) -> None:
        json_schemas.check_schema(row.parameters, "parameters", self._scope.limits)
        command_templates.parse(row.command, _properties(row))
        if getattr(given, "env", UNSET) is not UNSET:
            check_environment(row.env, self.a_noun)


class CustomTools(AgentOverlay[CustomTool, NewCustomTool, CustomToolChange]):
    """The custom tools of one tenant, by name. A tool of an agent shadows the tool of the same name for all agents."""

    render = blocking(AsyncCustomTools.render)


def _render(tool: CustomTool, arguments: Mapping[str, Any], limits: Limits) -> RenderedCommand:
    values = _values(tool, arguments, limits)
    template = command_templates.parse(tool.command, _properties(tool))
    missing = next((name for name in template.names if values.get(name) is None), None)
    if missing is not None:
        raise InvalidInput(
            f"arguments.{missing} is missing: the command needs a value, or a default in the parameters",
            field=f"arguments.{missing}",
        )
    command = template.render(values)
    limits.check("command_bytes", len(command.encode()), "command")
    return RenderedCommand(
        command=command,
        working_dir=tool.working_dir,
        timeout_seconds=tool.timeout_seconds,
        env=None if tool.env is None else Secret(tool.env.reveal()),
    )


def _values(tool: CustomTool, arguments: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the arguments and the defaults of the others, after checking them."""
    if not isinstance(arguments, Mapping):
        raise InvalidInput(f"arguments must be a dictionary, not {type(arguments).__name__}", field="arguments")
    limits.check("command_bytes", text.size(text.dump(dict(arguments), depth=limits.json_depth)), "arguments")
    for name, value in arguments.items():
        if not is_passable(command_templates.to_text(value)):
            place = text.printable(f"arguments.{name}")
            raise InvalidInput(
                f"{place} contains a NUL character or a lone surrogate: no program can get it", field=place
            )
    properties = _properties(tool)
    defaults = {name: schema["default"] for name, schema in properties.items() if _has_default(schema)}
    values = {**defaults, **arguments}
    json_schemas.check_instance(tool.parameters, values, "arguments")
    return values


def _has_default(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "default" in schema


def _properties(tool: CustomTool) -> Mapping[str, Any]:
    properties: Any = tool.parameters.get("properties", {})
    return properties if isinstance(properties, Mapping) else {}
