"""Archives over HTTP: snapshots out and in, and what becomes of large bodies on their way."""

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
from tests.api.v1 import NEVER, ZSTD, Here, captured, named, open_here, sent, tree
from tests.workspaces.hostile_archives import archive, folder, link, member

ONE = ServerLimits(archives=1)
SMALL = ServerLimits(archive_bytes=2_000, archives=1, refusals_per_s=0)


@pytest.fixture(scope="module")
def small() -> Iterator[Here]:
    """A server that takes no large archive, and one at a time."""
    yield from open_here(SMALL)


def members(body: bytes) -> dict[str, tarfile.TarInfo]:
    data = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {each.name: each for each in tar.getmembers()}


def test_a_snapshot_goes_out_as_an_archive_and_comes_back_the_same(here: Here, tmp_path: Path) -> None:
    run, snapshot = captured(here, tree(tmp_path / "w"))
    found = here.ask("GET", f"/snapshots/{snapshot}/archive")
    assert (found.status, found.headers["content-type"], found.headers["etag"]) == (200, ARCHIVE_TYPE, f'"{snapshot}"')
    assert int(found.headers["content-length"]) == len(found.body)
    assert set(members(found.body)) == {"src", "src/a.py", "empty", "link"}
    taken = sent(here, run, found.body, "?step=0")
    assert taken.status == 201, taken.body
    again = taken.json["snapshot"]
    assert (again["kind"], again["run_id"], again["step"]) == ("imported", run, 0)
    assert here.good("GET", f"/snapshots/diff?before={snapshot}&after={again['id']}")["items"] == []
    assert here.ask("GET", f"/snapshots/{again['id']}/archive").body == found.body
    assert here.server.service.temp_dirs.in_use == 0


def test_a_snapshot_that_came_over_http_is_restored_by_the_library(here: Here, tmp_path: Path) -> None:
    run, _ = here.claimed()
    body = archive(folder("d", mode=0o750), member("d/a.bin", b"\0\xff" * 500, mode=0o755), link("to", "d/a.bin"))
    snapshot = sent(here, run, body).json["snapshot"]["id"]
    here.run(here.tenant.workspaces.restore(snapshot, tmp_path / "w"))
    restored = tmp_path / "w" / "d" / "a.bin"
    assert (restored.read_bytes(), restored.stat().st_mode & 0o777) == (b"\0\xff" * 500, 0o755)
    assert (restored.parent.stat().st_mode & 0o777, (tmp_path / "w" / "to").readlink()) == (0o750, Path("d/a.bin"))


def test_an_import_can_be_repeated_under_one_id(here: Here) -> None:
    run, _ = here.claimed()
    body, id = archive(member("a", b"1")), str(uuid4())
    first, second = (sent(here, run, body, **{"Idempotency-Key": id}) for _ in range(2))
    assert (first.status, second.status) == (201, 201)
    assert first.json["snapshot"] == second.json["snapshot"]
    assert first.json["snapshot"]["id"] == id
    assert len(here.good("GET", f"/snapshots?run_id={run}")["items"]) == 1


def test_the_same_import_twice_at_the_same_moment_is_one_snapshot(here: Here) -> None:
    run, _ = here.claimed()
    body, headers = archive(member("a", b"1" * 5_000)), {**ZSTD, "Idempotency-Key": str(uuid4())}
    path = f"/v1/tenants/{here.name}/runs/{run}/snapshots"

    async def both() -> list[Reply]:
        asked = [here.server.ask("POST", path, body, headers=headers) for _ in range(4)]
        return await asyncio.gather(*asked)

    replies = here.run(both())
    assert {each.status for each in replies} == {201}, [each.body for each in replies]
    assert len({each.json["snapshot"]["id"] for each in replies}) == 1
    assert len(here.good("GET", f"/snapshots?run_id={run}")["items"]) == 1
    assert here.server.service.temp_dirs.in_use == 0


