"""``holdfast import``: move what other stores keep into Holdfast."""

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
"""Characters of a problem that the table shows."""
_SAVERS = {"sqlite": "langgraph-checkpoint-sqlite", "postgres": "langgraph-checkpoint-postgres"}


@click.group("import")
def importing() -> None:
    """Move what other stores keep into Holdfast."""


importing.add_command(bundle)


@importing.command()
@click.option(
    "--from", "source", metavar="URL", required=True, help="The old database: sqlite:///path or postgresql://..."
)
@tenant_option
@packs_option
@click.option("--user", help="Whose threads they become; without it, nobody's in particular.")
@click.option("--thread", "threads", metavar="ID", multiple=True, help="Only this thread; may be given several times.")
@click.option(
    "--allow",
    metavar="MODULE:CLASS",
    multiple=True,
    help="A class of your own that may be read and saved; may be given several times.",
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
    """Move the checkpoints of LangGraph's SqliteSaver or PostgresSaver.

    The old database is only read. Every thread's history is compared with the original at the end. A command that was stopped is
    given again, and goes on where it was.
    """
    if (kind := _kind(source)) == "postgres":
        address.parse(source)  # so that nobody quotes a password from an address that is not well formed
    _check_installed(kind)
    from holdfast.adapters import langgraph_import

    allowed = [_class(each) for each in allow]
    # What was saved elsewhere was saved under no limits of ours.
    limits = Limits(metadata_bytes=Limits().content_bytes)
    with (
        langgraph_import.open_source(source, allowed) as old,
        Holdfast(database, auto_migrate=True, limits=limits, packs=packs) as hf,
    ):
        store_per_run(hf)
        wanted = set(threads) or None
        there = dict(old.threads())
        if missing := sorted((wanted or set()) - there.keys()):
            raise click.ClickException(f"the old database has no thread {missing[0]!r}")
        total = 2 * sum(count for thread, count in there.items() if wanted is None or thread in wanted)
        with progress_bar("copying and comparing", total) as advance:
            found = [
                *langgraph_import.import_threads(
                    old, hf.tenant(tenant), user=user, threads=wanted, allow=allowed, advance=advance
                )
            ]
    _report(found, source, database, as_json)


def _report(found: Sequence[Any], source: str, database: str, as_json: bool) -> None:
    problems = [each for each in found if each.problem]
    if as_json:
        print_json({"threads": found, "is_complete": not problems})
    else:
        if problems:
            rows = [[bad.thread_id, shorten(bad.problem, PROBLEM)] for bad in problems]
            print_table(f"{len(problems)} of {len(found)} threads are not complete", ["thread", "why"], rows)
        copied, verified = sum(each.copied for each in found), sum(each.verified for each in found)
        already = sum(each.checkpoints for each in found) - copied
        print_line(
            f"{len(found):,} threads from {describe(source)} to {describe(database)}: {copied:,} checkpoints copied, "
            f"{max(already, 0):,} were there, {verified:,} are the same in both."
        )
    if problems:
        raise click.exceptions.Exit(1)


def _kind(source: str) -> str:
    return "postgres" if source.startswith(("postgresql://", "postgres://")) else "sqlite"


def _check_installed(kind: str) -> None:
    if find_spec("langgraph") is None or find_spec(f"langgraph.checkpoint.{kind}") is None:
        raise click.ClickException(
            f"this reads the old database with the saver that wrote it: pip install 'holdfast[langgraph]' {_SAVERS[kind]}"
        )


def _class(given: str) -> tuple[str, str]:
    module, _, name = given.partition(":")
    if not module or not name:
        raise click.BadParameter(f"{given!r} is not of the form package.module:Class", param_hint="--allow")
    return module, name
