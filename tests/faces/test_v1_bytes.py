"""Bytes over HTTP: objects, files and archives of snapshots, checkpoints, and what becomes of large bodies on their way."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import zstandard

from holdfast.api.answers import ARCHIVE_TYPE, OCTETS_TYPE, Archive, Octets
from holdfast.api.bodies import Disconnected, Upload
from holdfast.api.limits import ServerLimits
from holdfast.api.operations import Operation
from holdfast.api.problems import BodyTooLarge, TooSlow, WrongContentType
from holdfast.api.resources import OPERATIONS
from holdfast.api.staging import Staging
from holdfast.errors import Unavailable
from tests.faces.in_process import Reply
from tests.faces.test_v1_requests import Here, open_here
from tests.workspace.hostile import archive, folder, link, member

NEVER = "0190f8b4-7c1e-4d2a-9f63-5b8e2a7c4d10"
SMALL = ServerLimits(archive_bytes=2_000, archives=1, refusals_per_s=0)
ZSTD = {"content-type": ARCHIVE_TYPE}


@pytest.fixture(scope="module")
def opened() -> Iterator[Here]:
    yield from open_here()


@pytest.fixture
def here(opened: Here) -> Here:
    """A tenant of this test's own."""
    return opened.another()


@pytest.fixture(scope="module")
def small() -> Iterator[Here]:
    """A server that takes no large archive, and one at a time."""
    yield from open_here(SMALL)


def text(content: bytes) -> str:
    return b64encode(content).decode()


def tree(root: Path) -> Path:
    """A small directory."""
    root.mkdir()
    (root / "src").mkdir()
    (root / "src" / "a.py").write_bytes(b"print(1)\n")
    (root / "empty").write_bytes(b"")
    (root / "link").symlink_to("src/a.py")
    return root


def captured(here: Here, root: Path) -> tuple[str, str]:
    """A run, and a snapshot of a directory for it."""
    run, _ = here.claimed()
    return run, here.run(here.tenant.workspaces.capture(run, root)).snapshot.id


# Objects


def test_an_object_is_kept_once_and_read_as_it_was_put(here: Here) -> None:
    contents = [b"a" * 100_000, b"", b"\0\xff", b"a" * 100_000]
    body = {"contents": [text(each) for each in contents], "holder": "me"}
    digests = here.good("POST", "/objects", body, 201)["items"]
    assert here.good("POST", "/objects", body, 201)["items"] == digests
    assert (digests[0] == digests[3], len(set(digests))) == (True, 3)
    for digest, content in zip(digests, contents, strict=True):
        found = here.ask("GET", f"/objects/{digest}")
        assert (found.status, found.body, found.headers["etag"]) == (200, content, f'"{digest}"')
        assert (found.headers["content-type"], found.headers["x-content-type-options"]) == (OCTETS_TYPE, "nosniff")
    assert here.good("GET", "/objects/usage")["count"] == 3


def test_head_of_an_object_says_how_large_it_is(here: Here) -> None:
    (digest,) = here.good("POST", "/objects", {"contents": [text(b"12345")], "holder": "me"}, 201)["items"]
    found = here.ask("HEAD", f"/objects/{digest}")
    assert (found.status, found.headers["content-length"], found.headers["etag"]) == (200, "5", f'"{digest}"')


def test_whether_objects_are_there_is_told_in_their_order(here: Here) -> None:
    (digest,) = here.good("POST", "/objects", {"contents": [text(b"x")], "holder": "me"}, 201)["items"]
    asked = {"digests": ["00" * 32, digest, digest]}
    assert here.good("POST", "/objects/present", asked)["items"] == [False, True, True]
    assert here.another().good("POST", "/objects/present", asked)["items"] == [False, False, False]


@pytest.mark.parametrize(("digest", "status"), [("00" * 32, 404), ("x", 400), ("0" * 63, 400), ("%00", 400)])
def test_an_object_that_is_not_there_is_a_problem(here: Here, digest: str, status: int) -> None:
    here.bad("GET", f"/objects/{digest}", status=status)
    assert here.ask("HEAD", f"/objects/{digest}").status == status


