"""``holdfast serve``."""

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
    chosen_database,
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

_NEVER_ZERO = ("answer_s", "connections")
_ALIASES = {"checkpoint_retention_per_run": "snapshots_per_run"}
"""Former names of options, which a configuration file may still use."""


def _read_config(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Take what a file says for what the command line and the environment do not say."""
    if value is None:
        return None
    try:
        said: dict[str, Any] = tomllib.loads(value.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{value} cannot be read as TOML: {error}") from None
    said = {name.replace("-", "_"): each for name, each in said.items()}
    for alias in said.keys() & _ALIASES.keys():
        said.setdefault(_ALIASES[alias], said.pop(alias))
    if isinstance(said.get("limits"), dict):
        said["limits"] = [f"{name}={number}" for name, number in said["limits"].items()]
    for name in ("trust", "allowed_hosts"):
        if isinstance(said.get(name), str):
            said[name] = [said[name]]
    known = {each.name for each in context.command.params if each.name not in (None, "config")}
    unknown = sorted(set(said) - known)
    if unknown:
        raise click.BadParameter(
            f"{value} says {', '.join(unknown)}, which is not an option; there are {sorted(known)}"
        )
    several = {each.name for each in context.command.params if each.multiple}
    for name, each in said.items():
        if isinstance(each, (list, dict)) and name not in several:
            raise click.BadParameter(f"{value}: {name} is one value, not several")
    context.default_map = {**said, **(context.default_map or {})}
    return value


def _with_a_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value:
        raise click.BadParameter("a tenant has a name; leave the option out for 'default'")
    return value


@click.command()
@click.option(
    "--config",
    envvar="HOLDFAST_CONFIG",
    show_envvar=True,
    is_eager=True,
    callback=_read_config,
    expose_value=False,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file with any of these options, without the dashes in front.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    envvar="HOLDFAST_HOST",
    show_envvar=True,
    help="Where to listen.",
)
@click.option(
    "--port",
    default=8420,
    show_default=True,
    envvar="HOLDFAST_PORT",
    show_envvar=True,
    type=click.IntRange(0, 65535),
    help="Where to listen; 0 for any free port.",
)
@click.option(
    "--data-dir",
    default="data",
    show_default=True,
    envvar="HOLDFAST_DATA_DIR",
    show_envvar=True,
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The folder that holds {FILE}; made if it is not there.",
)
@click.option(
    "--database",
    metavar="URL",
    envvar="HOLDFAST_DATABASE_URL",
    show_envvar=True,
    help="Another database instead: a path, sqlite:///path or postgresql://...",
)
@click.option(
    "--database-type",
    envvar="DATABASE_TYPE",
    show_envvar=True,
    type=click.Choice(["sqlite", "postgres"]),
    help="Which of the next two to use, where --database is not given.",
)
@click.option(
    "--sqlite-database-path",
    metavar="PATH",
    envvar="SQLITE_DATABASE_PATH",
    show_envvar=True,
    help="The SQLite file, where --database is not given.",
)
@click.option(
    "--postgres-database-url",
    metavar="URL",
    envvar="POSTGRES_DATABASE_URL",
    show_envvar=True,
    help="The PostgreSQL database, where --database is not given and --database-type is postgres.",
)
@packs_option
@click.option(
    "--migrate",
    is_flag=True,
    envvar="HOLDFAST_MIGRATE",
    show_envvar=True,
    help="Bring the schema up to date first, on PostgreSQL too.",
)
@click.option(
    "--allow-remote",
    is_flag=True,
    envvar="HOLDFAST_ALLOW_REMOTE",
    show_envvar=True,
    help="Let other machines in. Keys travel as they are: use it inside a network of your own, or behind TLS.",
)
@click.option(
    "--trust",
    multiple=True,
    metavar="RANGE",
    envvar="HOLDFAST_TRUST",
    show_envvar=True,
    help="Addresses, such as 10.0.0.0/8, whose callers need no key; may be said several times.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    envvar="HOLDFAST_ALLOWED_HOSTS",
    show_envvar=True,
    help="A name of this server, besides localhost and IP addresses, that callers without a key may use; several times.",
)
@click.option(
    "--default-tenant",
    metavar="NAME",
    default="default",
    show_default=True,
    callback=_with_a_name,
    envvar="HOLDFAST_DEFAULT_TENANT",
    show_envvar=True,
    help="The tenant of callers without a key, and of addresses that name none.",
)
@click.option(
    "--admin-key-file",
    envvar="HOLDFAST_ADMIN_KEY_FILE",
    show_envvar=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the key that may do everything, instead of one that is drawn; or HOLDFAST_ADMIN_KEY itself.",
)
@click.option(
    "--log-level",
    default="warning",
    show_default=True,
    envvar="HOLDFAST_LOG_LEVEL",
    show_envvar=True,
    type=LEVELS,
    help="What is logged.",
)
@click.option(
    "--log-format",
    default="text",
    show_default=True,
    envvar="HOLDFAST_LOG_FORMAT",
    show_envvar=True,
    type=click.Choice(["text", "json"]),
    help="Lines for people, or one JSON object a line.",
)
@per_run_option
@click.option(
    "--retention-every",
    metavar="SECONDS",
    envvar="HOLDFAST_RETENTION_EVERY",
    show_envvar=True,
    type=click.FloatRange(0),
    default=3600.0,
    show_default=True,
    help="Remove snapshots that must go about every so many seconds, by one of the servers on a database; 0 for never.",
)
@redis_options
@pool_options
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=NUMBER",
    envvar="HOLDFAST_LIMITS",
    show_envvar=True,
    help="A limit of the server other than it is; may be said several times.",
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

    Without --database, everything is kept in one SQLite file in the data folder. Whoever asks needs an API key: the first, which
    may do everything, is shown once, when there is none yet; `holdfast keys create` makes others. What was accepted when the
    server is told to stop is finished first.
    """
    from holdfast import api
    from holdfast.background import BackgroundOptions

    start_logging(log_level, log_format)
    show_deletions()
    if database and _is_outranked(click.get_current_context()):
        database = None
    named = database or chosen_database(database_type, sqlite_database_path, postgres_database_url)
    place = named or str(_file(data_dir))
    key_words = None if named else _key_words(data_dir)
    api.serve(
        with_pool(place, pool_max_connections, pool_min_connections),
        host=host,
        port=port,
        allow_remote=allow_remote,
        limits=_limits(limits),
        access=api.AccessOptions(
            trusted=api.networks(trust), tenant=default_tenant, hosts=tuple(each.lower() for each in allowed_hosts)
        ),
        admin_key=_admin_key(admin_key_file),
        migrate=migrate,
        snapshots_per_run=per_run(),
        background=BackgroundOptions(retention_every_s=retention_every, redis_url=redis, stream=stream, event=event),
        packs=packs,
        encryption_key=keys_of(place),
        on_ready=lambda address, key: _shown(address, place, key, key_words),
    )


def _is_outranked(context: click.Context) -> bool:
    """Whether the command line names another database than the environment or the file do in ``--database``."""
    line = ParameterSource.COMMANDLINE
    others = ("database_type", "sqlite_database_path", "postgres_database_url")
    is_line = [context.get_parameter_source(name) is line for name in others]
    return context.get_parameter_source("database") is not line and any(is_line)


def _limits(said: tuple[str, ...]) -> Any:
    from holdfast.api import ServerLimits

    known = {name: type(getattr(ServerLimits(), name)) for name in ServerLimits.__struct_fields__}
    chosen: dict[str, float] = {}
    for each in said:
        name, _, number = each.partition("=")
        if name not in known:
            raise click.UsageError(f"there is no limit {name!r}; there are {', '.join(known)}")
        try:
            chosen[name] = known[name](number)
        except ValueError:
            kind = "a whole number" if known[name] is int else "a number"
            raise click.UsageError(f"the limit {name} is {kind}, not {number!r}") from None
        if chosen[name] == 0 and name in _NEVER_ZERO:
            raise click.UsageError(f"the limit {name} cannot be 0: nothing would be answered")
        if chosen[name] < 0:
            raise click.UsageError(f"the limit {name} cannot be less than 0")
        if not math.isfinite(chosen[name]):
            raise click.UsageError(f"the limit {name} is a number, not {number!r}")
    return ServerLimits(**chosen)  # type: ignore[arg-type]


def _admin_key(file: Path | None) -> str | None:
    """The key from the file or the environment. It is no option: those can be read by everybody on the machine."""
    import os

    if file is not None:
        return file.read_text("utf-8").strip()
    return os.environ.get("HOLDFAST_ADMIN_KEY") or None


def _file(data_dir: Path) -> Path:
    """The database file in a folder that, if it is made here, only its owner can read."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return data_dir.resolve() / FILE


def _key_words(data_dir: Path) -> str | None:
    """What to say about the key file in the data folder, which is made if there is neither one nor a key in the environment."""
    if KeyRing.from_environment():
        return None
    path = data_dir.resolve() / key_file.NAME
    try:
        is_new = key_file.make(path)
    except InvalidInput as error:
        return f"Secrets cannot be stored: there is no encryption key, and {error}"
    return f"Secrets are encrypted with the key in {describe(str(path))}{', made now' * is_new}: keep a copy of it."


def _shown(address: str, place: str, key: str | None, key_words: str | None) -> None:
    """Announce the server where somebody sees it.

    Raises:
        OSError: standard output is closed. It leads nowhere from then on, or the same would be raised again at the end.
    """
    import os

    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")
    try:
        _announce(address, place, key, key_words)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _announce(address: str, place: str, key: str | None, key_words: str | None = None) -> None:
    print_line(f"Holdfast is ready at {address}  (database: {describe(place)}; stop with Ctrl-C)")
    if key is not None:
        print_line(f"The key that may do everything, shown this once: {key}")
    if key_words is not None:
        print_line(key_words)
    print_line("Start a session:")
    body = '{"user": "ada", "agent": "helper"}'
    shown = key or "$HOLDFAST_KEY"
    send = f"-H 'Authorization: Bearer {shown}'" if key else f'-H "Authorization: Bearer {shown}"'
    print_line(f"  curl -s {address}/v1/tenants/demo/sessions {send} -H 'Content-Type: application/json' -d '{body}'")
    logging.getLogger("holdfast.api").info("ready at %s", address)
