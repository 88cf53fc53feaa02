"""Properties of all /v1 operations: bodies, parameters, conditions, pages, methods, isolation."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from msgspec import inspect as types

from holdfast.api.operations import Operation
from holdfast.api.parameters import bodies, may_be_empty, parameters
from holdfast.api.resources import OPERATIONS
from tests.api.v1 import NOW, V1Client, problem

_IN_PATH = re.compile(r"{(\w+)}")


V1 = [operation for operation in OPERATIONS if operation.path.startswith("/v1")]
NAMED = {operation.function.__name__: operation for operation in V1}
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
    "list_agent_shares": "agent=a",
    "list_accessible_mcp_servers": "agent=a&user=u",
    "list_mcp_agent_grants": "agent=a",
    "list_mcp_user_grants": "user=u",
}
"""Required query parameters whose values matter. Others are made from their types."""
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
    "create_mcp_server": {"name": "s"},
    "upsert_mcp_server": {"name": "s"},
    "create_mcp_request": {"server": str(uuid4()), "scope": "user", "user": "u"},
    "review_mcp_request": {"approved": True},
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
"""Minimal bodies whose values matter. Others are made from their types."""


def path_of(operation: Operation, tenant: str = "acme", **parts: str) -> str:
    """Return the path of an operation with its required query, for objects that do not exist."""
    usual = {"tenant": tenant, "number": "7", "iteration": "7"}
    path = _IN_PATH.sub(lambda part: {**usual, **parts}.get(part[1]) or str(uuid4()), operation.path)
    required = [one for one in parameters(operation) if one.place == "query" and one.required]
    query = "&".join(f"{one.wire_name}={smallest(types.type_info(one.type))}" for one in required)
    query = QUERIES.get(operation.function.__name__, query)
    return f"{path}?{query}" if query else path


def minimal_body(operation: Operation) -> dict[str, Any] | None:
    """Return the minimal body of an operation."""
    if not operation.has_body or operation.takes_upload:
        return None
    kinds = bodies(operation)
    return BODIES.get(operation.function.__name__) or (smallest(types.type_info(kinds[0])) if kinds else {})


def smallest(kind: types.Type) -> Any:
    """Return a value of a type, with its required fields only."""
    match kind:
        case types.Metadata(type=inner, extra_json_schema=schema):
            return str(uuid4()) if (schema or {}).get("format") == "uuid" else smallest(inner)
        case types.StructType():
            return {field.encode_name: smallest(field.type) for field in kind.fields if field.required}
        case types.UnionType():
            return smallest(kind.types[0])
        case types.ListType():
            return [smallest(kind.item_type)]
        case types.LiteralType():
            return kind.values[0]
        case types.IntType() | types.FloatType():
            return kind.ge or 1
        case types.BoolType():
            return True
        case types.DictType():
            return {}
    return "x"


def with_query(operation: Operation, query: str) -> str:
    """Return the path of an operation with another query parameter."""
    at = path_of(operation)
    return f"{at}{'&' if '?' in at else '?'}{query}"


WITH_BODY = [operation for operation in V1 if operation.has_body and not operation.takes_upload]
CHANGING = [operation for operation in V1 if operation.method != "GET"]
COMPARING = [item for item in CHANGING if any(one.wire_name == "If-Match" for one in parameters(item))]
PAGED = [operation for operation in V1 if "cursor" in {one.name for one in parameters(operation)}]


def test_the_tables_above_only_name_existing_operations() -> None:
    assert {*QUERIES, *BODIES} <= set(NAMED)
    assert all(minimal_body(operation) for operation in WITH_BODY if not may_be_empty(operation))


@pytest.mark.parametrize("wrong", [[], "x", 7, None, True], ids=repr)
def test_a_body_is_an_object(v1: V1Client, wrong: Any) -> None:
    for operation in WITH_BODY:
        refused = v1.bad(operation.method, path_of(operation), msgspec.json.encode(wrong))
        assert (refused["type"], refused["field"]) == ("InvalidInput", "body")


def test_an_unknown_field_is_refused_by_name(v1: V1Client) -> None:
    for operation in WITH_BODY:
        refused = v1.bad(operation.method, path_of(operation), {**(minimal_body(operation) or {}), "colour": 1})
        assert "colour" in refused["detail"]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
def test_a_body_requires_a_json_content_type(v1: V1Client, kind: str) -> None:
    for operation in WITH_BODY:
        refused = v1.bad(
            operation.method, path_of(operation), minimal_body(operation), 415, headers={"content-type": kind}
        )
        assert (refused["type"], refused["title"]) == ("about:blank", "Unsupported Media Type")


@pytest.mark.parametrize("kind", ["Application/JSON", "application/json;charset=utf-8", " application/json ; x=y"])
def test_parameters_of_the_content_type_are_ignored(v1: V1Client, kind: str) -> None:
    v1.good("POST", "/sessions", {}, 201, headers={"content-type": kind})


def test_a_body_ends_where_its_json_ends(v1: V1Client) -> None:
    for operation in WITH_BODY:
        whole = msgspec.json.encode(minimal_body(operation))
        for broken in (whole[:-1], whole + b"}", whole + b"\0", b"\xef\xbb\xbf" + whole, b"\xff"):
            assert v1.bad(operation.method, path_of(operation), broken)["field"] == "body", broken


def test_an_empty_body_is_accepted_only_without_required_fields(v1: V1Client) -> None:
    for operation in WITH_BODY:
        reply = v1.ask(operation.method, path_of(operation, v1.name))
        assert (reply.status == 415) == (not may_be_empty(operation)), f"{operation.path}: {reply.body!r}"
        announced = v1.bad(operation.method, path_of(operation, v1.name), b"")
        assert announced["field"] == "body"


def test_an_unknown_parameter_is_refused_with_the_known_ones(v1: V1Client) -> None:
    for operation in V1:
        at = path_of(operation)
        detail = v1.bad(operation.method, f"{at}{'&' if '?' in at else '?'}colour=red", minimal_body(operation))[
            "detail"
        ]
        all_parameters = [one.wire_name for one in parameters(operation) if one.place == "query"]
        assert (
            detail
            == f"parameter 'colour' does not exist; parameters of this operation: {', '.join(all_parameters) or 'none'}"
        )


def test_a_missing_required_parameter_is_refused(v1: V1Client) -> None:
    for operation in V1:
        needed = [one.wire_name for one in parameters(operation) if one.place == "query" and one.required]
        if needed:
            detail = v1.bad(operation.method, path_of(operation).partition("?")[0])["detail"]
            assert any(name in detail for name in needed), detail


@pytest.mark.parametrize("written", ["*", '"1"', ""])
def test_a_condition_is_never_ignored(v1: V1Client, written: str) -> None:
    for item in CHANGING:
        if item not in COMPARING:
            refused = v1.bad(item.method, path_of(item), minimal_body(item), headers={"If-Match": written})
            assert refused["field"] == "If-Match"


@pytest.mark.parametrize("written", ["", 'W/"1"', "1.0", "-1", "²", "1" * 16, '"1", "2"', "0x1"])
def test_a_condition_is_one_version_of_a_response(v1: V1Client, written: str) -> None:
    for item in COMPARING:
        if item.function.__name__ not in ("update_session", "delete_session"):  # a session's is not a number
            refused = v1.bad(item.method, path_of(item), minimal_body(item), headers={"If-Match": written})
            assert refused["field"] == "If-Match"


@pytest.mark.parametrize("wrong", ["limit=0", "limit=-1", "limit=1.5", "limit=x", "limit=", "limit=1&limit=2"])
def test_the_size_of_a_page_is_an_integer(v1: V1Client, wrong: str) -> None:
    for item in PAGED:
        assert "limit" in v1.bad("GET", with_query(item, wrong))["detail"]


def test_the_size_of_a_page_is_limited(v1: V1Client) -> None:
    for item in PAGED:
        reply = v1.ask("GET", with_query(item, "limit=1000001"))
        assert reply.status == 422 or (reply.status == 404 and "_id" in with_query(item, item.path)), reply.body
        assert problem(reply)["type"] in ("LimitExceeded", "NotFound")


@pytest.mark.parametrize("cursor", ["x", "%00", "%F0%9F%99%82", "e30=", "A" * 5_000, "%22%22"])
def test_a_page_starts_only_at_the_end_of_another(v1: V1Client, cursor: str) -> None:
    for item in PAGED:
        reply = v1.ask("GET", with_query(item, f"cursor={cursor}"))
        assert reply.status == 400 or (reply.status == 404 and item.path.count("{") > 1), f"{item.path} {reply.body!r}"


def test_head_is_get_without_a_body(v1: V1Client) -> None:
    for operation in V1:
        if operation.method == "GET" and not operation.streams:
            at = path_of(operation, v1.name)
            full, short = v1.ask("GET", at), v1.ask("HEAD", at)
            assert (short.status, short.headers["content-length"]) == (full.status, str(len(full.body)))
            assert short.body == b"" or full.status != 200


def test_an_unsupported_method_gets_the_allowed_methods(v1: V1Client) -> None:
    for path in {operation.path for operation in V1}:
        operations = {operation.method for operation in V1 if operation.path == path}
        allowed = sorted(operations | ({"HEAD"} if "GET" in operations else set()))
        for method in {"GET", "PUT", "POST", "PATCH", "DELETE", "TRACE", "get"} - set(allowed):
            reply = v1.ask(method, _IN_PATH.sub("x", path))
            assert (reply.status, reply.headers.get("allow")) == (405, ", ".join(allowed)), path
            assert problem(reply)["type"] == "about:blank"


def test_missing_objects_get_404_and_only_documented_statuses(v1: V1Client) -> None:
    for operation in V1:
        reply = (
            v1.ask(operation.method, path_of(operation, v1.name), minimal_body(operation))
            if not operation.streams
            else None
        )
        if reply is not None:
            assert reply.status in operation.statuses, f"{operation.function.__name__}: {reply.status} {reply.body!r}"
            assert reply.status < 500


NEEDS_A_UUID = [
    (operation, one.name)
    for operation in V1
    for one in parameters(operation)
    if one.place == "path" and one.name in ("session_id", "message_id", "run_id", "event_id", "feedback_id", "key_id")
]


@pytest.mark.parametrize("id", ["x", "%00", "0", "%C3%A9", "00000000-0000-0000-0000-00000000000g", "a" * 400])
def test_an_id_that_is_no_uuid_is_refused_before_a_lookup(v1: V1Client, id: str) -> None:
    for item, name in NEEDS_A_UUID:
        reply = v1.ask(item.method, path_of(item, v1.name, **{name: id}), minimal_body(item))
        assert reply.status in (400, 422), f"{item.function.__name__}: {reply.status} {reply.body!r}"


def test_a_path_that_is_not_utf8_is_refused_by_every_operation_with_a_name(v1: V1Client) -> None:
    for operation in V1:
        if "{tenant}" in operation.path:
            refused = v1.bad(operation.method, path_of(operation, "%ED%A0%80"), minimal_body(operation))
            assert refused["field"] == "path"


@pytest.mark.parametrize("query", ["limit=%FF", "limit=%ED%A0%80", "\xe9=1"])
def test_a_query_that_is_not_percent_encoded_utf8_is_refused(v1: V1Client, query: str) -> None:
    assert "percent-encoded UTF-8" in v1.bad("GET", f"/sessions?{query}")["detail"]


MOMENTS = [
    (operation, one.wire_name)
    for operation in V1
    for one in parameters(operation)
    if one.is_datetime and one.place == "query"
]


@pytest.mark.parametrize("written", ["1", "1.5", "-1", "2026-01-01", "now", "", "1e9"])
def test_a_time_must_have_the_documented_format(v1: V1Client, written: str) -> None:
    assert MOMENTS
    for moment, name in MOMENTS:
        reply = v1.ask(moment.method, f"{path_of(moment, v1.name)}?{name}={written}", minimal_body(moment))
        assert reply.status in (400, 422), f"{moment.function.__name__}: {reply.status} {reply.body!r}"


def test_a_documented_time_is_accepted(v1: V1Client) -> None:
    for moment, name in MOMENTS:
        reply = v1.ask(moment.method, f"{path_of(moment, v1.name)}?{name}=2026-01-01T00:00:00Z", minimal_body(moment))
        assert b"is invalid" not in reply.body, f"{moment.function.__name__}: {reply.body!r}"
