"""Routes of tools that run as commands: custom tools, builtin tools and programs with credentials.

Credentials are masked in every response. Programs that need them use the library.
"""

from __future__ import annotations

from holdfast.types import AsyncBuiltinTools, AsyncCustomTools, AsyncSecureCLIs, CustomTool, SecureCLI

from ..record_routes import records
from ..store_routes import route
from .conversation import T

_CUSTOM, _BUILTIN, _CLI = T + "/custom-tools", T + "/builtin-tools", T + "/secure-cli"

ROUTES = [
    *records(_CUSTOM, "custom_tools", AsyncCustomTools),
    route(
        "GET",
        _CUSTOM + "/effective",
        "custom_tools",
        AsyncCustomTools.effective,
        "list_effective_custom_tools",
        row=CustomTool,
    ),
    route(
        "GET",
        _CUSTOM + "/resolve/{name}",
        "custom_tools",
        AsyncCustomTools.resolve,
        "resolve_custom_tool",
        row=CustomTool,
    ),
    route("POST", _CUSTOM + "/render", "custom_tools", AsyncCustomTools.render, "render_custom_tool", need="read"),
    *records(_BUILTIN, "builtin_tools", AsyncBuiltinTools),
    route("POST", _BUILTIN + "/seed", "builtin_tools", AsyncBuiltinTools.seed, "seed_builtin_tools"),
    route(
        "GET", _BUILTIN + "/{name}/settings", "builtin_tools", AsyncBuiltinTools.settings, "get_builtin_tool_settings"
    ),
    *records(_CLI, "secure_cli", AsyncSecureCLIs),
    route(
        "GET",
        _CLI + "/effective",
        "secure_cli",
        AsyncSecureCLIs.effective,
        "list_effective_cli_programs",
        row=SecureCLI,
    ),
    route("GET", _CLI + "/resolve/{name}", "secure_cli", AsyncSecureCLIs.resolve, "resolve_cli_program", row=SecureCLI),
    route("POST", _CLI + "/prepare", "secure_cli", AsyncSecureCLIs.prepare, "prepare_cli_command"),
]
