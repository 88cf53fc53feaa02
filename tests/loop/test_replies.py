"""Replies of a model: validation, the stored form, and the messages that the next turn contains."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from holdfast import Holdfast, NewAgent, NewMessage, ToolOutcome, Usage
from holdfast.errors import InvalidInput
from holdfast.loop import ModelTurn, Reply, ToolRequest
from holdfast.loop.messages import block_of, messages_of, text_of
from holdfast.loop.replies import NormalizedReply, decode_reply, normalize_reply
from holdfast.types import Agent, Block, Context, ContextMessage
from tests.errors import raises

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ODD = "nul \0, lone \ud800, Ünïcode 🙂"


def use(id: str | None, name: Any = "look", **more: Any) -> dict[str, Any]:
    """Return a ``tool_use`` block."""
    return {"type": "tool_use", "name": name, "input": {}, **({} if id is None else {"id": id}), **more}


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


# --------------------------------------------------------------------------------------------------------- stored form


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        ("", []),
        ([], []),
        ("x", [text_block("x")]),
        (ODD, [text_block(ODD)]),
        ([text_block("a"), text_block("b")], [text_block("a"), text_block("b")]),
        ((text_block("a"),), [text_block("a")]),
        ([{"type": "image", "source": {"data": "…"}}], [{"type": "image", "source": {"data": "…"}}]),
        ([{}], [{}]),
    ],
    ids=["no text", "no blocks", "text", "odd text", "blocks", "a tuple", "a picture", "a block of nothing"],
)
def test_content_is_stored_as_blocks(content: Any, blocks: list[dict[str, Any]]) -> None:
    assert normalize_reply(Reply(content), 1).content == blocks


def test_plain_text_equals_a_reply_with_that_text() -> None:
    assert normalize_reply(ODD, 3) == normalize_reply(Reply(ODD), 3)


def test_a_reply_without_usage_counts_no_tokens() -> None:
    normalized = normalize_reply("x", 1)
    assert (normalized.input_tokens, normalized.output_tokens) == (0, 0)


def test_the_stored_reply_shares_no_objects_with_the_reply() -> None:
    block, metadata, state = text_block("a"), {"m": 1}, {"n": [1]}
    normalized = normalize_reply(Reply([block], state=state, metadata=metadata), 1)
    block["text"], metadata["m"] = "changed", 2
    state["n"].append(2)
    assert (normalized.content, normalized.metadata, normalized.state) == ([text_block("a")], {"m": 1}, {"n": [1]})


def test_a_state_may_be_made_of_structs() -> None:
    assert normalize_reply(Reply("x", state=Usage(input_tokens=1)), 1).state == {"input_tokens": 1, "output_tokens": 0}


def test_the_text_of_a_reply_is_its_text_blocks_only() -> None:
    blocks = [text_block("one "), {"type": "thinking", "text": "hm"}, use("a"), {"type": "text"}, text_block("two")]
    assert normalize_reply(Reply(blocks), 1).text == "one two"


def test_a_call_without_input_is_stored_without_input() -> None:
    (request,) = normalize_reply(Reply([{"type": "tool_use", "name": "look", "id": "a"}]), 1).requests
    assert request.input is None


def test_only_tool_use_blocks_are_calls() -> None:
    assert normalize_reply(Reply([{"type": "text", "text": "x", "id": "a", "name": "look"}]), 1).requests == []


# ------------------------------------------------------------------------------------------------------- ids of calls


def test_calls_without_an_id_are_numbered_among_the_calls() -> None:
    reply = Reply([use(None), text_block("and"), use("mine")], [ToolRequest("find"), ToolRequest("find", id="")])
    assert [request.id for request in normalize_reply(reply, 4).requests] == [
        "call-4-1",
        "mine",
        "call-4-3",
        "call-4-4",
    ]


def test_the_same_reply_gets_the_same_ids() -> None:
    reply = Reply("x", [ToolRequest("a"), ToolRequest("b", {"n": 1})])
    assert normalize_reply(reply, 2) == normalize_reply(reply, 2)


def test_two_iterations_never_use_the_same_id() -> None:
    reply = Reply("x", [ToolRequest("a")])
    assert normalize_reply(reply, 1).requests[0].id != normalize_reply(reply, 11).requests[0].id


@pytest.mark.parametrize(
    "reply",
    [
        Reply([use("a"), use("a")]),
        Reply([use("a")], [ToolRequest("find", id="a")]),
        Reply([use(None), use("call-1-1")]),
        Reply([use("a", name=None)]),
        Reply([use("a", name=7)]),
        Reply([use(7)]),  # type: ignore[arg-type]
        Reply([{"type": "tool_use", "id": "a"}]),
        Reply("x", [ToolRequest(None)]),  # type: ignore[arg-type]
    ],
    ids=["twice", "in both", "as numbered", "no name", "a number", "id a number", "nameless", "nameless request"],
)
def test_a_call_needs_a_name_and_an_id_of_its_own(reply: Reply) -> None:
    with raises(InvalidInput, field="calls"):
        normalize_reply(reply, 1)


# ------------------------------------------------------------------------------------------------------ invalid replies


@pytest.mark.parametrize("answer", [None, 7, b"x", ["x"], {"content": "x"}, text_block("x"), Reply, object()])
def test_values_other_than_text_and_replies_are_refused(answer: object) -> None:
    with raises(InvalidInput, field="model") as refused:
        normalize_reply(answer, 1)
    assert type(answer).__name__ in str(refused.value)


@pytest.mark.parametrize("pause_s", [-1, -0.001, math.nan, math.inf, 1e9, True, "1", [1]])
def test_an_invalid_pause_is_refused(pause_s: Any) -> None:
    with raises(InvalidInput, field="pause_s"):
        normalize_reply(Reply("x", pause_s=pause_s), 1)


@pytest.mark.parametrize("pause_s", [0, 0.0, 1, 0.25, 999_999_999])
def test_a_pause_is_stored_unchanged(pause_s: float) -> None:
    assert normalize_reply(Reply("x", pause_s=pause_s), 1).pause_s == pause_s


@pytest.mark.parametrize("content", [7, None, {"type": "text"}, [text_block("x"), "y"], [[text_block("x")]], [None]])
def test_content_must_be_text_or_blocks(content: Any) -> None:
    with raises(InvalidInput, field="content"):
        normalize_reply(Reply(content), 1)


@pytest.mark.parametrize(
    "reply",
    [
        Reply([{"x": object()}]),
        Reply("x", [ToolRequest("a", object())]),
        Reply("x", ["a"]),  # type: ignore[list-item]
        Reply("x", 7),  # type: ignore[arg-type]
        Reply("x", state=object()),
        Reply("x", state={"f": print}),
        Reply("x", metadata=["m"]),  # type: ignore[arg-type]
    ],
    ids=["block", "input", "a name for a call", "no list of calls", "state", "in a state", "metadata"],
)
def test_a_reply_that_is_not_json_is_refused(reply: Reply) -> None:
    with raises(InvalidInput, field="reply"):
        normalize_reply(reply, 1)


# ------------------------------------------------------------------------------------------------- encoding

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
REPLIES = st.builds(
    Reply,
    st.text(max_size=8) | st.lists(st.text(max_size=5).map(text_block), max_size=3),
    st.lists(st.builds(ToolRequest, st.text(min_size=1, max_size=4), PLAIN), max_size=3),
    st.none() | st.builds(Usage, input_tokens=st.integers(0, 9), output_tokens=st.integers(0, 9)),
    st.just(UNSET) | PLAIN,
    st.none() | st.text(max_size=4),
    st.booleans(),
    st.none() | st.floats(0, 1e6),
    st.none() | st.dictionaries(st.text(max_size=3), PLAIN, max_size=2),
)


@settings(max_examples=60)
@given(REPLIES, st.integers(1, 10**6))
def test_a_stored_reply_decodes_to_itself(reply: Reply, iteration: int) -> None:
    normalized = normalize_reply(reply, iteration)
    stored = json.loads(json.dumps(normalized.to_json()))
    assert decode_reply(stored) == normalized
    assert [request.name for request in normalized.requests] == [request.name for request in reply.calls]


def test_defaults_of_a_reply_are_not_stored() -> None:
    assert normalize_reply("x", 1).to_json() == {"content": [text_block("x")]}


@pytest.mark.parametrize("stored", [None, {}, {"content": "x"}, {"content": [], "input_tokens": "many"}])
def test_decoding_an_invalid_reply_raises(stored: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_reply(stored)


# ------------------------------------------------------------------------------------------------- messages


def outcome(
    id: str, status: Literal["finished", "failed", "cancelled", "discarded", "unknown"] = "finished", **more: Any
) -> ToolOutcome:
    return ToolOutcome(id=id, status=status, **more)


def test_a_reply_and_its_results_are_two_messages() -> None:
    reply = NormalizedReply([text_block("I look."), use("a")], output_tokens=7, metadata={"m": 1})
    assert messages_of(reply, [outcome("a", result=1)]) == [
        NewMessage(role="assistant", content=reply.content, token_count=7, metadata={"m": 1}),
        NewMessage(role="user", content=[{"type": "tool_result", "tool_use_id": "a", "content": "1"}]),
    ]


def test_a_reply_without_calls_is_one_message() -> None:
    assert [message.role for message in messages_of(NormalizedReply([text_block("x")]), [])] == ["assistant"]


def test_an_empty_reply_is_no_message() -> None:
    assert messages_of(NormalizedReply([]), []) == []


def test_results_are_in_the_order_of_the_outcomes() -> None:
    reply = NormalizedReply([use("a"), use("b")])
    (_, results) = messages_of(reply, [outcome("b", result="2"), outcome("a", result="1")])
    assert [(block["tool_use_id"], block["content"]) for block in results.content] == [("b", "2"), ("a", "1")]


def test_a_discarded_call_is_in_no_message_and_resets_the_token_count() -> None:
    reply = NormalizedReply([text_block("x"), use("a"), use("b")], output_tokens=9)
    assistant, results = messages_of(reply, [outcome("a", "discarded"), outcome("b", result="2")])
    assert (assistant.content, assistant.token_count) == ([text_block("x"), use("b")], 0)
    assert [block["tool_use_id"] for block in results.content] == ["b"]


def test_a_reply_of_discarded_calls_only_is_no_message() -> None:
    assert messages_of(NormalizedReply([use("a")]), [outcome("a", "discarded")]) == []


def test_a_discarded_call_removes_only_its_tool_use_block() -> None:
    picture = {"type": "image", "id": "a"}
    (message,) = messages_of(NormalizedReply([picture, use("a")]), [outcome("a", "discarded")])
    assert message.content == [picture]


@pytest.mark.parametrize(
    ("call_outcome", "text"),
    [
        (outcome("a", result=""), ""),
        (outcome("a", result=ODD), ODD),
        (outcome("a"), "null"),
        (outcome("a", result=False), "false"),
        (outcome("a", result=["ä", 1.5]), '["ä", 1.5]'),
        (outcome("a", "failed", error="no"), "no"),
        (outcome("a", "failed"), "failed"),
        (outcome("a", "failed", error=""), "failed"),
        (outcome("a", "unknown", error="who knows"), "who knows"),
        (outcome("a", "unknown"), "unknown"),
        (outcome("a", "cancelled"), "this call was cancelled"),
        (outcome("a", "cancelled", error=""), "this call was cancelled"),
        (outcome("a", "cancelled", error="not that one"), "this call was cancelled: not that one"),
    ],
)
def test_the_text_of_an_outcome(call_outcome: ToolOutcome, text: str) -> None:
    assert text_of(call_outcome) == text


@pytest.mark.parametrize("status", ["failed", "cancelled", "unknown", "discarded"])
def test_every_unfinished_status_is_an_error_for_the_model(status: Any) -> None:
    assert block_of(outcome("a", status))["is_error"] is True
    assert "is_error" not in block_of(outcome("a"))


# ------------------------------------------------------------------------------------------------- input of the model


def turn_of(
    *contents: tuple[str | None, Any], system: str | None = None, blocks: tuple[str, ...] = (), summary: str = ""
) -> ModelTurn:
    """Return a turn with these messages, each a role and its content."""
    messages = [
        ContextMessage(role, content, 1, str(seq), seq)  # type: ignore[arg-type]
        for seq, (role, content) in enumerate(contents, 1)
    ]
    agent: Agent | None = None
    if system is not None:
        with Holdfast(":memory:") as holdfast:
            agent = holdfast.tenant("acme").agents.create(NewAgent("a", system=system))
    core = [Block("a", label, f"about {label}", "", 100, 1, NOW, NOW) for label in blocks]
    context = Context(messages, 0, summary)
    return ModelTurn(None, 1, None, context, agent, core, [], lambda piece: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("turn", "prompt"),
    [
        (turn_of(), ""),
        (turn_of(system=""), ""),
        (turn_of(system="Be kind."), "Be kind."),
        (turn_of(blocks=("user", "task")), "<user>\nabout user\n</user>\n\n<task>\nabout task\n</task>"),
        (turn_of(("system", [text_block("Be "), text_block("brief.")])), "Be brief."),
        (turn_of(("system", "As text.")), "As text."),
        (turn_of(summary="They met."), "They met."),
        (
            turn_of(("system", "C"), ("user", "no"), ("system", "D"), system="A", blocks=("b",), summary="E"),
            "A\n\n<b>\nabout b\n</b>\n\nC\n\nD\n\nE",
        ),
    ],
    ids=["nothing", "empty", "agent", "blocks", "message", "text", "summary", "all in order"],
)
def test_the_system_prompt_joins_its_available_parts(turn: ModelTurn, prompt: str) -> None:
    assert turn.system == prompt


def test_the_conversation_omits_system_messages_and_messages_without_a_role() -> None:
    turn = turn_of(("system", "a"), ("user", [text_block("b")]), (None, {"x": 1}), ("assistant", [text_block("c")]))
    assert turn.messages == [
        {"role": "user", "content": [text_block("b")]},
        {"role": "assistant", "content": [text_block("c")]},
    ]
