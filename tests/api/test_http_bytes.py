"""Bytes over a real socket on both engines: chunked archives, objects, checkpoints, and clients that disconnect."""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from tests.api.process import ADMIN_KEY, Api, ServerProcess, json_of, problem_of
from tests.workspaces.hostile_archives import archive, folder, link, member

ZSTD = {"content-type": "application/zstd"}
NOISE = bytes(range(256)) * 4_000
TREE = archive(folder("src"), member("src/a.bin", NOISE), member("src/b.txt", b"b\n"), link("to", "src/b.txt"))


@pytest.fixture
def run(api: Api) -> str:
    """A run to store snapshots of."""
    body: str = json_of(api.http.post(f"{api.sessions}/{api.session()['id']}/runs", json={}), 201)["id"]
    return body


def chunks_of(body: bytes, size: int = 1_000) -> Iterator[bytes]:
    """Yield a body in chunks, without a length."""
    for start in range(0, len(body), size):
        yield body[start : start + size]


def taken(api: Api, run: str, body: bytes | Iterator[bytes]) -> str:
    answer = api.http.post(f"{api.tenant}/runs/{run}/snapshots", content=body, headers=ZSTD)
    answer: str = json_of(answer, 201)["snapshot"]["id"]
    return answer


def test_an_archive_can_be_uploaded_whole_or_in_chunks_and_downloaded(api: Api, run: str) -> None:
    whole, in_pieces = taken(api, run, TREE), taken(api, run, chunks_of(TREE))
    bodies = []
    for snapshot in (whole, in_pieces):
        with api.http.stream("GET", f"{api.tenant}/snapshots/{snapshot}/archive") as answer:
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zstd")
            bodies.append(b"".join(answer.iter_raw()))
            assert len(bodies[-1]) == int(answer.headers["content-length"])
    assert bodies[0] == bodies[1]
    again = taken(api, run, bodies[0])
    difference = api.http.get(f"{api.tenant}/snapshots/diff", params={"before": whole, "after": again})
    assert json_of(difference)["items"] == []
    tree = json_of(api.http.get(f"{api.tenant}/snapshots/{again}/tree"))["items"]
    assert [item["path"] for item in tree] == ["src", "src/a.bin", "src/b.txt", "to"]


def test_a_file_is_returned_byte_for_byte(api: Api, run: str) -> None:
    snapshot = taken(api, run, TREE)
    result = api.http.get(f"{api.tenant}/snapshots/{snapshot}/file", params={"path": "src/a.bin"})
    assert (result.content, result.headers["content-type"]) == (NOISE, "application/octet-stream")
    missing = api.http.get(f"{api.tenant}/snapshots/{snapshot}/file", params={"path": "src/c"})
    problem_of(missing, 404, "NotFound")


def test_a_malicious_archive_stores_no_snapshot(api: Api, run: str) -> None:
    for body in (archive(member("../out", b"x")), archive(link("l", "/etc")), TREE[:-20], b"PK\x03\x04"):
        answer = api.http.post(f"{api.tenant}/runs/{run}/snapshots", content=body, headers=ZSTD)
        problem_of(answer, 400, "InvalidInput")
    assert json_of(api.http.get(f"{api.tenant}/snapshots"))["items"] == []
    allowed = api.http.post(
        f"{api.tenant}/runs/{run}/snapshots?outside_links=true", content=archive(link("l", "/etc")), headers=ZSTD
    )
    assert json_of(allowed, 201)["changed"] == 1