def test_an_object_of_another_tenant_is_not_there(here: Here) -> None:
    (digest,) = here.good("POST", "/objects", {"contents": [text(b"mine")], "holder": "me"}, 201)["items"]
    here.another().bad("GET", f"/objects/{digest}", status=404)


@pytest.mark.parametrize(
    "body",
    [
        {"contents": [], "holder": "me"},
        {"contents": ["not base64!"], "holder": "me"},
        {"contents": [7], "holder": "me"},
        {"contents": ["AA=="], "holder": ""},
        {"contents": ["AA=="]},
    ],
)
def test_what_is_no_content_is_not_kept(here: Here, body: Any) -> None:
    here.bad("POST", "/objects", body)
    assert here.good("GET", "/objects/usage")["count"] == 0


def test_what_was_put_over_http_is_let_go_and_removed_when_nobody_needs_it(here: Here) -> None:
    first, second = here.good("POST", "/objects", {"contents": [text(b"1"), text(b"2")], "holder": "me"}, 201)["items"]
    here.good("POST", "/objects", {"contents": [text(b"2")], "holder": "you"}, 201)
    assert here.good("POST", "/objects/release", {"holder": "me", "digests": [first]}) == {"count": 1}
    assert here.good("POST", "/objects/release", {"holder": "me"}) == {"count": 1}
    assert here.good("POST", "/objects/release", {"holder": "me"}) == {"count": 0}
    assert here.good("POST", "/objects/prune", {"grace_s": 0})["condemned"] == 1
    here.good("POST", "/objects/prune", {"grace_s": 0})
    assert here.good("POST", "/objects/present", {"digests": [first, second]})["items"] == [False, True]


def test_nobody_can_let_go_over_http_of_what_snapshots_and_checkpoints_hold(here: Here, tmp_path: Path) -> None:
    _, snapshot = captured(here, tree(tmp_path / "w"))
    here.run(here.tenant.objects.put([b"held"], holder="library"))
    held = here.good("GET", "/objects/usage")["count"]
    assert held > 1
    for holder in ("library", "http/library", snapshot, f"snapshot/{snapshot}", f"layer/{snapshot}"):
        assert here.good("POST", "/objects/release", {"holder": holder}) == {"count": 0}
    assert here.good("POST", "/objects/prune", {"grace_s": 0})["condemned"] == 0


def test_objects_are_verified_part_by_part(here: Here) -> None:
    here.good("POST", "/objects", {"contents": [text(bytes([n])) for n in range(5)], "holder": "me"}, 201)
    first = here.good("GET", "/objects/verify?limit=3")
    assert (first["count"], first["damaged"]) == (3, [])
    rest = here.good("GET", f"/objects/verify?limit=3&after={first['next']}")
    assert (rest["count"], rest["next"]) == (2, None)
    here.bad("GET", "/objects/verify?after=xyz")
    assert here.ask("GET", "/objects/verify", key=here.key("read", "write")).status == 403


# Files and trees


def test_what_is_in_a_snapshot_is_listed_page_by_page(here: Here, tmp_path: Path) -> None:
    _, snapshot = captured(here, tree(tmp_path / "w"))
    whole = here.good("GET", f"/snapshots/{snapshot}/tree")
    found = {each["path"]: each for each in whole["items"]}
    assert [each["path"] for each in whole["items"]] == sorted(found)
    assert (found["src"]["kind"], found["link"]["kind"], found["link"]["target"]) == ("dir", "symlink", "src/a.py")
    assert (found["src/a.py"]["size"], found["empty"]["size"]) == (9, 0)
    assert (whole["next"], bool(whole["ignore"])) == (None, True)
    pages, cursor = [], ""
    while cursor is not None:
        page = here.good("GET", f"/snapshots/{snapshot}/tree?limit=3{cursor}")
        pages.append(page["items"])
        cursor = None if page["next"] is None else f"&cursor={page['next']}"
    assert [each for page in pages for each in page] == whole["items"]
    assert {len(page) for page in pages[:-1]} <= {3}


