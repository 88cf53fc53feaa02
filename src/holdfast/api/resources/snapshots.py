"""Snapshots: listing and reading their files, and transferring them as archives.

An archive is a tar file compressed with zstd. It is buffered in the temporary directory of the server: an export is sent only
when it is complete, so damaged data causes an error response instead of a partial archive.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.errors import Conflict, NotFound
from holdfast.types import AsyncRewinds, AsyncSnapshots, AsyncWorkspaces, CaptureResult, TreeEntry

from ..idempotency import IdempotencyKey, chosen_id, retry_id
from ..operations import operation
from ..pagination import PAGE_ROWS, Cursor, Limit
from ..request_body import Upload
from ..responses import ARCHIVE_TYPE, Archive, Octets, etag_of
from ..schemas import Uuid
from ..state import Service
from ..store_routes import route
from .conversation import T

AREA = "workspaces"
_ALL = T + "/snapshots"
_ONE = _ALL + "/{snapshot_id}"
_R = T + "/runs/{run_id}"
_FILE = "archive.tar.zst"


class SnapshotTreeEntry(Struct, frozen=True):
    """A file, a directory or a symbolic link in a snapshot."""

    path: str
    kind: Literal["file", "dir", "symlink"]
    mode: int
    mtime_ns: int
    size: int
    target: Annotated[str, Meta(description="The target of a symbolic link.")]
    digest: Annotated[str, Meta(description="The digest of a file's content.")]


class SnapshotTreePage(Struct, frozen=True):
    """A page of the entries of a snapshot, ordered by path."""

    items: list[SnapshotTreeEntry]
    ignore: Annotated[list[str], Meta(description="The ignore patterns of the snapshot.")]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null on the last page.")]


@operation("GET", _ONE + "/tree", raises=[NotFound], area=AREA)
async def list_tree(
    service: Service, *, tenant: str, snapshot_id: Uuid, limit: Limit = PAGE_ROWS, cursor: Cursor = None
) -> SnapshotTreePage:
    """List the files, directories and symbolic links in a snapshot."""
    page = await service.tenant(tenant).snapshots.entries(snapshot_id, limit=limit, cursor=cursor)
    return SnapshotTreePage([_tree_entry(entry) for entry in page.entries], list(page.ignore), page.next)


@operation("GET", _ONE + "/file", raises=[NotFound], area=AREA, etag=etag_of)
async def read_file(
    service: Service,
    *,
    tenant: str,
    snapshot_id: Uuid,
    path: Annotated[str, Meta(min_length=1, description="The path in the tree.")],
) -> Octets:
    """Read the content of one file of a snapshot."""
    content = await service.tenant(tenant).snapshots.read(snapshot_id, path)
    return Octets(content, etag=blake2b(content, digest_size=16).hexdigest())


@operation("GET", _ONE + "/archive", raises=[NotFound], area=AREA, etag=etag_of, streams=True)
async def export_snapshot(service: Service, *, tenant: str, snapshot_id: Uuid) -> Archive:
    """Download a snapshot as an archive, `tar.zst`. Equal trees result in equal archives."""
    directory = await service.temp_dirs.create(tenant)
    try:
        await service.tenant(tenant).workspaces.export(snapshot_id, directory.path / _FILE)
        return Archive(directory, _FILE, etag=snapshot_id)
    except BaseException:
        await directory.close()
        raise


@operation("POST", _R + "/snapshots", status=201, raises=[NotFound, Conflict], area=AREA, streams=True)
async def import_snapshot(
    service: Service,
    *,
    tenant: str,
    run_id: Uuid,
    upload: Upload,
    step: Annotated[
        int | None, Meta(ge=0, le=2**53, description="The step after which the tree had this state.")
    ] = None,
    outside_links: Annotated[bool, Meta(description="Allow symbolic links that lead out of the tree.")] = False,
    idempotency_key: IdempotencyKey = None,
) -> CaptureResult:
    """Store the content of an archive, `tar.zst`, as a snapshot of a run. No workspace directory is changed."""
    handle = service.tenant(tenant)
    await handle.runs.get(run_id)  # before the upload starts
    directory = await service.temp_dirs.create(tenant)
    try:
        await upload.save(str(directory.path / _FILE), media_type=ARCHIVE_TYPE)
        id = chosen_id(service, None, idempotency_key)
        with retry_id(id):
            return await handle.workspaces.import_archive(
                run_id, directory.path / _FILE, step=step, outside_links=outside_links, id=id
            )
    finally:
        await directory.close()


def _tree_entry(entry: TreeEntry) -> SnapshotTreeEntry:
    return SnapshotTreeEntry(
        entry.path, entry.kind, entry.mode, entry.mtime_ns, entry.size, entry.target, entry.digest.hex()
    )


ROUTES = [
    route("GET", _R + "/rewinds", "rewinds", AsyncRewinds.list, "list_rewinds", area="runs"),
    route("GET", T + "/rewinds/pending", "rewinds", AsyncRewinds.pending, "list_pending_rewinds", area="runs"),
    route("GET", T + "/rewinds/{rewind_id}", "rewinds", AsyncRewinds.get, "get_rewind", area="runs"),
    route("POST", T + "/rewinds/{rewind_id}/finish", "rewinds", AsyncRewinds.finish, "finish_rewind", area="runs"),
    route("GET", _ALL, "snapshots", AsyncSnapshots.list, "list_snapshots", area=AREA),
    route("DELETE", _ALL, "snapshots", AsyncSnapshots.delete, "delete_snapshots", area=AREA),
    route("GET", _ALL + "/usage", "snapshots", AsyncSnapshots.usage, "get_snapshot_usage", area=AREA),
    route("GET", _ALL + "/diff", "workspaces", AsyncWorkspaces.diff, "diff_snapshots", area=AREA),
    route("POST", _ALL + "/collect", "snapshots", AsyncSnapshots.collect, "collect_snapshots", area=AREA, need="admin"),
    route("GET", _ONE, "snapshots", AsyncSnapshots.get, "get_snapshot", area=AREA),
    route("GET", _R + "/snapshots/latest", "snapshots", AsyncSnapshots.find, "find_snapshot", area=AREA),
]
