"""Which database, and whose part of it, a command is about."""

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

if TYPE_CHECKING:
    from holdfast import AsyncHoldfast

F = TypeVar("F", bound=Callable[..., Any])
EVENT = "identity.user.erased"
FILE = "holdfast.db"
"""The database in a data folder."""
_PER_RUN = "holdfast.snapshots_per_run"
"""The key in the context of a command under which the value of ``--snapshots-per-run`` is kept."""


def database_option(command: F) -> F:
    """``--database``, or the environment's: the same variables for every command.

    HOLDFAST_DATABASE_URL comes first, then DATABASE_TYPE with SQLITE_DATABASE_PATH or POSTGRES_DATABASE_URL, then the file in
    HOLDFAST_DATA_DIR.
    """
    option = click.option(
        "--database",
        metavar="URL",
        envvar="HOLDFAST_DATABASE_URL",
        show_envvar=True,
        callback=_chosen,
        help="A path, sqlite:///path or postgresql://...; otherwise what DATABASE_TYPE and its like say.",
    )
    return option(per_run_option(command, hidden=True))


def per_run_option(command: F, *, hidden: bool = False) -> F:
    """``--snapshots-per-run``: stored in the database that the command opens, and used by every command from then on.

    ``--checkpoint-retention-per-run`` and its environment variable are former names, and still accepted.
    """
    return click.option(
        "--snapshots-per-run",
        "--checkpoint-retention-per-run",
        "snapshots_per_run",
        metavar="NUMBER",
        envvar=["HOLDFAST_SNAPSHOTS_PER_RUN", "HOLDFAST_CHECKPOINT_RETENTION_PER_RUN"],
        show_envvar=True,
        type=click.IntRange(1),
        hidden=hidden,
        expose_value=False,
        callback=_keep_per_run,
        help="Snapshots of a run that are kept, where no policy of its tenant or of itself says otherwise. It is stored in the "
        f"database and holds for every command; {Limits().snapshots_per_run} where it was never said.",
    )(command)


def redis_options(command: F) -> F:
    """``--redis``, ``--stream`` and ``--event``, or the environment's."""
    for option in (
        click.option(
            "--event",
            default=EVENT,
            show_default=True,
            envvar="HOLDFAST_ERASURE_EVENT",
            show_envvar=True,
            help="The kind of event that says so.",
        ),
        click.option(
            "--stream",
            default=ERASURE_STREAM,
            show_default=True,
            envvar="HOLDFAST_ERASURE_STREAM",
            show_envvar=True,
            help="The key of that stream.",
        ),
        click.option(
            "--redis",
            metavar="URL",
            envvar="REDIS_URL",
            show_envvar=True,
            help="A Redis whose stream says who is to be erased. Without it, nobody is by events.",
        ),
    ):
        command = option(command)
    return command


def pool_options(command: F) -> F:
    """``--pool-max-connections`` and ``--pool-min-connections``, or the environment's; they win over the address."""
    for name, default, words in (
        ("min", PoolOptions().min_connections, "Connections to PostgreSQL that are kept open"),
        ("max", PoolOptions().max_connections, "Connections to PostgreSQL at most"),
    ):
        command = click.option(
            f"--pool-{name}-connections",
            metavar="NUMBER",
            envvar=f"HOLDFAST_POOL_{name.upper()}_CONNECTIONS",
            show_envvar=True,
            type=click.IntRange(1 if name == "max" else 0),
            help=f"{words}; {default} if neither this nor the address of the database says otherwise.",
        )(command)
    return command


def with_pool(database: str, most: int | None, least: int | None) -> str:
    """The address of a database with the options of its pool; a file has none."""
    if address.parse(database).engine != "postgres":
        return database
    said = {"pool_max_connections": most, "pool_min_connections": least}
    for name, number in said.items():
        if number is not None:
            database += f"{'&' if '?' in database else '?'}{name}={number}"
    return database


