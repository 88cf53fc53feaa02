"""The stores over HTTP: objects of every kind are created, found, changed and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from holdfast.api.limits import ServerLimits
from tests.api.in_process import CALM, Reply, Running, running
from tests.api.process import ADMIN_KEY

T = "/v1/tenants/acme"


class Client:
    """Sends requests and expects the usual status."""

    def __init__(self, server: Running) -> None:
        self.server, self.holdfast = server, server.holdfast

    async def get(self, path: str, status: int = 200, **how: Any) -> Any:
        return _read(await self.server.ask("GET", T + path, **how), status)

    async def post(self, path: str, body: Any = None, status: int = 200, **how: Any) -> Any:
        return _read(await self.server.ask("POST", T + path, body, **how), status)

    async def put(self, path: str, body: Any, status: int = 200, **how: Any) -> Any:
        return _read(await self.server.ask("PUT", T + path, body, **how), status)

    async def patch(self, path: str, body: Any, status: int = 200, **how: Any) -> Any:
        return _read(await self.server.ask("PATCH", T + path, body, **how), status)

    async def delete(self, path: str, status: int = 200, **how: Any) -> Any:
        return _read(await self.server.ask("DELETE", T + path, **how), status)

    async def session(self, *texts: str) -> str:
        made = await self.post("/sessions", {}, 201)
        if texts:
            body = {"messages": [{"role": "user", "content": text} for text in texts]}
            await self.post(f"/sessions/{made['id']}/messages", body, 201)
        return str(made["id"])


def _read(reply: Reply, status: int) -> Any:
    assert reply.status == status, f"{reply.status}: {reply.body!r}"
    return reply.json if reply.body else None


def run_client(play: Callable[[Client], Coroutine[Any, Any, None]], limits: ServerLimits = CALM) -> None:
    async def main() -> None:
        async with running(limits=limits) as server:
            await play(Client(server))

    asyncio.run(main())


def test_agents_are_changed_only_with_their_current_version() -> None:
    async def play(client: Client) -> None:
        made = await client.post("/agents", {"display_name": "Helper", "id": "helper", "tags": ["all"]}, 201)
        again = await client.post(
            "/agents", {"display_name": "Helper", "tags": ["all"]}, 201, headers={"Idempotency-Key": "helper"}
        )
        assert again == made
        first = await client.server.ask("GET", T + "/agents/helper")
        assert first.headers["etag"] == '"1"'
        changed = await client.patch("/agents/helper", {"model": "large"}, headers={"If-Match": '"1"'})
        assert (changed["model"], changed["version"]) == ("large", 2)
        late = await client.patch("/agents/helper", {"model": "small"}, 412, headers={"If-Match": '"1"'})
        assert late["type"] == "Conflict"
        await client.patch("/agents/helper", {"model": "small"}, 400, headers={"If-Match": "yesterday"})
        await client.patch("/agents/helper", {"model": "small"}, headers={"If-Match": "*"})
        assert [agent["id"] for agent in (await client.get("/agents?tag=all"))["items"]] == ["helper"]
        await client.put("/agents/helper", {"display_name": "Renamed"})
        await client.delete("/agents/helper", 412, headers={"If-Match": '"1"'})
        await client.delete("/agents/helper", 204)
        await client.get("/agents/helper", 404)

    run_client(play)


def test_blocks_belong_to_an_agent() -> None:
    async def play(client: Client) -> None:
        await client.post("/agents", {"display_name": "Helper", "id": "helper"}, 201)
        block = await client.put("/agents/helper/blocks/persona", {"value": "kind"})
        assert (block["value"], block["version"]) == ("kind", 1)
        longer = await client.post("/agents/helper/blocks/persona/append", {"value": "patient"})
        assert longer["value"] == "kind\npatient"
        saved = await client.put("/agents/helper/blocks", {"blocks": [{"label": "human", "value": "Ada"}]})
        assert [item["label"] for item in saved["items"]] == ["human"]
        await client.put("/agents/helper/blocks", {"blocks": [{"label": "human", "colour": "red"}]}, 400)
        assert (await client.get("/agents/helper/blocks/human"))["value"] == "Ada"
        await client.delete("/agents/helper/blocks/human", 204)
        await client.put("/agents/missing/blocks/persona", {"value": "x"}, 404)

    run_client(play)


def test_a_run_is_executed_by_one_worker_from_start_to_end() -> None:
    async def play(client: Client) -> None:
        session = await client.session()
        run = await client.post(f"/sessions/{session}/runs", {"agent": "helper"}, 201)
        at = f"/runs/{run['id']}"
        claimed = await client.post("/runs/claim", {"holder": "w1", "agents": ["helper"]})
        assert claimed["id"] == run["id"]
        await client.post("/runs/claim", {"holder": "w2"}, 404)
        epoch = claimed["epoch"]
        await client.post(at + "/renew", {"epoch": epoch, "ttl_ms": 60_000})
        calls = {"epoch": epoch, "calls": [{"id": "c1", "tool_name": "mail", "tool_input": {"to": "ada"}}]}
        await client.post(at + "/tool-calls", calls, 201)
        assert [call["call"]["id"] for call in (await client.get(at + "/tool-calls/pending"))["items"]] == ["c1"]
        step = {
            "epoch": epoch,
            "iteration": 1,
            "state": {"n": 1},
            "messages": [{"role": "assistant", "content": "sent"}],
            "tool_calls": [{"id": "c1", "result": "ok"}],
        }
        reply = await client.post(at + "/steps", step, 201)
        assert await client.post(at + "/steps", step, 201) == reply, "a step can be repeated"
        refused = await client.post(at + "/steps", {**step, "epoch": epoch + 1, "iteration": 2}, 409)
        assert refused["type"] in ("Fenced", "Conflict")
        assert (await client.get(at + "/load"))["step"]["state"] == {"n": 1}
        assert (await client.get(at + "/steps/1"))["iteration"] == 1
        assert (await client.get(at + "/tool-calls/c1"))["status"] == "finished"
        await client.post(at + "/pause", {"epoch": epoch})
        await client.post(at + "/resume")
        again = await client.post(at + "/claim", {"holder": "w2"})
        await client.post(at + "/finish", {"epoch": epoch, "stop_reason": "end"}, 409)
        ended = await client.post(at + "/finish", {"epoch": again["epoch"], "stop_reason": "end"})
        assert ended["status"] == "completed"
        assert [run["id"] for run in (await client.get("/runs?status=completed"))["items"]] == [run["id"]]

    run_client(play)


def test_runs_can_be_released_failed_and_cancelled() -> None:
    async def play(client: Client) -> None:
        session = await client.session()
        ends = []
        for ending in ("release", "fail", "cancel"):
            run = await client.post(f"/sessions/{session}/runs", {"id": str(uuid4())}, 201)
            claimed = await client.post(f"/runs/{run['id']}/claim", {"holder": "w"})
            body = {"release": {"epoch": claimed["epoch"]}, "fail": {"epoch": claimed["epoch"], "error": "no"}}
            ends.append(
                (await client.post(f"/runs/{run['id']}/{ending}", body.get(ending, {"reason": "enough"})))["status"]
            )
        assert ends == ["pending", "failed", "cancelled"]

    run_client(play)


def test_a_conversation_is_forked_rewound_and_restored() -> None:
    async def play(client: Client) -> None:
        session = await client.session("one", "two", "three")
        at = f"/sessions/{session}"
        assert (await client.get(at + "/branches/current"))["count"] == 0
        fork = await client.post(at + "/branches", {"at": 2, "label": "other"}, 201)
        await client.post(at + f"/branches/{fork['number']}/switch")
        assert (await client.get(at + "/messages/count"))["count"] == 2
        await client.post(at + "/branches/0/switch")
        await client.post(at + "/rewind", {"to": 1})
        assert (await client.get(at + "/messages/count"))["count"] == 1
        await client.post(at + "/redo")
        assert (await client.get(at + "/messages/count"))["count"] == 3
        assert len((await client.get(at + "/branches"))["items"]) >= 2
        assert (await client.get(at + "/context?max_tokens=10000"))["messages"]

    run_client(play)


POLICY = {"target_tokens": 1, "preserve_last": 1, "protected_tokens": 0, "window_tokens": 1000, "summary_tokens": 50}


def test_a_compaction_takes_two_calls_and_the_callers_summary() -> None:
    async def play(client: Client) -> None:
        session = await client.session(*[f"a long story, part {number} " * 20 for number in range(8)])
        at = f"/sessions/{session}"
        plan = await client.post(at + "/compactions/plan", {"policy": POLICY})
        assert plan["needs_summary"]
        assert plan["to_summarize"]
        assert (await client.get(at + "/messages/count"))["count"] == 8, "a plan changes nothing"
        event = await client.post(at + "/compactions", {"plan": plan, "summary": "A long story."}, 201)
        assert (await client.get(at + "/messages/count"))["count"] < 8
        assert (await client.get(f"/compactions/{event['id']}"))["id"] == event["id"]
        archived = await client.get(f"/archive?session_id={session}")
        assert len(archived["items"]) == event["messages_removed"]
        assert (await client.get(at + "/archive?text=story"))["items"]
        stale = await client.post(at + "/compactions", {"plan": plan, "summary": "Again."}, 409)
        assert stale["type"] in ("Conflict", "Stale")
        await client.post(f"/compactions/{event['id']}/rollback")
        assert (await client.get(at + "/messages/count"))["count"] == 8

    run_client(play)


def test_a_compaction_without_a_required_summary_is_refused() -> None:
    async def play(client: Client) -> None:
        session = await client.session(*["words " * 50] * 6)
        refused = await client.post(f"/sessions/{session}/compactions", {"policy": POLICY}, 400)
        assert refused["field"] == "summary"
        await client.put(f"/sessions/{session}/compaction-policy", {"policy": POLICY}, 204)
        assert (await client.get(f"/sessions/{session}/compaction-policy"))["preserve_last"] == 1
        await client.delete(f"/sessions/{session}/compaction-policy", 204)
        await client.get(f"/sessions/{session}/compaction-policy", 404)

    run_client(play)


def test_pending_messages_are_appended_counted_and_removed() -> None:
    async def play(client: Client) -> None:
        one = {"channel_name": "tg", "history_key": "g1", "sender": "ada", "body": "hello"}
        await client.post("/pending-messages", {"messages": [one, {**one, "body": "there"}]}, 201)
        key = "?channel_name=tg&history_key=g1"
        assert len((await client.get("/pending-messages" + key))["items"]) == 2
        assert (await client.get("/pending-messages/count" + key))["count"] == 2
        assert len((await client.get("/pending-messages/groups"))["items"]) == 1
        assert (await client.delete("/pending-messages" + key))["count"] == 2

    run_client(play)


def test_contacts_are_found_by_sender() -> None:
    async def play(client: Client) -> None:
        ada = await client.put("/contacts/by-sender/telegram/7", {"display_name": "Ada"})
        also = await client.put("/contacts/by-sender/discord/8", {"display_name": "Ada L."})
        assert (await client.get("/contacts/by-sender/telegram/7"))["id"] == ada["id"]
        await client.get("/contacts/by-sender/telegram/9", 404)
        merged = await client.post("/contacts/merge", {"contact_ids": [ada["id"], also["id"]]})
        assert merged["id"]
        assert (await client.get("/contacts/count?search=ada"))["count"] == 2
        assert set(await client.post("/contacts/lookup", {"sender_ids": ["7", "8"]})) == {"7", "8"}
        assert (await client.post("/contacts/unmerge", {"contact_ids": [ada["id"], also["id"]]}))["count"] == 2

    run_client(play)


def test_feedback_belongs_to_a_message() -> None:
    async def play(client: Client) -> None:
        session = await client.session("hello")
        (message,) = (await client.get(f"/sessions/{session}/messages"))["items"]
        reply = await client.post(f"/messages/{message['id']}/feedback", {"is_positive": True}, 201)
        await client.patch(f"/feedback/{reply['id']}", {"feedback_text": "nice"})
        mine = {"is_positive": False, "user": "ada"}
        assert (await client.put(f"/messages/{message['id']}/feedback", mine))["is_positive"] is False
        assert (await client.get("/feedback/count"))["count"] == 2
        where = '[{"column":"is_positive","op":"eq","value":true}]'.replace('"', "%22")
        assert [feedback["id"] for feedback in (await client.get(f"/feedback?where={where}"))["items"]] == [reply["id"]]
        await client.delete(f"/feedback/{reply['id']}", 204)
        await client.get(f"/feedback/{reply['id']}", 404)

    run_client(play)


def test_messages_are_found_by_their_words() -> None:
    async def play(client: Client) -> None:
        session = await client.session("the red fox", "the blue whale")
        (hit,) = (await client.get("/search?query=fox"))["items"]
        assert (hit["message"]["session_id"], "**fox**" in hit["snippet"]) == (session, True)

    run_client(play)


def test_flows_and_memories_of_crews_are_stored() -> None:
    async def play(client: Client) -> None:
        await client.put("/flows/f1", {"method": "begin", "state": {"n": 1}})
        await client.put("/flows/f1", {"method": "ask", "state": {"n": 2}, "feedback": {"question": "ok?"}})
        assert (await client.get("/flows/f1"))["state"] == {"n": 2}
        assert (await client.get("/flows/f1/pending"))["context"] == {"question": "ok?"}
        assert (await client.delete("/flows/f1/pending"))["done"] is True
        assert len((await client.get("/flows/f1/history"))["items"]) == 2
        assert (await client.delete("/flows/f1"))["done"] is True
        await client.get("/flows/f1", 404)
        new = {"id": "m1", "content": "Ada likes tea", "embedding": [1.0, 0.0]}
        assert (await client.post("/memories", {"memories": [new]}, 201))["items"] == ["m1"]
        (result,) = (await client.post("/memories/search", {"embedding": [1.0, 0.1]}))["items"]
        assert result["memory"]["content"] == "Ada likes tea"
        assert (await client.delete("/memories?ids=m1"))["count"] == 1

    run_client(play)


def test_graph_checkpoints_can_be_read_and_pruned() -> None:
    async def play(client: Client) -> None:
        acme = client.holdfast.tenant("acme")
        for number in range(3):
            await acme.checkpoints.put("t1", id=f"c{number}", state=b"\x00\xff")
        assert len((await client.get("/threads/t1/checkpoints"))["items"]) >= 1
        assert (await client.get("/threads/t1/checkpoints/latest"))["id"] == "c2"
        assert len((await client.get("/checkpoints?thread_id=t1&limit=2"))["items"]) == 2
        assert (await client.post("/checkpoints/prune", {"thread_ids": ["t1"], "keep": 1}))["count"] == 2
        assert (await client.delete("/threads/t1"))["count"] >= 1
        await client.get("/threads/t1/checkpoints/latest", 404)
        assert (await client.get("/objects/usage"))["count"] >= 0

    run_client(play)


def test_activity_and_retention_policies() -> None:
    async def play(client: Client) -> None:
        entry = await client.post("/activity", {"action": "report.sent", "actor": "ada"}, 201)
        assert (await client.get(f"/activity/{entry['id']}"))["actor"] == "ada"
        assert (await client.get("/activity/count?action=report.sent"))["count"] == 1
        await client.put("/retention/policy", {"per_run": 3})
        assert (await client.get("/retention/policy"))["per_run"] == 3
        hold = await client.post(
            "/retention/holds", {"reason": "a lawyer asked", "session_id": await client.session()}, 201
        )
        assert [hold["id"] for hold in (await client.get("/retention/holds"))["items"]] == [hold["id"]]
        await client.post(f"/retention/holds/{hold['id']}/release", {"reason": "over"})
        await client.get("/retention/plan")
        await client.post("/retention/sweep")

    run_client(play)


def test_keys_are_created_shown_once_and_revoked() -> None:
    async def play(client: Client) -> None:
        made = await client.post("/keys", {"name": "ci", "scopes": ["sessions:read"]}, 201)
        assert made["kept"]["tenant"] == "acme"
        assert made["kept"]["prefix"] == made["key"][:11]
        await client.get("/sessions", key=made["key"])
        await client.post("/sessions", {}, 403, key=made["key"])
        listed = await client.server.ask("GET", T + "/keys")
        assert made["key"].encode()[11:] not in listed.body
        await client.post(f"/keys/{made['kept']['id']}/revoke")
        (kept,) = (await client.get("/keys"))["items"]
        assert kept["revoked_at"]
        other = await client.server.ask("POST", f"/v1/tenants/zenith/keys/{kept['id']}/revoke")
        assert other.status == 404
        everybody = await client.server.ask("GET", "/v1/keys")
        assert {item["tenant"] for item in everybody.json["items"]} == {"", "acme"}

    run_client(play)


def test_metrics_count_requests_without_naming_tenants() -> None:
    async def play(client: Client) -> None:
        await client.session("secret words")
        await client.get(f"/sessions/{uuid4()}", 404)
        reply = await client.server.ask("GET", "/metrics")
        text = reply.body.decode()
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'holdfast_requests_total{operation="create_session",status="201"} 1' in text
        assert 'holdfast_requests_total{operation="get_session",status="404"} 1' in text
        assert 'holdfast_request_seconds_bucket{operation="create_session",le="+Inf"} 1' in text
        assert "holdfast_ready 1" in text
        assert "acme" not in text
        assert ADMIN_KEY[:11] not in text

    run_client(play)


def test_a_page_ends_before_the_limit_and_a_larger_response_is_refused() -> None:
    async def play(client: Client) -> None:
        session = await client.session("x" * 600, "y" * 600)
        first = await client.get(f"/sessions/{session}/messages")
        rest = await client.get(f"/sessions/{session}/messages?cursor={first['next']}")
        assert [item["seq"] for item in first["items"] + rest["items"]] == [1, 2]
        assert rest["next"] is None
        refused = await client.get(f"/sessions/{session}/messages/last", 422)
        assert (refused["type"], refused["limit"]) == ("LimitExceeded", "response_bytes")

    run_client(play, ServerLimits(response_bytes=1_000))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_operation_that_takes_too_long_is_cancelled(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: Any, **kwargs: Any) -> None:
        await asyncio.Event().wait()

    async def play(client: Client) -> None:
        for name in ("list", "create"):
            monkeypatch.setattr(f"holdfast.types.AsyncSessions.{name}", never)
        reply = await client.server.ask(method, T + "/sessions", {} if method == "POST" else None)
        assert reply.status == 503
        assert reply.json["type"] == ("Unavailable" if method == "GET" else "OutcomeUnknown")
        assert method == "GET" or reply.json["id"], "the id to retry with"

    run_client(play, ServerLimits(answer_s=0.05))


def test_a_run_is_rewound_only_by_its_own_tenant() -> None:
    async def play(client: Client) -> None:
        session = await client.session()
        run = await client.post(f"/sessions/{session}/runs", {}, 201)
        claimed = await client.post(f"/runs/{run['id']}/claim", {"holder": "w"})
        for number in (1, 2, 3):
            step = {
                "epoch": claimed["epoch"],
                "iteration": number,
                "state": {"n": number},
                "messages": [{"role": "assistant", "content": f"step {number}"}],
            }
            await client.post(f"/runs/{run['id']}/steps", step, 201)
        await client.post(f"/runs/{run['id']}/release", {"epoch": claimed["epoch"]})
        keys = {
            tenant: (await client.server.ask("POST", f"/v1/tenants/{tenant}/keys", {"name": "k"})).json["key"]
            for tenant in ("acme", "zenith")
        }
        path, body = f"/v1/agent/runs/{run['id']}/rewind", {"to_step": 1, "keep_checkpoints_for": 91}
        assert (await client.server.ask("POST", path, body, key=keys["zenith"])).status == 404
        assert (await client.server.ask("POST", path, {**body, "path": "/etc"}, key=keys["acme"])).status == 400
        result = await client.server.ask("POST", path, body, key=keys["acme"])
        assert result.status == 200, result.body
        assert (await client.get(f"/runs/{run['id']}/load"))["step"]["state"] == {"n": 1}
        assert (await client.get(f"/sessions/{session}/messages/count"))["count"] == 1
        assert len((await client.get(f"/runs/{run['id']}/rewinds"))["items"]) == 1
        await client.post(f"/runs/{run['id']}/redo")
        assert (await client.get(f"/runs/{run['id']}/load"))["step"]["state"] == {"n": 3}
        assert (await client.get("/snapshots"))["items"] == []

    run_client(play)