def test_archives_of_several_tenants_at_once_are_each_their_own(here: Here, tmp_path: Path) -> None:
    tenants = [here.another() for _ in range(3)]
    made = []
    for number, each in enumerate(tenants):
        root = tree(tmp_path / str(number))
        (root / "whose").write_text(each.name)
        made.append(captured(each, root)[1])

    async def all_of_them() -> list[Reply]:
        paths = [f"/v1/tenants/{one.name}/snapshots/{id}/archive" for one, id in zip(tenants, made, strict=True)]
        return await asyncio.gather(*[here.server.ask("GET", path) for path in paths for _ in range(2)])

    replies = here.run(all_of_them())
    for place, reply in enumerate(replies):
        unpacked = zstandard.ZstdDecompressor().decompressobj().decompress(reply.body)
        with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
            whose = tar.extractfile("whose")
            assert whose is not None
            assert whose.read().decode() == tenants[place // 2].name
    tenants[0].bad("GET", f"/snapshots/{made[1]}/archive", status=404)


def test_nobody_else_on_the_machine_can_look_into_what_is_under_way() -> None:
    async def main() -> int:
        folder = await TempDirs(ONE).create("acme")
        mode = folder.path.stat().st_mode & 0o777
        await folder.close()
        return mode

    assert asyncio.run(main()) == 0o700


def test_head_of_an_archive_has_its_size_and_no_body(here: Here, tmp_path: Path) -> None:
    _, snapshot = captured(here, tree(tmp_path / "w"))
    found = here.ask("HEAD", f"/snapshots/{snapshot}/archive")
    assert (found.status, found.body) == (200, b"")
    assert int(found.headers["content-length"]) > 0
    assert here.server.service.temp_dirs.in_use == 0


def test_an_archive_of_what_is_not_there_is_a_problem_and_leaves_nothing_behind(here: Here) -> None:
    here.bad("GET", f"/snapshots/{NEVER}/archive", status=404)
    here.bad("GET", "/snapshots/x/archive")
    assert here.server.service.temp_dirs.in_use == 0


@pytest.mark.parametrize("body", [b"", b"no archive", archive(member("../out", b"x")), archive(member("/abs", b"x"))])
def test_what_is_no_archive_or_would_leave_its_root_is_refused(here: Here, body: bytes) -> None:
    run, _ = here.claimed()
    reply = sent(here, run, body)
    assert (reply.status, reply.json["type"]) == (400, "InvalidInput"), reply.body
    assert here.good("GET", f"/snapshots?run_id={run}")["items"] == []
    assert here.server.service.temp_dirs.in_use == 0


def test_an_archive_says_what_it_is_and_whom_it_is_for(here: Here) -> None:
    run, _ = here.claimed()
    body = archive(member("a", b"1"))
    assert here.ask("POST", f"/runs/{run}/snapshots", body).status == 415
    assert here.ask("POST", f"/runs/{run}/snapshots").status == 415
    assert sent(here, NEVER, body).status == 404
    assert sent(here.another(), run, body).status == 404
    assert here.ask("POST", f"/runs/{run}/snapshots", body, headers=ZSTD, key=here.key("read")).status == 403
    assert sent(here, run, body, **{"content-type": f"{ARCHIVE_TYPE}; x=y"}).status == 201


def test_an_archive_over_the_limit_is_refused_whether_it_says_so_or_not(small: Here) -> None:
    here = small.another()
    run, _ = here.claimed()
    body = archive(member("a", bytes(range(256)) * 4)) + b"x" * 2_000
    for headers in ({}, {"content-length": "10"}):
        refused = sent(here, run, body, **headers)
        assert (refused.status, refused.headers["connection"]) == (413, "close")
        assert "archive_bytes = 2,000" in refused.json["detail"]
    assert here.server.service.temp_dirs.in_use == 0


def test_no_more_archives_are_under_way_than_fit(small: Here) -> None:
    here = small.another()
    run, _ = here.claimed()
    staging = here.server.service.temp_dirs
    folder = here.run(staging.create(here.name))
    assert sent(here, run, archive(member("a", b"1"))).status == 503
    assert folder.path.is_dir()
    here.run(folder.close())
    assert (folder.path.exists(), staging.in_use) == (False, 0)
    assert sent(here, run, archive(member("a", b"1"))).status == 201


def test_a_folder_that_cannot_be_made_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: Any) -> Any:
        raise OSError("no room")

    staging = TempDirs(ONE)
    monkeypatch.setattr("holdfast.api.temp_dirs.TemporaryDirectory", full)
    with pytest.raises(OSError, match="no room"):
        asyncio.run(staging.create("acme"))
    assert staging.in_use == 0
    with pytest.raises(Unavailable, match="archives = 0"):
        asyncio.run(TempDirs(ServerLimits(archives=0)).create("acme"))


