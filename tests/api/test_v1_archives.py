"""Archives over HTTP: export and import of snapshots, and the handling of large bodies."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import zstandard

from holdfast.api.limits import ServerLimits
from holdfast.api.problems import BodyTooLarge, TooSlow, WrongContentType
from holdfast.api.request_body import Disconnected, Upload
from holdfast.api.responses import ARCHIVE_TYPE, OCTETS_TYPE, Archive, Octets
from holdfast.api.temp_dirs import TempDirs
from holdfast.errors import Unavailable
from tests.api.in_process import Reply
from tests.api.v1 import NEVER, ZSTD, V1Client, capture, open_here, operation_named, send_archive, tree
from tests.errors import raises
from tests.workspaces.hostile_archives import archive, folder, link, member

ONE = ServerLimits(archives=1)
SMALL = ServerLimits(archive_bytes=2_000, archives=1, refusals_per_s=0)


@pytest.fixture(scope="module")
def small() -> Iterator[V1Client]:
    """A server with a small archive limit, and one archive at a time."""
    yield from open_here(SMALL)


def members(body: bytes) -> dict[str, tarfile.TarInfo]:
    data = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {item.name: item for item in tar.getmembers()}


def test_a_snapshot_can_be_exported_and_imported_unchanged(v1: V1Client, tmp_path: Path) -> None:
    run, snapshot = capture(v1, tree(tmp_path / "w"))
    reply = v1.ask("GET", f"/snapshots/{snapshot}/archive")
    assert (reply.status, reply.headers["content-type"], reply.headers["etag"]) == (200, ARCHIVE_TYPE, f'"{snapshot}"')
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert set(members(reply.body)) == {"src", "src/a.py", "empty", "link"}
    taken = send_archive(v1, run, reply.body, "?step=0")
    assert taken.status == 201, taken.body
    again = taken.json["snapshot"]
    assert (again["kind"], again["run_id"], again["step"]) == ("imported", run, 0)
    assert v1.good("GET", f"/snapshots/diff?before={snapshot}&after={again['id']}")["items"] == []
    assert v1.ask("GET", f"/snapshots/{again['id']}/archive").body == reply.body
    assert v1.server.service.temp_dirs.in_use == 0


def test_an_imported_snapshot_can_be_restored_by_the_library(v1: V1Client, tmp_path: Path) -> None:
    run, _ = v1.claimed_run()
    body = archive(folder("d", mode=0o750), member("d/a.bin", b"\0\xff" * 500, mode=0o755), link("to", "d/a.bin"))
    snapshot = send_archive(v1, run, body).json["snapshot"]["id"]
    v1.run(v1.tenant.workspaces.restore(snapshot, tmp_path / "w"))
    restored = tmp_path / "w" / "d" / "a.bin"
    assert (restored.read_bytes(), restored.stat().st_mode & 0o777) == (b"\0\xff" * 500, 0o755)
    assert (restored.parent.stat().st_mode & 0o777, (tmp_path / "w" / "to").readlink()) == (0o750, Path("d/a.bin"))


def test_an_import_is_idempotent_by_its_id(v1: V1Client) -> None:
    run, _ = v1.claimed_run()
    body, id = archive(member("a", b"1")), str(uuid4())
    first, second = (send_archive(v1, run, body, **{"Idempotency-Key": id}) for _ in range(2))
    assert (first.status, second.status) == (201, 201)
    assert first.json["snapshot"] == second.json["snapshot"]
    assert first.json["snapshot"]["id"] == id
    assert len(v1.good("GET", f"/snapshots?run_id={run}")["items"]) == 1


def test_concurrent_imports_with_one_id_store_one_snapshot(v1: V1Client) -> None:
    run, _ = v1.claimed_run()
    body, headers = archive(member("a", b"1" * 5_000)), {**ZSTD, "Idempotency-Key": str(uuid4())}
    path = f"/v1/tenants/{v1.name}/runs/{run}/snapshots"

    async def both() -> list[Reply]:
        asked = [v1.server.ask("POST", path, body, headers=headers) for _ in range(4)]
        return await asyncio.gather(*asked)

    replies = v1.run(both())
    assert {reply.status for reply in replies} == {201}, [reply.body for reply in replies]
    assert len({reply.json["snapshot"]["id"] for reply in replies}) == 1
    assert len(v1.good("GET", f"/snapshots?run_id={run}")["items"]) == 1
    assert v1.server.service.temp_dirs.in_use == 0


def test_concurrent_archives_of_several_tenants_are_separate(v1: V1Client, tmp_path: Path) -> None:
    tenants = [v1.another() for _ in range(3)]
    made = []
    for number, tenant in enumerate(tenants):
        root = tree(tmp_path / str(number))
        (root / "whose").write_text(tenant.name)
        made.append(capture(tenant, root)[1])

    async def all_of_them() -> list[Reply]:
        paths = [f"/v1/tenants/{one.name}/snapshots/{id}/archive" for one, id in zip(tenants, made, strict=True)]
        return await asyncio.gather(*[v1.server.ask("GET", path) for path in paths for _ in range(2)])

    replies = v1.run(all_of_them())
    for place, reply in enumerate(replies):
        unpacked = zstandard.ZstdDecompressor().decompressobj().decompress(reply.body)
        with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
            whose = tar.extractfile("whose")
            assert whose is not None
            assert whose.read().decode() == tenants[place // 2].name
    tenants[0].bad("GET", f"/snapshots/{made[1]}/archive", status=404)


def test_temporary_directories_are_private() -> None:
    async def main() -> int:
        folder = await TempDirs(ONE).create("acme")
        mode = folder.path.stat().st_mode & 0o777
        await folder.close()
        return mode

    assert asyncio.run(main()) == 0o700


def test_head_of_an_archive_has_its_size_and_no_body(v1: V1Client, tmp_path: Path) -> None:
    _, snapshot = capture(v1, tree(tmp_path / "w"))
    reply = v1.ask("HEAD", f"/snapshots/{snapshot}/archive")
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) > 0
    assert v1.server.service.temp_dirs.in_use == 0


def test_exporting_a_missing_snapshot_is_a_problem_and_leaves_no_files(v1: V1Client) -> None:
    v1.bad("GET", f"/snapshots/{NEVER}/archive", status=404)
    v1.bad("GET", "/snapshots/x/archive")
    assert v1.server.service.temp_dirs.in_use == 0


@pytest.mark.parametrize("body", [b"", b"no archive", archive(member("../out", b"x")), archive(member("/abs", b"x"))])
def test_an_invalid_archive_or_one_with_outside_paths_is_refused(v1: V1Client, body: bytes) -> None:
    run, _ = v1.claimed_run()
    reply = send_archive(v1, run, body)
    assert (reply.status, reply.json["type"]) == (400, "InvalidInput"), reply.body
    assert v1.good("GET", f"/snapshots?run_id={run}")["items"] == []
    assert v1.server.service.temp_dirs.in_use == 0


def test_an_import_requires_a_content_type_and_an_existing_run(v1: V1Client) -> None:
    run, _ = v1.claimed_run()
    body = archive(member("a", b"1"))
    assert v1.ask("POST", f"/runs/{run}/snapshots", body).status == 415
    assert v1.ask("POST", f"/runs/{run}/snapshots").status == 415
    assert send_archive(v1, NEVER, body).status == 404
    assert send_archive(v1.another(), run, body).status == 404
    assert v1.ask("POST", f"/runs/{run}/snapshots", body, headers=ZSTD, key=v1.key("read")).status == 403
    assert send_archive(v1, run, body, **{"content-type": f"{ARCHIVE_TYPE}; x=y"}).status == 201


def test_an_archive_over_the_limit_is_refused_with_or_without_a_length(small: V1Client) -> None:
    v1 = small.another()
    run, _ = v1.claimed_run()
    body = archive(member("a", bytes(range(256)) * 4)) + b"x" * 2_000
    for headers in ({}, {"content-length": "10"}):
        refused = send_archive(v1, run, body, **headers)
        assert (refused.status, refused.headers["connection"]) == (413, "close")
        assert (refused.json["limit"], "2,000" in refused.json["detail"]) == ("archive_bytes", True)
    assert v1.server.service.temp_dirs.in_use == 0


def test_the_number_of_concurrent_archives_is_limited(small: V1Client) -> None:
    v1 = small.another()
    run, _ = v1.claimed_run()
    staging = v1.server.service.temp_dirs
    folder = v1.run(staging.create(v1.name))
    assert send_archive(v1, run, archive(member("a", b"1"))).status == 503
    assert folder.path.is_dir()
    v1.run(folder.close())
    assert (folder.path.exists(), staging.in_use) == (False, 0)
    assert send_archive(v1, run, archive(member("a", b"1"))).status == 201


def test_a_failed_temporary_directory_releases_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: Any) -> Any:
        raise OSError("no room")

    staging = TempDirs(ONE)
    monkeypatch.setattr("holdfast.api.temp_dirs.TemporaryDirectory", full)
    with pytest.raises(OSError, match="no room"):
        asyncio.run(staging.create("acme"))
    assert staging.in_use == 0
    with pytest.raises(Unavailable, match="archives"):
        asyncio.run(TempDirs(ServerLimits(archives=0)).create("acme"))


def test_an_archive_is_removed_when_its_client_disconnects() -> None:
    async def main() -> None:
        staging = TempDirs(ONE)
        folder = await staging.create("acme")
        (folder.path / "a").write_bytes(b"x" * 3_000_000)
        seen: list[Any] = []

        async def gone(event: Any) -> None:
            seen.append(event)
            if len(seen) > 2:
                raise OSError("gone")

        with pytest.raises(OSError, match="gone"):
            await Archive(folder, "a", etag="e")({"method": "GET"}, None, gone)  # type: ignore[arg-type]
        assert [len(row.get("body", b"")) for row in seen] == [0, 1024 * 1024, 1024 * 1024]
        assert (folder.path.exists(), staging.in_use) == (False, 0)

    asyncio.run(main())


# Uploads


async def _events(*bodies: bytes, last: str = "http.request") -> AsyncIterator[dict[str, Any]]:
    for place, body in enumerate(bodies):
        yield {"type": last if place == len(bodies) - 1 else "http.request", "body": body, "more_body": True}
    yield {"type": "http.request", "body": b"", "more_body": False}


def saved(tmp_path: Path, events: AsyncIterator[Any], **more: Any) -> int:
    limits = ServerLimits(archive_bytes=10, stall_s=more.pop("stall_s", 5.0), archive_s=more.pop("archive_s", 5.0))
    headers = {b"content-type": b"Application/ZSTD", **more}
    upload = Upload(lambda: anext(events), headers, limits)  # type: ignore[arg-type, return-value]
    return asyncio.run(upload.save(str(tmp_path / "file"), media_type=ARCHIVE_TYPE))


def test_the_chunks_of_an_upload_are_written_in_order(tmp_path: Path) -> None:
    assert saved(tmp_path, _events(b"123", b"", b"4567890")) == 10
    assert (tmp_path / "file").read_bytes() == b"1234567890"


def test_an_upload_over_the_limit_is_not_read_further(tmp_path: Path) -> None:
    read = []

    async def endless() -> AsyncIterator[Any]:
        while True:
            read.append(b"123456")
            yield {"type": "http.request", "body": read[-1], "more_body": True}

    with raises(BodyTooLarge, limit="archive_bytes"):
        saved(tmp_path, endless())
    assert len(read) == 2


def test_an_upload_ends_when_its_client_disconnects(tmp_path: Path) -> None:
    with pytest.raises(Disconnected):
        saved(tmp_path, _events(b"1", b"", last="http.disconnect"))


def test_an_upload_that_stalls_is_refused(tmp_path: Path) -> None:
    async def never() -> AsyncIterator[Any]:
        yield {"type": "http.request", "body": b"1", "more_body": True}
        await asyncio.Event().wait()

    with raises(TooSlow, limit="transfer_bytes_per_s") as refused:
        saved(tmp_path, never(), stall_s=0.01)
    assert refused.value.headers == {"connection": "close"}


@pytest.mark.parametrize("limit", ["stall_s", "archive_s"])
def test_an_upload_that_is_too_slow_is_refused(tmp_path: Path, limit: str) -> None:
    async def trickle() -> AsyncIterator[Any]:
        while True:
            await asyncio.sleep(0.001)  # no actual waiting: the time limit is that short
            yield {"type": "http.request", "body": b"", "more_body": True}

    with pytest.raises(TooSlow):
        saved(tmp_path, trickle(), **{limit: 0.05})


def test_an_upload_of_another_content_type_is_not_read(tmp_path: Path) -> None:
    events = _events(b"1")
    upload = Upload(lambda: anext(events), {}, ServerLimits())  # type: ignore[arg-type, return-value]
    with pytest.raises(WrongContentType, match=ARCHIVE_TYPE):
        asyncio.run(upload.save(str(tmp_path / "file"), media_type=ARCHIVE_TYPE))
    assert not (tmp_path / "file").exists()


def test_binary_responses_have_a_type_and_are_not_cached() -> None:
    made = Octets(b"x", etag="abc")
    assert (made.headers["etag"], made.headers["cache-control"], made.media_type) == ('"abc"', "no-store", OCTETS_TYPE)


def test_an_operation_with_an_archive_declares_it() -> None:
    taking, giving = operation_named("import_snapshot"), operation_named("export_snapshot")
    assert (taking.takes_upload, taking.has_body, giving.takes_upload) == (True, True, False)
    assert {408, 413, 415} <= set(taking.statuses)
    assert (taking.need, giving.need, taking.tag) == ("write", "read", "workspaces")
