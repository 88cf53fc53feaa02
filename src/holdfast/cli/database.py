"""The options that select a database and a tenant, and the functions that open them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast import Holdfast, Limits, PoolOptions, TenantHandle, address, key_file
from holdfast.compatibility import ERASURE_STREAM
from holdfast.encryption import KeyRing

from .parameters import option

if TYPE_CHECKING:
    from holdfast import AsyncHoldfast

F = TypeVar("F", bound=Callable[..., Any])
EVENT = "identity.user.erased"
FILE = "holdfast.db"
"""Name of the SQLite file in a data directory."""
_PER_RUN = "holdfast.snapshots_per_run"
"""Key of the value of ``--snapshots-per-run`` in the context of a command."""


def database_option(command: F) -> F:
    """Add ``--database``. Without it, every command uses the same environment variables.

    HOLDFAST_DATABASE_URL comes first, then DATABASE_TYPE with SQLITE_DATABASE_PATH or POSTGRES_DATABASE_URL, then the file in
    HOLDFAST_DATA_DIR.
    """
    database = option(
        "--database",
        metavar="URL",
        envvar="HOLDFAST_DATABASE_URL",
        callback=_resolve_database,
        help="A path, sqlite:///path or postgresql://... Default: the database that DATABASE_TYPE with "
        "SQLITE_DATABASE_PATH or POSTGRES_DATABASE_URL, or HOLDFAST_DATA_DIR names.",
    )
    return database(per_run_option(command, hidden=True))


def per_run_option(command: F, *, hidden: bool = False) -> F:
    """Add ``--snapshots-per-run``. Its value is stored in the database and applies to all later commands.

    ``--checkpoint-retention-per-run`` and its environment variable are the former names and are still accepted.
    """
    return option(
        "--snapshots-per-run",
        "--checkpoint-retention-per-run",
        "snapshots_per_run",
        metavar="NUMBER",
        envvar=["HOLDFAST_SNAPSHOTS_PER_RUN", "HOLDFAST_CHECKPOINT_RETENTION_PER_RUN"],
        type=click.IntRange(1),
        hidden=hidden,
        expose_value=False,
        callback=_remember_per_run,
        help="Snapshots to keep of each run, unless a policy of the tenant or the run overrides it. The number is stored in "
        f"the database and applies to every command. Default: {Limits().snapshots_per_run}.",
    )(command)


def redis_options(command: F) -> F:
    """Add ``--redis``, ``--stream`` and ``--event``."""
    for decorate in (
        option("--event", default=EVENT, envvar="HOLDFAST_ERASURE_EVENT", help="The event type of erasure requests."),
        option(
            "--stream",
            default=ERASURE_STREAM,
            envvar="HOLDFAST_ERASURE_STREAM",
            help="The key of the Redis stream with erasure requests.",
        ),
        option(
            "--redis",
            metavar="URL",
            envvar="REDIS_URL",
            help="The Redis to read erasure requests from. Without it, no stream is read.",
        ),
    ):
        command = decorate(command)
    return command


def pool_options(command: F) -> F:
    """Add ``--pool-max-connections`` and ``--pool-min-connections``, which override the options in the address."""
    for name, default, words in (
        ("min", PoolOptions().min_connections, "Minimum number of open PostgreSQL connections"),
        ("max", PoolOptions().max_connections, "Maximum number of PostgreSQL connections"),
    ):
        command = option(
            f"--pool-{name}-connections",
            metavar="NUMBER",
            envvar=f"HOLDFAST_POOL_{name.upper()}_CONNECTIONS",
            type=click.IntRange(1 if name == "max" else 0),
            help=f"{words}; overrides the database address. Default: {default}.",
        )(command)
    return command


def with_pool(database: str, max_connections: int | None, min_connections: int | None) -> str:
    """Return the address of a database with pool options added. A SQLite address is returned unchanged."""
    if address.parse(database).engine != "postgres":
        return database
    options = {"pool_max_connections": max_connections, "pool_min_connections": min_connections}
    for name, number in options.items():
        if number is not None:
            database += f"{'&' if '?' in database else '?'}{name}={number}"
    return database


def database_of_type(kind: str | None, sqlite_path: str | None, postgres_url: str | None) -> str | None:
    """Return the database selected by ``DATABASE_TYPE``, ``SQLITE_DATABASE_PATH`` and ``POSTGRES_DATABASE_URL``, if any.

    Raises:
        UsageError: the type is postgres and the address is missing, or the type is unknown.
    """
    if kind not in (None, "", "sqlite", "postgres"):
        raise click.UsageError(f"DATABASE_TYPE must be sqlite or postgres, not {kind!r}")
    if kind == "postgres":
        if not postgres_url:
            raise click.UsageError("--database-type postgres requires --postgres-database-url (POSTGRES_DATABASE_URL)")
        return postgres_url
    return sqlite_path or None


def database_from_environment() -> str | None:
    """Return the database that the environment variables other than HOLDFAST_DATABASE_URL select."""
    settings = [os.environ.get(name) for name in ("DATABASE_TYPE", "SQLITE_DATABASE_PATH", "POSTGRES_DATABASE_URL")]
    data_dir = os.environ.get("HOLDFAST_DATA_DIR")
    return database_of_type(*settings) or (os.path.join(data_dir, FILE) if data_dir else None)


def _resolve_database(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    database = value or database_from_environment()
    if database is None and not context.resilient_parsing:
        raise click.MissingParameter(ctx=context, param=parameter)
    return database or ""


def _remember_per_run(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    context.meta[_PER_RUN] = value
    return value


def per_run() -> int | None:
    """Return the value of ``--snapshots-per-run`` of the current command."""
    context = click.get_current_context(silent=True)
    number: int | None = None if context is None else context.meta.get(_PER_RUN)
    return number


def store_per_run(hf: Holdfast) -> None:
    """Store the value of ``--snapshots-per-run``, if it was given."""
    number = per_run()
    if number is not None:
        hf.server_settings.set_snapshots_per_run(number)


def tenant_option(command: F) -> F:
    """Add ``--tenant`` and ``--database``."""
    tenant = option("--tenant", metavar="NAME", required=True, envvar="HOLDFAST_TENANT", help="The tenant.")
    return tenant(database_option(command))


def packs_option(command: F) -> F:
    """Add ``--packs``."""
    return option(
        "--packs",
        metavar="LOCATION",
        envvar="HOLDFAST_PACKS",
        help="The location of large objects: a directory, or a URL such as s3://bucket/folder.",
    )(command)


def open_existing(database: str, packs: str | None = None) -> Holdfast:
    """Open a database that exists. A mistyped path raises instead of creating an empty database.

    Raises:
        Unavailable: the database does not exist.
    """
    from .logs import show_deletions  # imported here because many commands open no database

    address.check_exists(database)
    show_deletions()
    hf = Holdfast(database, packs=packs, encryption_key=keys_of(database))
    store_per_run(hf)
    return hf


@asynccontextmanager
async def open_async(database: str, packs: str | None = None) -> AsyncIterator[AsyncHoldfast]:
    """Open a database for a command that runs an event loop. A SQLite file is created if it does not exist."""
    from holdfast import AsyncHoldfast

    from .logs import show_deletions

    show_deletions()
    async with AsyncHoldfast(database, packs=packs, encryption_key=keys_of(database)) as hf:
        number = per_run()
        if number is not None:
            await hf.server_settings.set_snapshots_per_run(number)
        yield hf


@contextmanager
def open_tenant(database: str, tenant: str, packs: str | None = None) -> Iterator[TenantHandle]:
    """Open a tenant of a database that exists."""
    with open_existing(database, packs) as hf:
        yield hf.tenant(tenant)


def keys_of(database: str) -> KeyRing:
    """Return the encryption keys of the environment, or else those of the key file next to a SQLite database.

    Raises:
        InvalidInput: a key is invalid, or the key file is accessible to other users.
    """
    keys = KeyRing.from_environment()
    parsed = address.parse(database)
    if keys or parsed.engine != "sqlite" or not parsed.place or parsed.place.startswith((":memory:", "file:")):
        return keys
    return key_file.read(Path(parsed.place).absolute().with_name(key_file.NAME))


def describe(url: str) -> str:
    """Return an address that is safe to print, relative to the current directory if it is a path below it."""
    is_below = os.path.isabs(url) and url.startswith(os.getcwd() + os.sep)
    return os.path.relpath(url) if is_below else address.redacted(url)
