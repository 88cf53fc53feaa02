"""``holdfast apply``: bring the rows of a tenant to the resources that manifests or a Kubernetes cluster declare."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.encryption import MASK
from holdfast.types import AppliedChange, FieldChange

from .database import open_tenant, tenant_option
from .output import json_option, one_line, print_json, print_line, shorten
from .parameters import option
from .record_commands import acting_option, as_user

if TYPE_CHECKING:
    from holdfast import TenantHandle
    from holdfast.declared.keeper import Keeper
    from holdfast.declared.sources import ResourceSource

VALUE_CHARS = 60
"""Characters of a value that a difference shows."""
SHOWN_BEFORE = 15
"""Characters that are shown before the place where two long values differ."""
_SIGNS = {"created": "+", "adopted": "+", "changed": "~", "pruned": "-"}
_DIR = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@tenant_option
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE|DIR",
    type=click.Path(exists=True, path_type=Path),
    help="A manifest, or a folder of manifests, in YAML or JSON.",
)
@click.option("--watch", metavar="DIR", type=_DIR, help="Apply this folder now and whenever it changes, until stopped.")
@click.option("--kubernetes", is_flag=True, help="Apply the resources of a cluster now and whenever they change.")
@click.option("--namespace", help="Of manifests that name none, by default kagent; with --kubernetes, the only one.")
@click.option("--prune", is_flag=True, help="Delete what an earlier call made of the same source and is missing now.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--take-over", is_flag=True, help="Also change resources that belong to another source.")
@click.option("--source", metavar="NAME", help="The name of the set of manifests. Default: the path, or the cluster.")
@option(
    "--secrets",
    metavar="DIR",
    type=_DIR,
    envvar="HOLDFAST_SECRETS_DIR",
    help="A folder for each Secret and ConfigMap, with a file for each key, as Kubernetes mounts them.",
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="The address and the credentials of the cluster. Default: those of kubectl, or of the pod.",
)
@click.option("--context", "kube_context", metavar="NAME", help="The context in that file.")
@click.option("--once", is_flag=True, help="With --watch or --kubernetes: apply once and exit.")
@click.option(
    "--resync",
    "resync_s",
    default=300.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Seconds after which rows and secrets are compared again although no resource has changed.",
)
@acting_option
@json_option
def apply(
    database: str,
    tenant: str,
    path: Path | None,
    watch: Path | None,
    kubernetes: bool,
    acting: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Bring agents, providers, models and MCP servers to kagent's custom resources, from manifests or a cluster.

    The difference is shown, without secrets. Nothing is changed if a manifest is not valid.
    """
    if (path is not None) + (watch is not None) + kubernetes != 1:
        raise click.UsageError("give one of --file, --watch and --kubernetes")
    show = _show_json if as_json else _show
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        if path is not None:
            show(_apply_files(handle, path, options), dry_run=options["dry_run"])
            return
        source = _folder(handle, watch, options) if watch is not None else _cluster(options)
        errors: list[Exception] = []
        keeper = _keeper(handle, source, show, errors, options)
        if options["once"]:
            source.load()
            keeper.apply()
            if errors:
                raise click.exceptions.Exit(1)
            return
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda number, frame: keeper.stop())
        print_line(f"Rows of {tenant} are kept in step with {source.name}  (stop with Ctrl-C)", err=True)
        keeper.run()


def _apply_files(handle: TenantHandle, path: Path, options: dict[str, Any]) -> Sequence[AppliedChange]:
    from holdfast.declared import applying, documents, resources, values

    namespace = options["namespace"] or resources.DEFAULT_NAMESPACE
    manifests = resources.read_resources(documents.read_documents(path, handle.limits), namespace)
    return applying.apply(
        handle,
        manifests,
        values.local_values(options["secrets"], handle.limits),
        source=options["source"] or str(path.resolve()),
        prune=options["prune"],
        take_over=options["take_over"],
        dry_run=options["dry_run"],
    )


def _folder(handle: TenantHandle, path: Path, options: dict[str, Any]) -> ResourceSource:
    from holdfast.declared.resources import DEFAULT_NAMESPACE
    from holdfast.declared.sources import FolderSource
    from holdfast.declared.values import local_values

    values = local_values(options["secrets"], handle.limits)
    name = options["source"] or str(path.resolve())
    namespace = options["namespace"] or DEFAULT_NAMESPACE
    return FolderSource(path, values, handle.limits, name=name, namespace=namespace)


def _cluster(options: dict[str, Any]) -> ResourceSource:
    from holdfast.declared.cluster import Cluster
    from holdfast.declared.sources import ClusterSource

    cluster = Cluster(options["kubeconfig"], options["kube_context"])
    return ClusterSource(cluster, options["namespace"], name=options["source"] or "")


def _keeper(
    handle: TenantHandle,
    source: ResourceSource,
    show: Callable[..., None],
    errors: list[Exception],
    options: dict[str, Any],
) -> Keeper:
    from holdfast.declared.keeper import Keeper

    is_first = [True]

    def on_applied(changes: Sequence[AppliedChange]) -> None:
        if is_first[0] or any(change.action != "unchanged" for change in changes):
            show(changes, dry_run=options["dry_run"])
        is_first[0] = False

    def on_error(error: Exception) -> None:
        errors[:] = [error]
        print_line(f"Error: {one_line(str(error))}", err=True)

    return Keeper(
        handle,
        source,
        on_applied=on_applied,
        on_error=on_error,
        take_over=options["take_over"],
        dry_run=options["dry_run"],
        resync_s=options["resync_s"],
    )


def _show_json(changes: Sequence[AppliedChange], *, dry_run: bool) -> None:
    print_json({"changes": changes, "dry_run": dry_run})


def _show(changes: Sequence[AppliedChange], *, dry_run: bool) -> None:
    for change in changes:
        if change.action == "unchanged":
            continue
        print_line(f"{_SIGNS[change.action]} {change.ref} {change.action}{_details(change)}")
        for field in change.fields:
            print_line(f"    {field.path}: {_difference(field)}")
    same = sum(change.action == "unchanged" for change in changes)
    counted = f"{len(changes) - same} of {len(changes)} resources {'would change' if dry_run else 'changed'}"
    print_line(f"{counted}. Nothing was changed, because this is a dry run." if dry_run else f"{counted}.")


def _details(change: AppliedChange) -> str:
    refer = ", ".join(f"{number} {noun}" for noun, number in change.dependents.items())
    kept = f"; kept, because it existed before: {', '.join(change.kept)}" if change.kept else ""
    return (f"; still referring to it: {refer}" if refer else "") + kept


def _difference(field: FieldChange) -> str:
    """Return both values, from shortly before the place where they differ."""
    if field.before == field.after == MASK:
        return "the secret is another"
    before, after = _value(field.before), _value(field.after)
    pairs = enumerate(zip(before, after, strict=False))
    same = next((index for index, (one, other) in pairs if one != other), min(len(before), len(after)))
    start = same - SHOWN_BEFORE if same > VALUE_CHARS // 2 else 0
    return f"{_part(before, start)} -> {_part(after, start)}"


def _value(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, ensure_ascii=False)


def _part(text: str, start: int) -> str:
    return ("…" if start else "") + shorten(text[start:], VALUE_CHARS)
