"""Snapshots: what was captured, file by file and as a whole.

A whole one goes out and comes in as an archive, tar compressed with zstd. It passes through a file in the temporary directory of
the server: an archive that goes out is sent when it is whole, so what is damaged is an error and never half an archive.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.errors import Conflict, NotFound
from holdfast.types import AsyncRewinds, AsyncSnapshots, AsyncWorkspaces, CaptureResult, TreeEntry

from ..idempotency import IdempotencyKey, chosen_id, settled_by
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
    target: Annotated[str, Meta(description="Where a symbolic link points to.")]
    digest: Annotated[str, Meta(description="Of a file's content: equal exactly if the content is.")]


class TreePage(Struct, frozen=True):
    """What is in a snapshot, in the order of paths."""

    items: list[SnapshotTreeEntry]
    ignore: Annotated[list[str], Meta(description="The patterns by which other things were left out.")]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null at the end.")]


@operation("GET", _ONE + "/tree", raises=[NotFound], area=AREA)
async def list_tree(
    service: Service, *, tenant: str, snapshot_id: Uuid, limit: Limit = PAGE_ROWS, cursor: Cursor = None
) -> TreePage:
    """What is in a snapshot: files, directories and links."""
    page = await service.tenant(tenant).snapshots.entries(snapshot_id, limit=limit, cursor=cursor)
    return TreePage([_shown(each) for each in page.entries], list(page.ignore), page.next)


@operation("GET", _ONE + "/file", raises=[NotFound], area=AREA, etag=etag_of)
async def read_file(
    service: Service,
    *,
    tenant: str,
    snapshot_id: Uuid,
    path: Annotated[str, Meta(min_length=1, description="As it is in the tree.")],
) -> Octets:
    """The content of one file of a snapshot."""
    content = await service.tenant(tenant).snapshots.read(snapshot_id, path)
    return Octets(content, etag=blake2b(content, digest_size=16).hexdigest())


@operation("GET", _ONE + "/archive", raises=[NotFound], area=AREA, etag=etag_of, streams=True)
async def export_snapshot(service: Service, *, tenant: str, snapshot_id: Uuid) -> Archive:
    """A snapshot as an archive, `tar.zst`. The same tree makes the same archive."""
    folder = await service.temp_dirs.folder(tenant)
    try:
        await service.tenant(tenant).workspaces.export(snapshot_id, folder.path / _FILE)
        return Archive(folder, _FILE, etag=snapshot_id)
    except BaseException:
        await folder.close()
        raise


@operation("POST", _R + "/snapshots", status=201, raises=[NotFound, Conflict], area=AREA, streams=True)
async def import_snapshot(
    service: Service,
    *,
    tenant: str,
    run_id: Uuid,
    upload: Upload,
    step: Annotated[
        int | None, Meta(ge=0, le=2**53, description="The step after which this is how things are.")
    ] = None,
    outside_links: Annotated[bool, Meta(description="Let symbolic links pass that lead out of the tree.")] = False,
    idempotency_key: IdempotencyKey = None,
) -> CaptureResult:
    """Record what is in an archive, `tar.zst`, as a snapshot of a run. Nothing of it is written to any directory."""
    there = service.tenant(tenant)
    await there.runs.get(run_id)  # before anything is taken in for it
    folder = await service.temp_dirs.folder(tenant)
    try:
        await upload.save(str(folder.path / _FILE), media_type=ARCHIVE_TYPE)
        id = chosen_id(service, None, idempotency_key)
        with settled_by(id):
            return await there.workspaces.import_archive(
                run_id, folder.path / _FILE, step=step, outside_links=outside_links, id=id
            )
    finally:
        await folder.close()


def _shown(entry: TreeEntry) -> SnapshotTreeEntry:
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