def test_an_archive_that_nobody_waits_for_is_removed_all_the_same() -> None:
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
        assert [len(each.get("body", b"")) for each in seen] == [0, 1024 * 1024, 1024 * 1024]
        assert (folder.path.exists(), staging.in_use) == (False, 0)

    asyncio.run(main())


# Uploads by themselves


async def _events(*bodies: bytes, last: str = "http.request") -> AsyncIterator[dict[str, Any]]:
    for place, each in enumerate(bodies):
        yield {"type": last if place == len(bodies) - 1 else "http.request", "body": each, "more_body": True}
    yield {"type": "http.request", "body": b"", "more_body": False}


def saved(tmp_path: Path, events: AsyncIterator[Any], **more: Any) -> int:
    limits = ServerLimits(archive_bytes=10, stall_s=more.pop("stall_s", 5.0), archive_s=more.pop("archive_s", 5.0))
    headers = {b"content-type": b"Application/ZSTD", **more}
    upload = Upload(lambda: anext(events), headers, limits)  # type: ignore[arg-type, return-value]
    return asyncio.run(upload.save(str(tmp_path / "file"), media_type=ARCHIVE_TYPE))


def test_an_upload_comes_in_pieces_and_is_written_in_their_order(tmp_path: Path) -> None:
    assert saved(tmp_path, _events(b"123", b"", b"4567890")) == 10
    assert (tmp_path / "file").read_bytes() == b"1234567890"


def test_an_upload_that_grows_over_the_limit_is_read_no_further(tmp_path: Path) -> None:
    read = []

    async def endless() -> AsyncIterator[Any]:
        while True:
            read.append(b"123456")
            yield {"type": "http.request", "body": read[-1], "more_body": True}

    with pytest.raises(BodyTooLarge, match="archive_bytes = 10"):
        saved(tmp_path, endless())
    assert len(read) == 2


def test_an_upload_of_somebody_who_has_gone_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(Disconnected):
        saved(tmp_path, _events(b"1", b"", last="http.disconnect"))


def test_an_upload_that_stops_coming_is_given_up(tmp_path: Path) -> None:
    async def never() -> AsyncIterator[Any]:
        yield {"type": "http.request", "body": b"1", "more_body": True}
        await asyncio.Event().wait()

    with pytest.raises(TooSlow, match=r"1 bytes of the body arrived .* transfer_bytes_per_s = 1,024") as refused:
        saved(tmp_path, never(), stall_s=0.01)
    assert refused.value.headers == {"connection": "close"}


@pytest.mark.parametrize("limit", ["stall_s", "archive_s"])
def test_an_upload_that_trickles_in_is_given_up(tmp_path: Path, limit: str) -> None:
    async def trickle() -> AsyncIterator[Any]:
        while True:
            await asyncio.sleep(0.001)  # no waiting for anything: this is how slow it is
            yield {"type": "http.request", "body": b"", "more_body": True}

    with pytest.raises(TooSlow):
        saved(tmp_path, trickle(), **{limit: 0.05})


def test_an_upload_of_another_type_is_not_read(tmp_path: Path) -> None:
    events = _events(b"1")
    upload = Upload(lambda: anext(events), {}, ServerLimits())  # type: ignore[arg-type, return-value]
    with pytest.raises(WrongContentType, match=ARCHIVE_TYPE):
        asyncio.run(upload.save(str(tmp_path / "file"), media_type=ARCHIVE_TYPE))
    assert not (tmp_path / "file").exists()


def test_bytes_have_a_name_and_are_not_kept_by_anybody_between() -> None:
    made = Octets(b"x", etag="abc")
    assert (made.headers["etag"], made.headers["cache-control"], made.media_type) == ('"abc"', "no-store", OCTETS_TYPE)


def test_an_operation_with_an_archive_says_so() -> None:
    taking, giving = named("import_snapshot"), named("export_snapshot")
    assert (taking.takes_upload, taking.has_body, giving.takes_upload) == (True, True, False)
    assert {408, 413, 415} <= set(taking.statuses)
    assert (taking.need, giving.need, taking.tag) == ("write", "read", "workspaces")
