"""What a model may answer, what of it is kept, and in which words the next turn sees it."""

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

from holdfast import NewMessage, ToolOutcome, Usage
from holdfast.errors import InvalidInput
from holdfast.loop import ModelTurn, Reply, ToolRequest
from holdfast.loop.messages import block_of, messages_of, text_of
from holdfast.loop.replies import NormalizedReply, decode_reply, normalize_reply
from holdfast.types import Agent, Block, Context, ContextMessage

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ODD = "nul \0, lone \ud800, Ünïcode 🙂"


def use(id: str | None, name: Any = "look", **more: Any) -> dict[str, Any]:
    """A block in which a tool is called."""
    return {"type": "tool_use", "name": name, "input": {}, **({} if id is None else {"id": id}), **more}


def words(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


# --------------------------------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("", []),
        ([], []),
        ("x", [words("x")]),
        (ODD, [words(ODD)]),
        ([words("a"), words("b")], [words("a"), words("b")]),
        ((words("a"),), [words("a")]),
        ([{"type": "image", "source": {"data": "…"}}], [{"type": "image", "source": {"data": "…"}}]),
        ([{}], [{}]),
    ],
    ids=["no text", "no blocks", "text", "odd text", "blocks", "a tuple", "a picture", "a block of nothing"],
)
def test_content_is_kept_as_blocks(content: Any, kept: list[dict[str, Any]]) -> None:
    assert normalize_reply(Reply(content), 1).content == kept


def test_text_alone_is_the_reply_with_that_text() -> None:
    assert normalize_reply(ODD, 3) == normalize_reply(Reply(ODD), 3)


def test_a_reply_without_usage_has_cost_nothing() -> None:
    said = normalize_reply("x", 1)
    assert (said.input_tokens, said.output_tokens) == (0, 0)


def test_nothing_of_a_reply_is_shared_with_what_is_kept_of_it() -> None:
    block, metadata, state = words("a"), {"m": 1}, {"n": [1]}
    said = normalize_reply(Reply([block], state=state, metadata=metadata), 1)
    block["text"], metadata["m"] = "changed", 2
    state["n"].append(2)
    assert (said.content, said.metadata, said.state) == ([words("a")], {"m": 1}, {"n": [1]})


def test_a_state_may_be_made_of_structs() -> None:
    assert normalize_reply(Reply("x", state=Usage(input_tokens=1)), 1).state == {"input_tokens": 1, "output_tokens": 0}


def test_the_words_of_a_reply_are_its_texts_and_nothing_else() -> None:
    blocks = [words("one "), {"type": "thinking", "text": "hm"}, use("a"), {"type": "text"}, words("two")]
    assert normalize_reply(Reply(blocks), 1).text == "one two"


def test_a_call_without_input_is_kept_without_one() -> None:
    (request,) = normalize_reply(Reply([{"type": "tool_use", "name": "look", "id": "a"}]), 1).requests
    assert request.input is None


def test_what_only_looks_like_a_call_is_none() -> None:
    assert normalize_reply(Reply([{"type": "text", "text": "x", "id": "a", "name": "look"}]), 1).requests == []


# ------------------------------------------------------------------------------------------------------- ids of calls


def test_calls_without_an_id_are_numbered_by_their_place_among_the_calls() -> None:
    reply = Reply([use(None), words("and"), use("mine")], [ToolRequest("find"), ToolRequest("find", id="")])
    assert [each.id for each in normalize_reply(reply, 4).requests] == ["call-4-1", "mine", "call-4-3", "call-4-4"]


def test_asking_again_would_give_the_same_ids() -> None:
    reply = Reply("x", [ToolRequest("a"), ToolRequest("b", {"n": 1})])
    assert normalize_reply(reply, 2) == normalize_reply(reply, 2)


def test_two_iterations_never_give_the_same_id() -> None:
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
    with pytest.raises(InvalidInput, match="every call of a tool needs a name, and an id that no other call"):
        normalize_reply(reply, 1)


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("answer", [None, 7, b"x", ["x"], {"content": "x"}, words("x"), Reply, object()])
def test_what_is_neither_text_nor_a_reply_is_refused_by_its_type(answer: object) -> None:
    with pytest.raises(InvalidInput, match=f"a Reply or text, not {type(answer).__name__}$"):
        normalize_reply(answer, 1)


@pytest.mark.parametrize("pause_s", [-1, -0.001, math.nan, math.inf, 1e9, True, "1", [1]])
def test_a_pause_that_is_no_time_is_refused(pause_s: Any) -> None:
    with pytest.raises(InvalidInput, match="pause_s is a number of seconds from 0 on"):
        normalize_reply(Reply("x", pause_s=pause_s), 1)


@pytest.mark.parametrize("pause_s", [0, 0.0, 1, 0.25, 999_999_999])
def test_a_pause_is_kept_as_it_was_given(pause_s: float) -> None:
    assert normalize_reply(Reply("x", pause_s=pause_s), 1).pause_s == pause_s


@pytest.mark.parametrize("content", [7, None, {"type": "text"}, [words("x"), "y"], [[words("x")]], [None]])
def test_content_that_is_neither_text_nor_blocks_is_refused(content: Any) -> None:
    with pytest.raises(InvalidInput, match="text or a list of content blocks"):
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
def test_what_is_not_json_is_refused(reply: Reply) -> None:
    with pytest.raises(InvalidInput, match="the model's answer is not JSON"):
        normalize_reply(reply, 1)