def test_an_interrupted_upload_leaves_nothing(server: ServerProcess, api: Api, run: str) -> None:
    url = httpx.URL(server.url)
    head = (
        f"POST {api.tenant}/runs/{run}/snapshots HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {ADMIN_KEY}\r\n"
        f"Content-Type: application/zstd\r\nContent-Length: {len(TREE)}\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port or 80), timeout=60) as connection:
        connection.sendall(head.encode() + TREE[:100])
    assert json_of(api.http.get(f"{api.tenant}/snapshots"))["items"] == []
    assert taken(api, run, TREE)


def test_interrupted_downloads_do_not_disturb_the_server(server: ServerProcess, api: Api, run: str) -> None:
    snapshot = taken(api, run, TREE)
    for _ in range(10):  # more than may be in progress at once
        with api.http.stream("GET", f"{api.tenant}/snapshots/{snapshot}/archive") as answer:
            assert answer.status_code == 200
            next(answer.iter_raw(100))
    assert api.http.get(f"{api.tenant}/snapshots/{snapshot}/archive").status_code == 200


def test_objects_can_be_stored_and_read(api: Api) -> None:
    contents = [NOISE, b"", b"small"]
    body = {"contents": [b64encode(content).decode() for content in contents], "holder": "me"}
    digests = json_of(api.http.post(f"{api.tenant}/objects", json=body), 201)["items"]
    for digest, content in zip(digests, contents, strict=True):
        result = api.http.get(f"{api.tenant}/objects/{digest}")
        assert (result.content, result.headers["etag"]) == (content, f'"{digest}"')
    assert json_of(api.http.get(f"{api.tenant}/objects/verify"))["damaged"] == []


def test_checkpoints_written_over_http_can_be_read(api: Api) -> None:
    at = f"{api.tenant}/threads/t%2F1/checkpoints"
    state, piece = b64encode(b"\0\xff").decode(), b64encode(NOISE).decode()
    first = json_of(api.http.put(f"{at}/c1", json={"state": state, "pieces": [piece]}))
    body = {"state": state, "pieces": first["places"], "stamp": first["stamp"], "parent": "c1"}
    json_of(api.http.put(f"{at}/c2", json=body))
    write = {"task_id": "k", "new": [{"index": 0, "channel": "c", "value": state}]}
    json_of(api.http.post(f"{at}/c2/writes", json=write), 201)
    answer = json_of(api.http.get(f"{at}/latest"))
    assert (answer["id"], answer["state"], answer["pieces"]) == ("c2", state, [piece])
    assert answer["tasks"][0]["task_id"] == "k"
    assert json_of(api.http.post(f"{api.tenant}/checkpoints/copy", json={"source": "t/1", "target": "u"}))["count"] == 2


def test_a_worker_claims_and_executes_runs_of_any_tenant_over_http(api: Api) -> None:
    agent = f"agent-{uuid4()}"
    session = api.session(agent=agent)
    run = json_of(api.http.post(f"{api.sessions}/{session['id']}/runs", json={"agent": agent}), 201)
    claimed = json_of(api.http.post("/v1/runs/claim", json={"holder": "w", "agents": [agent]}))
    assert (claimed["tenant"], claimed["run"]["id"]) == (api.name, run["id"])
    epoch = claimed["run"]["epoch"]
    at = f"/v1/tenants/{claimed['tenant']}/runs/{run['id']}"
    json_of(api.http.post(f"{at}/steps", json={"epoch": epoch, "iteration": 1, "state": {}}), 201)
    json_of(api.http.post(f"{at}/finish", json={"epoch": epoch, "stop_reason": "done"}))
    none = api.http.post("/v1/runs/claim", json={"holder": "w", "agents": [agent]})
    problem_of(none, 404, "NotFound")


def test_a_tenant_is_erased_over_http(api: Api, run: str) -> None:
    taken(api, run, TREE)
    json_of(api.http.post(f"{api.tenant}/erasures", json={}), 201)
    assert json_of(api.http.post(f"{api.tenant}/erasures/carry-out"))["is_finished"] is True
    problem_of(api.http.get(f"{api.tenant}/runs/{run}"), 404, "NotFound")
    assert json_of(api.http.get(f"{api.tenant}/objects/usage"))["count"] == 0
    assert json_of(api.http.get(f"{api.tenant}/diagnostics"))["missing_packs"] == []