def test_a_file_of_a_snapshot_is_read_as_it_was(here: Here, tmp_path: Path) -> None:
    _, snapshot = captured(here, tree(tmp_path / "w"))
    found = here.ask("GET", f"/snapshots/{snapshot}/file?path=src/a.py")
    assert (found.status, found.body, found.headers["content-type"]) == (200, b"print(1)\n", OCTETS_TYPE)
    assert here.ask("GET", f"/snapshots/{snapshot}/file?path=src/a.py").headers["etag"] == found.headers["etag"]
    assert here.ask("GET", f"/snapshots/{snapshot}/file?path=empty").body == b""
    for path in ("src", "nowhere", "../x", "/etc/hosts", "%00"):
        assert here.ask("GET", f"/snapshots/{snapshot}/file?path={path}").status in (400, 404), path
    here.another().bad("GET", f"/snapshots/{snapshot}/file?path=empty", status=404)
    here.bad("GET", f"/snapshots/{NEVER}/tree", status=404)


def test_snapshots_are_found_deleted_and_collected(here: Here, tmp_path: Path) -> None:
    run, snapshot = captured(here, tree(tmp_path / "w"))
    assert here.good("GET", f"/runs/{run}/snapshots/latest")["id"] == snapshot
    assert here.good("GET", f"/snapshots/{snapshot}")["run_id"] == run
    here.bad("GET", f"/runs/{run}/snapshots/latest?kind=imported", status=404)
    here.bad("DELETE", f"/snapshots?snapshot_ids={snapshot}")
    here.bad("DELETE", f"/snapshots?snapshot_ids={snapshot}&reason=")
    gone = here.good("DELETE", f"/snapshots?snapshot_ids={snapshot}&snapshot_ids={NEVER}&reason=test")
    assert [each["id"] for each in gone["items"]] == [snapshot]
    here.bad("GET", f"/snapshots/{snapshot}", status=404)
    assert here.good("POST", "/snapshots/collect") == {"count": 0}
    assert here.ask("POST", "/snapshots/collect", key=here.key("read", "write")).status == 403


def test_names_that_are_not_utf8_are_in_the_tree_and_a_page_after_the_end_is_empty(here: Here, tmp_path: Path) -> None:
    root = tree(tmp_path / "w")
    Path(os.fsdecode(bytes(root / "x") + b"\xff")).write_bytes(b"odd")
    run, snapshot = captured(here, root)
    reply = here.ask("GET", f"/snapshots/{snapshot}/tree")
    paths = [each["path"] for each in json.loads(reply.body)["items"]]
    assert "x\udcff" in paths
    after = here.good("GET", f"/snapshots/{snapshot}/tree?cursor={len(paths)}")
    assert (after["items"], after["next"]) == ([], None)
    body = here.ask("GET", f"/snapshots/{snapshot}/archive").body
    again = sent(here, run, body).json["snapshot"]["id"]
    assert here.good("GET", f"/snapshots/diff?before={snapshot}&after={again}")["items"] == []


# Archives


def sent(here: Here, run: str, body: bytes, query: str = "", **headers: str) -> Reply:
    return here.ask("POST", f"/runs/{run}/snapshots{query}", body, headers={**ZSTD, **headers})


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
    assert here.server.service.staging.in_use == 0


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
    assert here.server.service.staging.in_use == 0


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
        folder = await Staging(1).folder()
        mode = folder.path.stat().st_mode & 0o777
        await folder.close()
        return mode

    assert asyncio.run(main()) == 0o700


def test_head_of_an_archive_has_its_size_and_no_body(here: Here, tmp_path: Path) -> None:
    _, snapshot = captured(here, tree(tmp_path / "w"))
    found = here.ask("HEAD", f"/snapshots/{snapshot}/archive")
    assert (found.status, found.body) == (200, b"")
    assert int(found.headers["content-length"]) > 0
    assert here.server.service.staging.in_use == 0