def chosen_database(kind: str | None, sqlite_path: str | None, postgres_url: str | None) -> str | None:
    """The database that ``DATABASE_TYPE`` and its like name, if they name one.

    Raises:
        UsageError: PostgreSQL is chosen, and its address is not given.
    """
    if kind not in (None, "", "sqlite", "postgres"):
        raise click.UsageError(f"DATABASE_TYPE is sqlite or postgres, not {kind!r}")
    if kind == "postgres":
        if not postgres_url:
            raise click.UsageError("--database-type postgres needs --postgres-database-url (POSTGRES_DATABASE_URL)")
        return postgres_url
    return sqlite_path or None


def database_of_environment() -> str | None:
    """The database that the environment names, beside HOLDFAST_DATABASE_URL."""
    said = [os.environ.get(name) for name in ("DATABASE_TYPE", "SQLITE_DATABASE_PATH", "POSTGRES_DATABASE_URL")]
    folder = os.environ.get("HOLDFAST_DATA_DIR")
    return chosen_database(*said) or (os.path.join(folder, FILE) if folder else None)


def _chosen(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    found = value or database_of_environment()
    if found is None and not context.resilient_parsing:
        raise click.MissingParameter(ctx=context, param=parameter)
    return found or ""


def _keep_per_run(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    context.meta[_PER_RUN] = value
    return value


def per_run() -> int | None:
    """Return the value of ``--snapshots-per-run`` or of its environment variable, for the running command."""
    context = click.get_current_context(silent=True)
    found: int | None = None if context is None else context.meta.get(_PER_RUN)
    return found


def store_per_run(opened: Holdfast) -> None:
    """Store it in the database that the command has opened, if it was said."""
    number = per_run()
    if number is not None:
        opened.server_settings.set_snapshots_per_run(number)


def tenant_option(command: F) -> F:
    """``--tenant`` and ``--database``, or the environment's."""
    option = click.option(
        "--tenant", metavar="NAME", required=True, envvar="HOLDFAST_TENANT", show_envvar=True, help="Whose."
    )
    return option(database_option(command))


def packs_option(command: F) -> F:
    """``--packs``, or the environment's."""
    return click.option(
        "--packs",
        metavar="PLACE",
        envvar="HOLDFAST_PACKS",
        show_envvar=True,
        help="Where large objects lie: a directory, or an address such as s3://bucket/folder.",
    )(command)


def open_there(database: str, packs: str | None = None) -> Holdfast:
    """A database that is there; a mistyped one is not made, to look empty.

    Raises:
        Unavailable: it is not there.
    """
    from .logs import show_deletions  # here and not above: many commands open nothing

    address.check_there(database)
    show_deletions()
    opened = Holdfast(database, packs=packs, encryption_key=keys_of(database))
    store_per_run(opened)
    return opened


@asynccontextmanager
async def open_async(database: str, packs: str | None = None) -> AsyncIterator[AsyncHoldfast]:
    """A database for a command that goes on in an event loop; made if it is not there."""
    from holdfast import AsyncHoldfast

    from .logs import show_deletions

    show_deletions()
    async with AsyncHoldfast(database, packs=packs, encryption_key=keys_of(database)) as opened:
        number = per_run()
        if number is not None:
            await opened.server_settings.set_snapshots_per_run(number)
        yield opened


@contextmanager
def open_tenant(database: str, tenant: str, packs: str | None = None) -> Iterator[TenantHandle]:
    """What a tenant keeps in a database."""
    with open_there(database, packs) as hf:
        yield hf.tenant(tenant)


def keys_of(database: str) -> KeyRing:
    """The encryption keys of the environment, or else those in the key file beside a SQLite database.

    Raises:
        InvalidInput: something is not a key, or the file is open to others than its owner.
    """
    keys = KeyRing.from_environment()
    where = address.parse(database)
    if keys or where.engine != "sqlite" or not where.place or where.place.startswith((":memory:", "file:")):
        return keys
    return key_file.read(Path(where.place).absolute().with_name(key_file.NAME))


def describe(url: str) -> str:
    """A database as it may be shown: without the user, the password and the options, which can hold one too."""
    is_below = os.path.isabs(url) and url.startswith(os.getcwd() + os.sep)
    return os.path.relpath(url) if is_below else address.shown(url)
