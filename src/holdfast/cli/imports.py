"""``holdfast import``: import bundles and the data of other stores."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import click

from holdfast import Holdfast, Limits, address

from .bundles import bundle
from .database import describe, packs_option, store_per_run, tenant_option
from .output import json_option, print_json, print_line, print_table, progress_bar, shorten

PROBLEM = 300
"""Maximum length of a problem in the table."""
_SAVERS = {"sqlite": "langgraph-checkpoint-sqlite", "postgres": "langgraph-checkpoint-postgres"}


@click.group("import")
def imports() -> None:
    """Import bundles and the data of other stores."""


imports.add_command(bundle)


@imports.command()
@click.option(
    "--from", "source", metavar="URL", required=True, help="The old database: sqlite:///path or postgresql://..."
)
@tenant_option
@packs_option
@click.option("--user", help="The user that the imported threads belong to. Default: no user.")
@click.option("--thread", "threads", metavar="ID", multiple=True, help="Only this thread; repeatable.")
@click.option(
    "--allow",
    metavar="MODULE:CLASS",
    multiple=True,
    help="A class of your own that may be deserialized; repeatable.",
)
@json_option
def langgraph(
    source: str,
    database: str,
    tenant: str,
    packs: str | None,
    user: str | None,
    threads: Sequence[str],
    allow: Sequence[str],
    as_json: bool,
) -> None:
    """Copy the checkpoints of LangGraph's SqliteSaver or PostgresSaver.

    The old database is only read. At the end, the history of every thread is compared with the original. To resume after an
    interruption, run the same command again.
    """
    if (kind := _kind(source)) == "postgres":
        address.parse(source)  # rejects a malformed address before a driver quotes it with its password
    _check_installed(kind)
    from holdfast.adapters import langgraph_import

    allowed = [_class(name) for name in allow]
    # The other store had no limit on metadata.
    limits = Limits(metadata_bytes=Limits().content_bytes)
    with (
        langgraph_import.open_source(source, allowed) as old,
        Holdfast(database, auto_migrate=True, limits=limits, packs=packs) as hf,
    ):
        store_per_run(hf)
        selected = set(threads) or None
        counts = dict(old.threads())
        if missing := sorted((selected or set()) - counts.keys()):
            raise click.ClickException(f"thread {missing[0]!r} does not exist in the old database")
        total = 2 * sum(count for thread, count in counts.items() if selected is None or thread in selected)
        with progress_bar("copying and comparing", total) as advance:
            results = [
                *langgraph_import.import_threads(
                    old, hf.tenant(tenant), user=user, threads=selected, allow=allowed, advance=advance
                )
            ]
    _report(results, source, database, as_json)


def _report(results: Sequence[Any], source: str, database: str, as_json: bool) -> None:
    failures = [result for result in results if result.problem]
    if as_json:
        print_json({"threads": results, "is_complete": not failures})
    else:
        if failures:
            rows = [[failure.thread_id, shorten(failure.problem, PROBLEM)] for failure in failures]
            print_table(f"{len(failures)} of {len(results)} threads are incomplete", ["thread", "problem"], rows)
        copied, verified = sum(result.copied for result in results), sum(result.verified for result in results)
        already = sum(result.checkpoints for result in results) - copied
        print_line(
            f"{len(results):,} threads from {describe(source)} to {describe(database)}: {copied:,} checkpoints copied, "
            f"{max(already, 0):,} already present, {verified:,} verified as identical."
        )
    if failures:
        raise click.exceptions.Exit(1)


def _kind(source: str) -> str:
    return "postgres" if source.startswith(("postgresql://", "postgres://")) else "sqlite"


def _check_installed(kind: str) -> None:
    if find_spec("langgraph") is None or find_spec(f"langgraph.checkpoint.{kind}") is None:
        raise click.ClickException(
            f"the old database is read with the saver that wrote it: pip install 'holdfast[langgraph]' {_SAVERS[kind]}"
        )


def _class(text: str) -> tuple[str, str]:
    module, _, name = text.partition(":")
    if not module or not name:
        raise click.BadParameter(f"{text!r} is not of the form package.module:Class", param_hint="--allow")
    return module, name