def test_an_archive_of_what_is_not_there_is_a_problem_and_leaves_nothing_behind(here: Here) -> None:
    here.bad("GET", f"/snapshots/{NEVER}/archive", status=404)
    here.bad("GET", "/snapshots/x/archive")
    assert here.server.service.staging.in_use == 0


@pytest.mark.parametrize("body", [b"", b"no archive", archive(member("../out", b"x")), archive(member("/abs", b"x"))])
def test_what_is_no_archive_or_would_leave_its_root_is_refused(here: Here, body: bytes) -> None:
    run, _ = here.claimed()
    reply = sent(here, run, body)
    assert (reply.status, reply.json["type"]) == (400, "InvalidInput"), reply.body
    assert here.good("GET", f"/snapshots?run_id={run}")["items"] == []
    assert here.server.service.staging.in_use == 0


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
    assert here.server.service.staging.in_use == 0


def test_no_more_archives_are_under_way_than_fit(small: Here) -> None:
    here = small.another()
    run, _ = here.claimed()
    staging = here.server.service.staging
    folder = here.run(staging.folder())
    assert sent(here, run, archive(member("a", b"1"))).status == 503
    assert folder.path.is_dir()
    here.run(folder.close())
    assert (folder.path.exists(), staging.in_use) == (False, 0)
    assert sent(here, run, archive(member("a", b"1"))).status == 201


def test_a_folder_that_cannot_be_made_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: Any) -> Any:
        raise OSError("no room")

    staging = Staging(1)
    monkeypatch.setattr("holdfast.api.staging.TemporaryDirectory", full)
    with pytest.raises(OSError, match="no room"):
        asyncio.run(staging.folder())
    assert staging.in_use == 0
    with pytest.raises(Unavailable, match="archives = 0"):
        asyncio.run(Staging(0).folder())


def test_an_archive_that_nobody_waits_for_is_removed_all_the_same() -> None:
    async def main() -> None:
        staging = Staging(1)
        folder = await staging.folder()
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
    limits = ServerLimits(archive_bytes=10, answer_s=more.pop("answer_s", 5.0))
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

    with pytest.raises(TooSlow, match="answer_s") as refused:
        saved(tmp_path, never(), answer_s=0.01)
    assert refused.value.headers == {"connection": "close"}


def test_an_upload_of_another_type_is_not_read(tmp_path: Path) -> None:
    events = _events(b"1")
    upload = Upload(lambda: anext(events), {}, ServerLimits())  # type: ignore[arg-type, return-value]
    with pytest.raises(WrongContentType, match=ARCHIVE_TYPE):
        asyncio.run(upload.save(str(tmp_path / "file"), media_type=ARCHIVE_TYPE))
    assert not (tmp_path / "file").exists()


def test_bytes_have_a_name_and_are_not_kept_by_anybody_between() -> None:
    made = Octets(b"x", etag="abc")
    assert (made.headers["etag"], made.headers["cache-control"], made.media_type) == ('"abc"', "no-store", OCTETS_TYPE)


def named(name: str) -> Operation:
    return next(each for each in OPERATIONS if each.function.__name__ == name)


def test_an_operation_with_an_archive_says_so() -> None:
    taking, giving = named("import_snapshot"), named("export_snapshot")
    assert (taking.takes_upload, taking.has_body, giving.takes_upload) == (True, True, False)
    assert {408, 413, 415} <= set(taking.statuses)
    assert (taking.need, giving.need, taking.tag) == ("write", "read", "workspaces")


# Checkpoints


def test_a_checkpoint_is_written_and_read_as_base64(here: Here) -> None:
    body = {"state": text(b"\0state"), "pieces": [text(b"one"), text(b"two")], "metadata": {"run_id": "r1"}}
    first = here.good("PUT", "/threads/t/checkpoints/c1", body)
    assert len(first["places"]) == 2
    later = {"state": text(b"2"), "pieces": [first["places"][0]], "stamp": first["stamp"], "parent": "c1"}
    here.good("PUT", "/threads/t/checkpoints/c2", {**later, "metadata": {"run_id": "r2"}, "only_after_head": True})
    found = here.good("GET", "/threads/t/checkpoints/latest")
    assert (found["id"], found["parent"], found["state"], found["pieces"]) == ("c2", "c1", text(b"2"), [text(b"one")])
    late = here.bad("PUT", "/threads/t/checkpoints/c3", {**later, "only_after_head": True}, 409)
    assert late["type"] == "Conflict"
    stale = here.bad("PUT", "/threads/t/checkpoints/c4", {**later, "stamp": "of another time"}, 409)
    assert stale["type"] == "Stale"