# ------------------------------------------------------------------------------------------------- kept and found again

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
REPLIES = st.builds(
    Reply,
    st.text(max_size=8) | st.lists(st.text(max_size=5).map(words), max_size=3),
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
def test_a_reply_comes_out_of_the_ledger_as_it_went_in(reply: Reply, iteration: int) -> None:
    said = normalize_reply(reply, iteration)
    stored = json.loads(json.dumps(said.to_json()))
    assert decode_reply(stored) == said
    assert [each.name for each in said.requests] == [each.name for each in reply.calls]


def test_what_a_reply_does_not_say_takes_no_place_in_the_ledger() -> None:
    assert normalize_reply("x", 1).to_json() == {"content": [words("x")]}


@pytest.mark.parametrize("stored", [None, {}, {"content": "x"}, {"content": [], "input_tokens": "many"}])
def test_what_was_never_recorded_is_no_reply(stored: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_reply(stored)


# ------------------------------------------------------------------------------------------------- what goes into the log


def outcome(
    id: str, status: Literal["finished", "failed", "cancelled", "discarded", "unknown"] = "finished", **more: Any
) -> ToolOutcome:
    return ToolOutcome(id=id, status=status, **more)


def test_a_reply_and_its_results_are_two_messages() -> None:
    said = NormalizedReply([words("I look."), use("a")], output_tokens=7, metadata={"m": 1})
    assert messages_of(said, [outcome("a", result=1)]) == [
        NewMessage(role="assistant", content=said.content, token_count=7, metadata={"m": 1}),
        NewMessage(role="user", content=[{"type": "tool_result", "tool_use_id": "a", "content": "1"}]),
    ]


def test_a_reply_without_calls_is_one_message() -> None:
    assert [each.role for each in messages_of(NormalizedReply([words("x")]), [])] == ["assistant"]


def test_a_reply_that_says_nothing_is_no_message() -> None:
    assert messages_of(NormalizedReply([]), []) == []


def test_results_stand_in_the_order_of_the_outcomes() -> None:
    said = NormalizedReply([use("a"), use("b")])
    (_, results) = messages_of(said, [outcome("b", result="2"), outcome("a", result="1")])
    assert [(each["tool_use_id"], each["content"]) for each in results.content] == [("b", "2"), ("a", "1")]


def test_a_discarded_call_is_in_no_message_and_what_remains_is_counted_anew() -> None:
    said = NormalizedReply([words("x"), use("a"), use("b")], output_tokens=9)
    assistant, results = messages_of(said, [outcome("a", "discarded"), outcome("b", result="2")])
    assert (assistant.content, assistant.token_count) == ([words("x"), use("b")], 0)
    assert [each["tool_use_id"] for each in results.content] == ["b"]


def test_a_reply_of_nothing_but_discarded_calls_is_no_message() -> None:
    assert messages_of(NormalizedReply([use("a")]), [outcome("a", "discarded")]) == []


def test_only_calls_go_with_a_discarded_call() -> None:
    picture = {"type": "image", "id": "a"}
    (message,) = messages_of(NormalizedReply([picture, use("a")]), [outcome("a", "discarded")])
    assert message.content == [picture]


@pytest.mark.parametrize(
    ("given", "said"),
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
def test_an_outcome_in_words(given: ToolOutcome, said: str) -> None:
    assert text_of(given) == said


@pytest.mark.parametrize("status", ["failed", "cancelled", "unknown", "discarded"])
def test_whatever_is_not_finished_is_an_error_to_the_model(status: Any) -> None:
    assert block_of(outcome("a", status))["is_error"] is True
    assert "is_error" not in block_of(outcome("a"))


# ------------------------------------------------------------------------------------------------- what a model is asked


def turn_of(
    *said: tuple[str | None, Any], system: str | None = None, blocks: tuple[str, ...] = (), summary: str = ""
) -> ModelTurn:
    """A turn in which this was said, by role and content."""
    messages = [
        ContextMessage(role, content, 1, str(seq), seq)  # type: ignore[arg-type]
        for seq, (role, content) in enumerate(said, 1)
    ]
    agent = None if system is None else Agent("a", "a", "", "", "", system, [], [], {}, 1, NOW, NOW)
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
        (turn_of(("system", [words("Be "), words("brief.")])), "Be brief."),
        (turn_of(("system", "As text.")), "As text."),
        (turn_of(summary="They met."), "They met."),
        (
            turn_of(("system", "C"), ("user", "no"), ("system", "D"), system="A", blocks=("b",), summary="E"),
            "A\n\n<b>\nabout b\n</b>\n\nC\n\nD\n\nE",
        ),
    ],
    ids=["nothing", "empty", "agent", "blocks", "message", "text", "summary", "all in order"],
)
def test_the_system_prompt_is_made_of_what_there_is(turn: ModelTurn, prompt: str) -> None:
    assert turn.system == prompt


def test_the_conversation_is_without_what_is_in_the_prompt_and_without_what_has_no_role() -> None:
    turn = turn_of(("system", "a"), ("user", [words("b")]), (None, {"x": 1}), ("assistant", [words("c")]))
    assert turn.messages == [
        {"role": "user", "content": [words("b")]},
        {"role": "assistant", "content": [words("c")]},
    ]
