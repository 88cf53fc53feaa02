"""``holdfast serve``: run the HTTP server."""

from __future__ import annotations

import errno
import logging
import math
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from holdfast import key_file
from holdfast.encryption import KeyRing
from holdfast.errors import InvalidInput

from .database import (
    FILE,
    database_of_type,
    describe,
    keys_of,
    packs_option,
    per_run,
    per_run_option,
    pool_options,
    redis_options,
    with_pool,
)
from .logs import LEVELS, show_deletions, start_logging
from .output import print_line
from .parameters import option

_NEVER_ZERO = ("answer_s", "connections")
_ALIASES = {"checkpoint_retention_per_run": "snapshots_per_run"}
"""Former names of options, which are still accepted in a configuration file."""


def _read_config(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Use the values of a TOML file as defaults of the options."""
    if value is None:
        return None
    try:
        settings: dict[str, Any] = tomllib.loads(value.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{value} cannot be read as TOML: {error}") from None
    settings = {name.replace("-", "_"): setting for name, setting in settings.items()}
    for alias in settings.keys() & _ALIASES.keys():
        settings.setdefault(_ALIASES[alias], settings.pop(alias))
    if isinstance(settings.get("limits"), dict):
        settings["limits"] = [f"{name}={number}" for name, number in settings["limits"].items()]
    for name in ("trust", "allowed_hosts"):
        if isinstance(settings.get(name), str):
            settings[name] = [settings[name]]
    valid = {parameter.name for parameter in context.command.params if parameter.name not in (None, "config")}
    unknown = sorted(set(settings) - valid)
    if unknown:
        raise click.BadParameter(f"{value} contains unknown options: {', '.join(unknown)}; valid are {sorted(valid)}")
    repeatable = {parameter.name for parameter in context.command.params if parameter.multiple}
    for name, setting in settings.items():
        if isinstance(setting, (list, dict)) and name not in repeatable:
            raise click.BadParameter(f"{value}: {name} must be a single value")
    context.default_map = {**settings, **(context.default_map or {})}
    return value


def _require_tenant_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value:
        raise click.BadParameter("the name of a tenant cannot be empty; omit the option for 'default'")
    return value


@click.command()
@option(
    "--config",
    envvar="HOLDFAST_CONFIG",
    is_eager=True,
    callback=_read_config,
    expose_value=False,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file with any of these options, named without the leading dashes.",
)
@option("--host", default="127.0.0.1", envvar="HOLDFAST_HOST", help="The address to listen on.")
@option(
    "--port",
    default=8420,
    envvar="HOLDFAST_PORT",
    type=click.IntRange(0, 65535),
    help="The port to listen on; 0 for any free port.",
)
@option(
    "--data-dir",
    default="data",
    envvar="HOLDFAST_DATA_DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The directory that contains {FILE}; created if it does not exist.",
)
@option(
    "--database",
    metavar="URL",
    envvar="HOLDFAST_DATABASE_URL",
    help="Another database instead: a path, sqlite:///path or postgresql://...",
)
@option(
    "--database-type",
    envvar="DATABASE_TYPE",
    type=click.Choice(["sqlite", "postgres"]),
    help="Selects one of the next two options, if --database is not given.",
)
@option(
    "--sqlite-database-path",
    metavar="PATH",
    envvar="SQLITE_DATABASE_PATH",
    help="The SQLite file, if --database is not given.",
)
@option(
    "--postgres-database-url",
    metavar="URL",
    envvar="POSTGRES_DATABASE_URL",
    help="The PostgreSQL database, if --database is not given and --database-type is postgres.",
)
@packs_option
@option(
    "--migrate", is_flag=True, envvar="HOLDFAST_MIGRATE", help="Migrate the schema first, also a PostgreSQL schema."
)
@option(
    "--allow-remote",
    is_flag=True,
    envvar="HOLDFAST_ALLOW_REMOTE",
    help="Accept connections from other machines. Keys are sent unencrypted: use a private network or a TLS proxy.",
)
@option(
    "--trust",
    multiple=True,
    metavar="RANGE",
    envvar="HOLDFAST_TRUST",
    help="Client addresses, such as 10.0.0.0/8, that need no key; repeatable.",
)
@option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    envvar="HOLDFAST_ALLOWED_HOSTS",
    help="A host name, besides localhost and IP addresses, that callers without a key may use; repeatable.",
)
@option(
    "--default-tenant",
    metavar="NAME",
    default="default",
    callback=_require_tenant_name,
    envvar="HOLDFAST_DEFAULT_TENANT",
    help="The tenant of callers without a key, and of paths that name no tenant.",
)
@option(
    "--admin-key-file",
    envvar="HOLDFAST_ADMIN_KEY_FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the admin key. Default: the key in HOLDFAST_ADMIN_KEY, or a generated one.",
)
@option("--log-level", default="warning", envvar="HOLDFAST_LOG_LEVEL", type=LEVELS, help="The lowest level to log.")
@option(
    "--log-format",
    default="text",
    envvar="HOLDFAST_LOG_FORMAT",
    type=click.Choice(["text", "json"]),
    help="Plain lines for people, or one JSON object per line.",
)
@per_run_option
@option(
    "--retention-every",
    metavar="SECONDS",
    envvar="HOLDFAST_RETENTION_EVERY",
    type=click.FloatRange(0),
    default=3600.0,
    help="Seconds between two retention sweeps, which one of the servers on a database runs; 0 disables them.",
)
@redis_options
@pool_options
@option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=NUMBER",
    envvar="HOLDFAST_LIMITS",
    help="Change a limit of the server; repeatable.",
)
def serve(
    host: str,
    port: int,
    data_dir: Path,
    database: str | None,
    database_type: str | None,
    sqlite_database_path: str | None,
    postgres_database_url: str | None,
    packs: str | None,
    migrate: bool,
    allow_remote: bool,
    trust: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    default_tenant: str,
    admin_key_file: Path | None,
    log_level: str,
    log_format: str,
    retention_every: float,
    redis: str | None,
    stream: str,
    event: str,
    pool_max_connections: int | None,
    pool_min_connections: int | None,
    limits: tuple[str, ...],
) -> None:
    """Serve Holdfast over HTTP until stopped.

    Without --database, all data is stored in one SQLite file in the data directory. Callers need an API key. If no key exists
    yet, the server creates an admin key and prints it once; `holdfast keys create` creates others. When stopped, the server
    finishes the requests that it has accepted.
    """
    from holdfast import api
    from holdfast.background import BackgroundOptions

    start_logging(log_level, log_format)
    show_deletions()
    if database and _is_outranked(click.get_current_context()):
        database = None
    configured = database or database_of_type(database_type, sqlite_database_path, postgres_database_url)
    url = configured or str(_file(data_dir))
    key_notice = None if configured else _key_notice(data_dir)
    api.serve(
        with_pool(url, pool_max_connections, pool_min_connections),
        host=host,
        port=port,
        allow_remote=allow_remote,
        limits=_limits(limits),
        access=api.AccessOptions(
            trusted=api.networks(trust), tenant=default_tenant, hosts=tuple(host.lower() for host in allowed_hosts)
        ),
        admin_key=_admin_key(admin_key_file),
        migrate=migrate,
        snapshots_per_run=per_run(),
        background=BackgroundOptions(retention_every_s=retention_every, redis_url=redis, stream=stream, event=event),
        packs=packs,
        encryption_key=keys_of(url),
        on_ready=lambda address, key: _announce(address, url, key, key_notice),
    )


def _is_outranked(context: click.Context) -> bool:
    """Whether ``--database`` comes from the environment or the file, and the command line selects another database."""
    line = ParameterSource.COMMANDLINE
    others = ("database_type", "sqlite_database_path", "postgres_database_url")
    is_line = [context.get_parameter_source(name) is line for name in others]
    return context.get_parameter_source("database") is not line and any(is_line)


def _limits(assignments: tuple[str, ...]) -> Any:
    from holdfast.api import ServerLimits

    types = {name: type(getattr(ServerLimits(), name)) for name in ServerLimits.__struct_fields__}
    limits: dict[str, float] = {}
    for assignment in assignments:
        name, _, number = assignment.partition("=")
        if name not in types:
            raise click.UsageError(f"unknown limit {name!r}; valid are {', '.join(types)}")
        try:
            limits[name] = types[name](number)
        except ValueError:
            kind = "a whole number" if types[name] is int else "a number"
            raise click.UsageError(f"limit {name} must be {kind}, not {number!r}") from None
        if limits[name] == 0 and name in _NEVER_ZERO:
            raise click.UsageError(f"limit {name} cannot be 0: the server could not answer any request")
        if limits[name] < 0:
            raise click.UsageError(f"limit {name} cannot be negative")
        if not math.isfinite(limits[name]):
            raise click.UsageError(f"limit {name} must be a finite number, not {number!r}")
    return ServerLimits(**limits)  # type: ignore[arg-type]


def _admin_key(file: Path | None) -> str | None:
    """Return the key of the file or the environment. It is not an option, because other users can read command lines."""
    import os

    if file is not None:
        return file.read_text("utf-8").strip()
    return os.environ.get("HOLDFAST_ADMIN_KEY") or None


def _file(data_dir: Path) -> Path:
    """Return the database file in the data directory. A new directory is readable by its owner only."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return data_dir.resolve() / FILE


def _key_notice(data_dir: Path) -> str | None:
    """Create the key file in the data directory, unless a key is configured, and return a notice about it."""
    if KeyRing.from_environment():
        return None
    path = data_dir.resolve() / key_file.NAME
    try:
        is_new = key_file.make(path)
    except InvalidInput as error:
        return f"Secrets cannot be stored: no encryption key is configured, and {error}"
    created = ", which was just created" if is_new else ""
    return f"Secrets are encrypted with the key in {describe(str(path))}{created}: keep a copy of it."


def _announce(address: str, url: str, key: str | None, key_notice: str | None) -> None:
    """Print the address of the server, the new admin key and an example request.

    Raises:
        OSError: standard output is closed. It is redirected to the null device, or the flush at exit would raise again.
    """
    import os

    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")
    try:
        _print_announcement(address, url, key, key_notice)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _print_announcement(address: str, url: str, key: str | None, key_notice: str | None = None) -> None:
    print_line(f"Holdfast is ready at {address}  (database: {describe(url)}; stop with Ctrl-C)")
    if key is not None:
        print_line(f"Admin key, shown only once: {key}")
    if key_notice is not None:
        print_line(key_notice)
    print_line("Create a session:")
    body = '{"user": "ada", "agent": "helper"}'
    token = key or "$HOLDFAST_KEY"
    header = f"-H 'Authorization: Bearer {token}'" if key else f'-H "Authorization: Bearer {token}"'
    print_line(f"  curl -s {address}/v1/tenants/demo/sessions {header} -H 'Content-Type: application/json' -d '{body}'")
    logging.getLogger("holdfast.api").info("ready at %s", address)