def test_a_checkpoint_is_written_only_by_who_holds_the_run(here: Here) -> None:
    run, epoch = here.claimed()
    body = {"state": text(b"s"), "lease": [run, epoch]}
    here.good("PUT", "/threads/t/checkpoints/c1", body)
    fenced = here.bad("PUT", "/threads/t/checkpoints/c2", {**body, "lease": [run, epoch + 1]}, 409)
    assert fenced["type"] in ("Fenced", "Conflict")
    here.bad("PUT", "/threads/t/checkpoints/c2", {**body, "lease": [run]})
    here.bad("PUT", "/threads/t/checkpoints/c2", {**body, "lease": "mine"})
    assert len(here.good("GET", "/checkpoints?thread_id=t")["items"]) == 1


@pytest.mark.parametrize(
    "body",
    [{}, {"state": "%"}, {"state": 7}, {"state": "AA==", "pieces": ["x!"]}, {"state": "AA==", "pieces": [99]}],
)
def test_what_is_no_checkpoint_is_not_written(here: Here, body: Any) -> None:
    assert here.ask("PUT", "/threads/t/checkpoints/c", body).status in (400, 409)
    here.bad("GET", "/threads/t/checkpoints/latest", status=404)


def test_what_tasks_wrote_is_there_with_the_checkpoint(here: Here) -> None:
    here.good("PUT", "/threads/t/checkpoints/c", {"state": text(b"s")})
    new = [{"index": 0, "channel": "out", "value": text(b"v"), "pieces": [text(b"p")]}]
    path = "/threads/t/checkpoints/c/writes"
    assert len(here.good("POST", path, {"task_id": "a", "new": new}, 201)["places"]) == 1
    changed = [{"index": 0, "channel": "out", "value": text(b"other")}, {"index": -1, "channel": "err"}]
    here.good("POST", path, {"task_id": "a", "new": changed}, 201)
    (task,) = here.good("GET", "/threads/t/checkpoints/latest")["tasks"]
    assert (task["task_id"], len(task["writes"])) == ("a", 2)
    assert text(b"other") not in str(task), "a write from 0 on is kept as it came first"
    here.bad("POST", path, {"task_id": "a", "new": [{"index": 0, "channel": "c", "colour": 1}]})


def test_threads_are_copied_verified_and_cleared_of_runs(here: Here) -> None:
    for number, run in enumerate(["r1", "r1", "r2"]):
        body = {"state": text(b"s"), "metadata": {"run_id": run}, **({"parent": f"c{number - 1}"} if number else {})}
        here.good("PUT", f"/threads/t/checkpoints/c{number}", body)
    assert here.good("POST", "/checkpoints/copy", {"source": "t", "target": "u"}) == {"count": 3}
    here.bad("POST", "/checkpoints/copy", {"source": "never", "target": "v"}, 404)
    here.good("PUT", "/threads/w/checkpoints/c", {"state": text(b"s")})
    assert here.bad("POST", "/checkpoints/copy", {"source": "t", "target": "w"}, 409)["type"] == "AlreadyExists"
    checked = here.good("GET", "/checkpoints/verify")
    assert (checked["threads"], checked["checkpoints"], checked["damaged"]) == (3, 7, [])
    assert here.good("GET", "/checkpoints/verify?limit=1")["next"] is not None
    assert here.ask("GET", "/checkpoints/verify", key=here.key("read", "write")).status == 403
    assert here.good("POST", "/checkpoints/delete-runs", {"run_ids": ["r1"]})["count"] == 4
    assert here.good("POST", "/checkpoints/delete-runs", {"run_ids": ["never"]}) == {"count": 0}
