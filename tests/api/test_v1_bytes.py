"""Bytes over HTTP: objects, files of snapshots, checkpoints."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.responses import OCTETS_TYPE
from tests.api.v1 import NEVER, Here, captured, sent, tree


def text(content: bytes) -> str:
    return b64encode(content).decode()


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


def test_names_that_are_not_utf8_are_in_the_tree_and_in_cursors(here: Here, tmp_path: Path) -> None:
    root = tree(tmp_path / "w")
    Path(os.fsdecode(bytes(root / "x") + b"\xff")).write_bytes(b"odd")
    run, snapshot = captured(here, root)
    reply = here.ask("GET", f"/snapshots/{snapshot}/tree")
    paths = [each["path"] for each in json.loads(reply.body)["items"]]
    assert "x\udcff" in paths
    page = here.good("GET", f"/snapshots/{snapshot}/tree?limit={len(paths) - 1}")
    last = json.loads(here.ask("GET", f"/snapshots/{snapshot}/tree?cursor={page['next']}").body)
    assert ([each["path"] for each in last["items"]], last["next"]) == (["x\udcff"], None)
    here.bad("GET", f"/snapshots/{snapshot}/tree?cursor={len(paths)}")
    body = here.ask("GET", f"/snapshots/{snapshot}/archive").body
    again = sent(here, run, body).json["snapshot"]["id"]
    assert here.good("GET", f"/snapshots/diff?before={snapshot}&after={again}")["items"] == []


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
