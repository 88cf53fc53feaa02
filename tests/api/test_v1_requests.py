"""What every operation of /v1 does alike, asked of every one of them: bodies, parameters, conditions, pages, methods, walls."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from holdfast.api.operations import Operation
from holdfast.api.parameters import may_be_empty, parameters
from holdfast.api.resources import OPERATIONS
from tests.api.v1 import NOW, Here, problem

_IN_PATH = re.compile(r"{(\w+)}")


V1 = [each for each in OPERATIONS if each.path.startswith("/v1")]
NAMED = {each.function.__name__: each for each in V1}
QUERIES = {
    "get_context": "max_tokens=9",
    "search_messages": "query=x",
    "search_archive": "text=x",
    "list_pending_messages": "channel_name=c&history_key=h",
    "delete_pending_messages": "channel_name=c&history_key=h",
    "count_pending_messages": "channel_name=c&history_key=h",
    "delete_messages": f"id={uuid4()}",
    "list_archived_messages": f"session_id={uuid4()}",
    "diff_snapshots": f"before={uuid4()}&after={uuid4()}",
    "delete_snapshots": f"snapshot_ids={uuid4()}&reason=r",
    "read_file": "path=a",
    "list_used_shares": "user=u",
    "delete_stale_pending_messages": "older_than_s=60",
    "list_agent_memories": "agent=a",
    "delete_agent_memories": "agent=a",
}
"""What must stand in the query."""
BODIES: dict[str, dict[str, Any]] = {
    "create_tenant": {"id": "t"},
    "update_tenant": {"metadata": {}},
    "create_key": {"name": "k"},
    "create_server_key": {"name": "k"},
    "append_messages": {"role": "user", "content": "x"},
    "rewind_own_run": {"to_step": 0},
    "rewind_run": {"to_step": 0},
    "rewind_session": {"to": 0},
    "append_pending_messages": {"messages": [{"channel_name": "c", "history_key": "h", "sender": "s", "body": "b"}]},
    "compact_pending_messages": {"message_ids": [str(uuid4())], "summary": "s"},
    "look_up_contacts": {"sender_ids": ["s"]},
    "record_compaction": {"strategy": "mine"},
    "archive_messages": {"message_ids": [str(uuid4())]},
    "restore_messages": {"ids": [str(uuid4())]},
    "merge_contacts": {"contact_ids": [str(uuid4()), str(uuid4())]},
    "unmerge_contacts": {"contact_ids": [str(uuid4())]},
    "create_feedback": {"is_positive": True},
    "upsert_feedback": {"is_positive": True, "user": "u"},
    "create_agent": {"name": "a"},
    "upsert_agent": {"name": "a"},
    "save_blocks": {"blocks": [{"label": "l", "value": "v"}]},
    "set_block": {"value": "v"},
    "extend_block": {"value": "v"},
    "claim_next_run": {"holder": "w"},
    "claim_run": {"holder": "w"},
    "renew_run": {"epoch": 1},
    "release_run": {"epoch": 1},
    "append_step": {"epoch": 1, "iteration": 1, "state": {}},
    "pause_run": {"epoch": 1},
    "finish_run": {"epoch": 1, "stop_reason": "done"},
    "fail_run": {"epoch": 1, "error": "e"},
    "append_tool_calls": {"epoch": 1, "calls": [{"id": "c", "tool_name": "t", "tool_input": {}}]},
    "snooze_tool_call": {"epoch": 1, "until": NOW},
    "prune_checkpoints": {"thread_ids": ["t"]},
    "save_flow": {"method": "m", "state": {}},
    "append_memories": {"memories": [{"content": "c", "embedding": [1.0]}]},
    "search_memories": {"embedding": [1.0]},
    "record_activity": {"action": "a.b"},
    "create_hold": {"reason": "r", "session_id": str(uuid4())},
    "find_share": {"token": "t"},
    "use_share": {"token": "t", "user": "u"},
    "look_up_group_titles": {"groups": [{"channel_name": "c", "history_key": "h"}]},
    "create_general_feedback": {"feedback_text": "x", "is_positive": True},
    "upsert_general_feedback": {"feedback_text": "x", "is_positive": True},
    "create_channel_instance": {"name": "n", "channel_type": "t", "agent": "a"},
    "upsert_channel_instance": {"name": "n", "channel_type": "t", "agent": "a"},
    "create_tool_server": {"name": "s"},
    "claim_run_of_any_tenant": {"holder": "w"},
    "put_checkpoint": {"state": "AAE="},
    "append_checkpoint_writes": {"task_id": "t", "new": [{"index": 0, "channel": "c", "value": "AAE="}]},
    "copy_thread": {"source": "a", "target": "b"},
    "delete_checkpoints": {"run_ids": ["r"]},
    "put_objects": {"contents": ["AAE="], "holder": "h"},
    "release_objects": {"holder": "h"},
    "look_for_objects": {"digests": ["00" * 32]},
    "touch_memories": {"ids": ["m"]},
    "append_agent_memories": {"agent": "a", "memories": [{"content": "c", "embedding": [1.0]}]},
    "search_agent_memories": {"agent": "a", "embedding": [1.0]},
    "save_a2a_task": {"task": {"id": "t"}},
    "save_push_config": {"config": {"url": "https://example.com/hook"}},
    "keep_snapshots_for": {"seconds": 60},
    "set_tenant_quota": {"checkpoint_quota_mib": 1},
}
"""The least that a body must have."""


def place(each: Operation, tenant: str = "acme", **parts: str) -> str:
    """Where an operation is found, with what its query must have; what is not named was never there."""
    usual = {"tenant": tenant, "number": "7", "iteration": "7"}
    path = _IN_PATH.sub(lambda part: {**usual, **parts}.get(part[1]) or str(uuid4()), each.path)
    query = QUERIES.get(each.function.__name__)
    return f"{path}?{query}" if query else path


def least(each: Operation) -> dict[str, Any] | None:
    """The least body that an operation takes."""
    return BODIES.get(each.function.__name__, {}) if each.has_body and not each.takes_upload else None


def also(each: Operation, query: str) -> str:
    """Where an operation is found, with more in the query."""
    at = place(each)
    return f"{at}{'&' if '?' in at else '?'}{query}"


WITH_BODY = [each for each in V1 if each.has_body and not each.takes_upload]
CHANGING = [each for each in V1 if each.method != "GET"]
COMPARING = [each for each in CHANGING if any(one.wire_name == "If-Match" for one in parameters(each))]
PAGED = [each for each in V1 if "cursor" in {one.name for one in parameters(each)}]


def test_the_tables_above_name_nothing_that_is_gone() -> None:
    assert {*QUERIES, *BODIES} <= set(NAMED)
    needs = {each.function.__name__ for each in WITH_BODY if not may_be_empty(each)}
    assert needs <= set(BODIES)


@pytest.mark.parametrize("wrong", [[], "x", 7, None, True], ids=repr)
def test_a_body_is_an_object(here: Here, wrong: Any) -> None:
    for each in WITH_BODY:
        refused = here.bad(each.method, place(each), msgspec.json.encode(wrong))
        assert refused["type"] == "InvalidInput"
        assert "the body is invalid" in refused["detail"]


def test_a_field_that_nobody_knows_is_refused_by_name(here: Here) -> None:
    for each in WITH_BODY:
        refused = here.bad(each.method, place(each), {**(least(each) or {}), "colour": 1})
        assert "colour" in refused["detail"]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
def test_a_body_says_that_it_is_json(here: Here, kind: str) -> None:
    for each in WITH_BODY:
        refused = here.bad(each.method, place(each), least(each), 415, headers={"content-type": kind})
        assert (refused["type"], refused["title"]) == ("about:blank", "Unsupported Media Type")


@pytest.mark.parametrize("kind", ["Application/JSON", "application/json;charset=utf-8", " application/json ; x=y"])
def test_what_else_the_type_of_a_body_says_does_not_matter(here: Here, kind: str) -> None:
    here.good("POST", "/sessions", {}, 201, headers={"content-type": kind})


def test_a_body_ends_where_its_json_ends_and_no_sooner(here: Here) -> None:
    for each in WITH_BODY:
        whole = msgspec.json.encode(least(each))
        for broken in (whole[:-1], whole + b"}", whole + b"\0", b"\xef\xbb\xbf" + whole, b"\xff"):
            assert "not JSON" in here.bad(each.method, place(each), broken)["detail"], broken


def test_nothing_for_a_body_is_enough_only_where_nothing_must_be_in_it(here: Here) -> None:
    for each in WITH_BODY:
        reply = here.ask(each.method, place(each, here.name))
        assert (reply.status == 415) == (not may_be_empty(each)), f"{each.path}: {reply.body!r}"
        announced = here.bad(each.method, place(each, here.name), b"")
        assert "not JSON" in announced["detail"]


def test_a_parameter_that_nobody_knows_is_refused_and_the_known_ones_are_told(here: Here) -> None:
    for each in V1:
        at = place(each)
        detail = here.bad(each.method, f"{at}{'&' if '?' in at else '?'}colour=red", least(each))["detail"]
        known = [one.wire_name for one in parameters(each) if one.place == "query"]
        assert (
            detail == f"parameter 'colour' does not exist; parameters of this operation: {', '.join(known) or 'none'}"
        )


def test_what_must_be_in_a_query_is_missed(here: Here) -> None:
    for each in V1:
        needed = [one.wire_name for one in parameters(each) if one.place == "query" and one.required]
        if needed:
            detail = here.bad(each.method, place(each).partition("?")[0])["detail"]
            assert any(name in detail for name in needed), detail


@pytest.mark.parametrize("written", ["*", '"1"', ""])
def test_a_condition_is_never_ignored(here: Here, written: str) -> None:
    for each in CHANGING:
        if each not in COMPARING:
            refused = here.bad(each.method, place(each), least(each), headers={"If-Match": written})
            assert "this operation does not support If-Match" in refused["detail"]


@pytest.mark.parametrize("written", ["", 'W/"1"', "1.0", "-1", "²", "1" * 16, '"1", "2"', "0x1"])
def test_a_condition_is_one_version_as_it_was_read(here: Here, written: str) -> None:
    for each in COMPARING:
        if each.function.__name__ not in ("update_session", "delete_session"):  # a session's is no number
            refused = here.bad(each.method, place(each), least(each), headers={"If-Match": written})
            assert "If-Match must be the ETag" in refused["detail"]


@pytest.mark.parametrize("wrong", ["limit=0", "limit=-1", "limit=1.5", "limit=x", "limit=", "limit=1&limit=2"])
def test_a_page_has_a_whole_number_of_rows(here: Here, wrong: str) -> None:
    for each in PAGED:
        assert "limit" in here.bad("GET", also(each, wrong))["detail"]


def test_a_page_has_no_more_rows_than_the_limit(here: Here) -> None:
    for each in PAGED:
        reply = here.ask("GET", also(each, "limit=1000001"))
        assert reply.status == 422 or (reply.status == 404 and "_id" in also(each, each.path)), reply.body
        assert problem(reply)["type"] in ("LimitExceeded", "NotFound")


@pytest.mark.parametrize("cursor", ["x", "%00", "%F0%9F%99%82", "e30=", "A" * 5_000, "%22%22"])
def test_a_page_starts_where_another_ended_and_nowhere_else(here: Here, cursor: str) -> None:
    for each in PAGED:
        reply = here.ask("GET", also(each, f"cursor={cursor}"))
        assert reply.status == 400 or (reply.status == 404 and each.path.count("{") > 1), f"{each.path} {reply.body!r}"


def test_head_is_get_without_a_body(here: Here) -> None:
    for each in V1:
        if each.method == "GET" and not each.streams:
            at = place(each, here.name)
            full, short = here.ask("GET", at), here.ask("HEAD", at)
            assert (short.status, short.headers["content-length"]) == (full.status, str(len(full.body)))
            assert short.body == b"" or full.status != 200


def test_a_method_that_is_not_taken_hears_which_are(here: Here) -> None:
    for path in {each.path for each in V1}:
        there = {each.method for each in V1 if each.path == path}
        allowed = sorted(there | ({"HEAD"} if "GET" in there else set()))
        for method in {"GET", "PUT", "POST", "PATCH", "DELETE", "TRACE", "get"} - set(allowed):
            reply = here.ask(method, _IN_PATH.sub("x", path))
            assert (reply.status, reply.headers.get("allow")) == (405, ", ".join(allowed)), path
            assert problem(reply)["type"] == "about:blank"


def test_what_was_never_there_is_not_found_and_no_other_status_is_undocumented(here: Here) -> None:
    for each in V1:
        reply = here.ask(each.method, place(each, here.name), least(each)) if not each.streams else None
        if reply is not None:
            assert reply.status in each.statuses, f"{each.function.__name__}: {reply.status} {reply.body!r}"
            assert reply.status < 500


NEEDS_A_UUID = [
    (each, one.name)
    for each in V1
    for one in parameters(each)
    if one.place == "path" and one.name in ("session_id", "message_id", "run_id", "event_id", "feedback_id", "key_id")
]


@pytest.mark.parametrize("id", ["x", "%00", "0", "%C3%A9", "00000000-0000-0000-0000-00000000000g", "a" * 400])
def test_an_id_that_is_no_uuid_is_refused_before_it_is_looked_for(here: Here, id: str) -> None:
    for each, name in NEEDS_A_UUID:
        reply = here.ask(each.method, place(each, here.name, **{name: id}), least(each))
        assert reply.status in (400, 422), f"{each.function.__name__}: {reply.status} {reply.body!r}"


def test_a_path_that_is_not_utf8_is_refused_by_everything_that_has_a_name_in_it(here: Here) -> None:
    for each in V1:
        if "{tenant}" in each.path:
            refused = here.bad(each.method, place(each, "%ED%A0%80"), least(each))
            assert refused["detail"] == "the path is not percent-encoded UTF-8"


@pytest.mark.parametrize("query", ["limit=%FF", "limit=%ED%A0%80", "\xe9=1"])
def test_a_query_that_is_not_percent_encoded_utf8_is_refused(here: Here, query: str) -> None:
    assert "percent-encoded UTF-8" in here.bad("GET", f"/sessions?{query}")["detail"]


MOMENTS = [(each, one.wire_name) for each in V1 for one in parameters(each) if one.is_datetime and one.place == "query"]


@pytest.mark.parametrize("written", ["1", "1.5", "-1", "2026-01-01", "now", "", "1e9"])
def test_a_time_is_written_as_documented_and_no_bare_number(here: Here, written: str) -> None:
    assert MOMENTS
    for each, name in MOMENTS:
        reply = here.ask(each.method, f"{place(each, here.name)}?{name}={written}", least(each))
        assert reply.status in (400, 422), f"{each.function.__name__}: {reply.status} {reply.body!r}"


def test_a_time_as_documented_is_understood(here: Here) -> None:
    for each, name in MOMENTS:
        reply = here.ask(each.method, f"{place(each, here.name)}?{name}=2026-01-01T00:00:00Z", least(each))
        assert b"is invalid" not in reply.body, f"{each.function.__name__}: {reply.body!r}"
