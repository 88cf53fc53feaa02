"""Bytes over HTTP: objects, files of snapshots, checkpoints."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.responses import OCTETS_TYPE
from tests.api.v1 import NEVER, V1Client, capture, send_archive, tree


def text(content: bytes) -> str:
    return b64encode(content).decode()


# Objects


def test_an_object_is_stored_once_and_returned_unchanged(v1: V1Client) -> None:
    contents = [b"a" * 100_000, b"", b"\0\xff", b"a" * 100_000]
    body = {"contents": [text(content) for content in contents], "holder": "me"}
    digests = v1.good("POST", "/objects", body, 201)["items"]
    assert v1.good("POST", "/objects", body, 201)["items"] == digests
    assert (digests[0] == digests[3], len(set(digests))) == (True, 3)
    for digest, content in zip(digests, contents, strict=True):
        reply = v1.ask("GET", f"/objects/{digest}")
        assert (reply.status, reply.body, reply.headers["etag"]) == (200, content, f'"{digest}"')
        assert (reply.headers["content-type"], reply.headers["x-content-type-options"]) == (OCTETS_TYPE, "nosniff")
    assert v1.good("GET", "/objects/usage")["count"] == 3


def test_head_of_an_object_has_its_size(v1: V1Client) -> None:
    (digest,) = v1.good("POST", "/objects", {"contents": [text(b"12345")], "holder": "me"}, 201)["items"]
    reply = v1.ask("HEAD", f"/objects/{digest}")
    assert (reply.status, reply.headers["content-length"], reply.headers["etag"]) == (200, "5", f'"{digest}"')


def test_present_reports_objects_in_the_order_of_the_request(v1: V1Client) -> None:
    (digest,) = v1.good("POST", "/objects", {"contents": [text(b"x")], "holder": "me"}, 201)["items"]
    asked = {"digests": ["00" * 32, digest, digest]}
    assert v1.good("POST", "/objects/present", asked)["items"] == [False, True, True]
    assert v1.another().good("POST", "/objects/present", asked)["items"] == [False, False, False]


@pytest.mark.parametrize(("digest", "status"), [("00" * 32, 404), ("x", 400), ("0" * 63, 400), ("%00", 400)])
def test_a_missing_object_is_a_problem(v1: V1Client, digest: str, status: int) -> None:
    v1.bad("GET", f"/objects/{digest}", status=status)
    assert v1.ask("HEAD", f"/objects/{digest}").status == status


def test_an_object_of_another_tenant_is_missing(v1: V1Client) -> None:
    (digest,) = v1.good("POST", "/objects", {"contents": [text(b"mine")], "holder": "me"}, 201)["items"]
    v1.another().bad("GET", f"/objects/{digest}", status=404)


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
def test_invalid_content_is_not_stored(v1: V1Client, body: Any) -> None:
    v1.bad("POST", "/objects", body)
    assert v1.good("GET", "/objects/usage")["count"] == 0


def test_released_objects_are_removed_when_no_holder_is_left(v1: V1Client) -> None:
    first, second = v1.good("POST", "/objects", {"contents": [text(b"1"), text(b"2")], "holder": "me"}, 201)["items"]
    v1.good("POST", "/objects", {"contents": [text(b"2")], "holder": "you"}, 201)
    assert v1.good("POST", "/objects/release", {"holder": "me", "digests": [first]}) == {"count": 1}
    assert v1.good("POST", "/objects/release", {"holder": "me"}) == {"count": 1}
    assert v1.good("POST", "/objects/release", {"holder": "me"}) == {"count": 0}
    assert v1.good("POST", "/objects/prune", {"grace_s": 0})["condemned"] == 1
    v1.good("POST", "/objects/prune", {"grace_s": 0})
    assert v1.good("POST", "/objects/present", {"digests": [first, second]})["items"] == [False, True]


def test_objects_of_snapshots_and_checkpoints_cannot_be_released_over_http(v1: V1Client, tmp_path: Path) -> None:
    _, snapshot = capture(v1, tree(tmp_path / "w"))
    v1.run(v1.tenant.objects.put([b"held"], holder="library"))
    held = v1.good("GET", "/objects/usage")["count"]
    assert held > 1
    for holder in ("library", "http/library", snapshot, f"snapshot/{snapshot}", f"layer/{snapshot}"):
        assert v1.good("POST", "/objects/release", {"holder": holder}) == {"count": 0}
    assert v1.good("POST", "/objects/prune", {"grace_s": 0})["condemned"] == 0


def test_objects_are_verified_in_parts(v1: V1Client) -> None:
    v1.good("POST", "/objects", {"contents": [text(bytes([n])) for n in range(5)], "holder": "me"}, 201)
    first = v1.good("GET", "/objects/verify?limit=3")
    assert (first["count"], first["damaged"]) == (3, [])
    rest = v1.good("GET", f"/objects/verify?limit=3&after={first['next']}")
    assert (rest["count"], rest["next"]) == (2, None)
    v1.bad("GET", "/objects/verify?after=xyz")
    assert v1.ask("GET", "/objects/verify", key=v1.key("read", "write")).status == 403


# Files and trees


def test_the_entries_of_a_snapshot_are_listed_in_pages(v1: V1Client, tmp_path: Path) -> None:
    _, snapshot = capture(v1, tree(tmp_path / "w"))
    whole = v1.good("GET", f"/snapshots/{snapshot}/tree")
    by_name = {item["path"]: item for item in whole["items"]}
    assert [item["path"] for item in whole["items"]] == sorted(by_name)
    assert (by_name["src"]["kind"], by_name["link"]["kind"], by_name["link"]["target"]) == (
        "dir",
        "symlink",
        "src/a.py",
    )
    assert (by_name["src/a.py"]["size"], by_name["empty"]["size"]) == (9, 0)
    assert (whole["next"], bool(whole["ignore"])) == (None, True)
    pages, cursor = [], ""
    while cursor is not None:
        page = v1.good("GET", f"/snapshots/{snapshot}/tree?limit=3{cursor}")
        pages.append(page["items"])
        cursor = None if page["next"] is None else f"&cursor={page['next']}"
    assert [row for page in pages for row in page] == whole["items"]
    assert {len(page) for page in pages[:-1]} <= {3}


def test_a_file_of_a_snapshot_is_returned_unchanged(v1: V1Client, tmp_path: Path) -> None:
    _, snapshot = capture(v1, tree(tmp_path / "w"))
    reply = v1.ask("GET", f"/snapshots/{snapshot}/file?path=src/a.py")
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, b"print(1)\n", OCTETS_TYPE)
    assert v1.ask("GET", f"/snapshots/{snapshot}/file?path=src/a.py").headers["etag"] == reply.headers["etag"]
    assert v1.ask("GET", f"/snapshots/{snapshot}/file?path=empty").body == b""
    for path in ("src", "nowhere", "../x", "/etc/hosts", "%00"):
        assert v1.ask("GET", f"/snapshots/{snapshot}/file?path={path}").status in (400, 404), path
    v1.another().bad("GET", f"/snapshots/{snapshot}/file?path=empty", status=404)
    v1.bad("GET", f"/snapshots/{NEVER}/tree", status=404)


def test_snapshots_are_found_deleted_and_collected(v1: V1Client, tmp_path: Path) -> None:
    run, snapshot = capture(v1, tree(tmp_path / "w"))
    assert v1.good("GET", f"/runs/{run}/snapshots/latest")["id"] == snapshot
    assert v1.good("GET", f"/snapshots/{snapshot}")["run_id"] == run
    v1.bad("GET", f"/runs/{run}/snapshots/latest?kind=imported", status=404)
    v1.bad("DELETE", f"/snapshots?snapshot_ids={snapshot}")
    v1.bad("DELETE", f"/snapshots?snapshot_ids={snapshot}&reason=")
    body = v1.good("DELETE", f"/snapshots?snapshot_ids={snapshot}&snapshot_ids={NEVER}&reason=test")
    assert [item["id"] for item in body["items"]] == [snapshot]
    v1.bad("GET", f"/snapshots/{snapshot}", status=404)
    assert v1.good("POST", "/snapshots/collect") == {"count": 0}
    assert v1.ask("POST", "/snapshots/collect", key=v1.key("read", "write")).status == 403


def test_names_that_are_not_utf8_are_listed_and_used_in_cursors(v1: V1Client, tmp_path: Path) -> None:
    root = tree(tmp_path / "w")
    Path(os.fsdecode(bytes(root / "x") + b"\xff")).write_bytes(b"odd")
    run, snapshot = capture(v1, root)
    reply = v1.ask("GET", f"/snapshots/{snapshot}/tree")
    paths = [item["path"] for item in json.loads(reply.body)["items"]]
    assert "x\udcff" in paths
    page = v1.good("GET", f"/snapshots/{snapshot}/tree?limit={len(paths) - 1}")
    last = json.loads(v1.ask("GET", f"/snapshots/{snapshot}/tree?cursor={page['next']}").body)
    assert ([item["path"] for item in last["items"]], last["next"]) == (["x\udcff"], None)
    v1.bad("GET", f"/snapshots/{snapshot}/tree?cursor={len(paths)}")
    body = v1.ask("GET", f"/snapshots/{snapshot}/archive").body
    again = send_archive(v1, run, body).json["snapshot"]["id"]
    assert v1.good("GET", f"/snapshots/diff?before={snapshot}&after={again}")["items"] == []


# Checkpoints


def test_a_checkpoint_is_written_and_read_as_base64(v1: V1Client) -> None:
    body = {"state": text(b"\0state"), "pieces": [text(b"one"), text(b"two")], "metadata": {"run_id": "r1"}}
    first = v1.good("PUT", "/threads/t/checkpoints/c1", body)
    assert len(first["places"]) == 2
    later = {"state": text(b"2"), "pieces": [first["places"][0]], "stamp": first["stamp"], "parent": "c1"}
    v1.good("PUT", "/threads/t/checkpoints/c2", {**later, "metadata": {"run_id": "r2"}, "only_after_head": True})
    answer = v1.good("GET", "/threads/t/checkpoints/latest")
    assert (answer["id"], answer["parent"], answer["state"], answer["pieces"]) == (
        "c2",
        "c1",
        text(b"2"),
        [text(b"one")],
    )
    late = v1.bad("PUT", "/threads/t/checkpoints/c3", {**later, "only_after_head": True}, 409)
    assert late["type"] == "Conflict"
    stale = v1.bad("PUT", "/threads/t/checkpoints/c4", {**later, "stamp": "of another time"}, 409)
    assert stale["type"] == "Stale"


def test_a_checkpoint_is_written_only_by_the_holder_of_the_run(v1: V1Client) -> None:
    run, epoch = v1.claimed_run()
    body = {"state": text(b"s"), "lease": [run, epoch]}
    v1.good("PUT", "/threads/t/checkpoints/c1", body)
    fenced = v1.bad("PUT", "/threads/t/checkpoints/c2", {**body, "lease": [run, epoch + 1]}, 409)
    assert fenced["type"] in ("Fenced", "Conflict")
    v1.bad("PUT", "/threads/t/checkpoints/c2", {**body, "lease": [run]})
    v1.bad("PUT", "/threads/t/checkpoints/c2", {**body, "lease": "mine"})
    assert len(v1.good("GET", "/checkpoints?thread_id=t")["items"]) == 1


@pytest.mark.parametrize(
    "body",
    [{}, {"state": "%"}, {"state": 7}, {"state": "AA==", "pieces": ["x!"]}, {"state": "AA==", "pieces": [99]}],
)
def test_an_invalid_checkpoint_is_not_stored(v1: V1Client, body: Any) -> None:
    assert v1.ask("PUT", "/threads/t/checkpoints/c", body).status in (400, 409)
    v1.bad("GET", "/threads/t/checkpoints/latest", status=404)


def test_writes_of_tasks_are_returned_with_the_checkpoint(v1: V1Client) -> None:
    v1.good("PUT", "/threads/t/checkpoints/c", {"state": text(b"s")})
    new = [{"index": 0, "channel": "out", "value": text(b"v"), "pieces": [text(b"p")]}]
    path = "/threads/t/checkpoints/c/writes"
    assert len(v1.good("POST", path, {"task_id": "a", "new": new}, 201)["places"]) == 1
    changed = [{"index": 0, "channel": "out", "value": text(b"other")}, {"index": -1, "channel": "err"}]
    v1.good("POST", path, {"task_id": "a", "new": changed}, 201)
    (task,) = v1.good("GET", "/threads/t/checkpoints/latest")["tasks"]
    assert (task["task_id"], len(task["writes"])) == ("a", 2)
    assert text(b"other") not in str(task), "a write at an index from 0 is never replaced"
    v1.bad("POST", path, {"task_id": "a", "new": [{"index": 0, "channel": "c", "colour": 1}]})


def test_threads_are_copied_verified_and_cleared_of_runs(v1: V1Client) -> None:
    for number, run in enumerate(["r1", "r1", "r2"]):
        body = {"state": text(b"s"), "metadata": {"run_id": run}, **({"parent": f"c{number - 1}"} if number else {})}
        v1.good("PUT", f"/threads/t/checkpoints/c{number}", body)
    assert v1.good("POST", "/checkpoints/copy", {"source": "t", "target": "u"}) == {"count": 3}
    v1.bad("POST", "/checkpoints/copy", {"source": "never", "target": "v"}, 404)
    v1.good("PUT", "/threads/w/checkpoints/c", {"state": text(b"s")})
    assert v1.bad("POST", "/checkpoints/copy", {"source": "t", "target": "w"}, 409)["type"] == "AlreadyExists"
    checked = v1.good("GET", "/checkpoints/verify")
    assert (checked["threads"], checked["checkpoints"], checked["damaged"]) == (3, 7, [])
    assert v1.good("GET", "/checkpoints/verify?limit=1")["next"] is not None
    assert v1.ask("GET", "/checkpoints/verify", key=v1.key("read", "write")).status == 403
    assert v1.good("POST", "/checkpoints/delete-runs", {"run_ids": ["r1"]})["count"] == 4
    assert v1.good("POST", "/checkpoints/delete-runs", {"run_ids": ["never"]}) == {"count": 0}
