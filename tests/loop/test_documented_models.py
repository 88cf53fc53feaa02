"""The page's ways to put a real model in, tried with clients that answer as the real ones do."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace as Thing
from typing import Any

import pytest

from holdfast import Holdfast, NewAgent
from holdfast.loop import Loop, tool
from tests.docs.markdown import blocks

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "the-durable-loop.md"


@tool(safety="idempotent")
def weather(city: str) -> str:
    "The weather in a city."
    return f"sunny in {city}"


@pytest.fixture
def documented() -> dict[str, Any]:
    """The classes of the page."""
    names: dict[str, Any] = {"__name__": "page"}
    wanted = ("class Claude", "class Chat", "from holdfast.loop import Loop, Reply")
    for block in blocks(PAGE):
        if block.code.startswith("from holdfast import Holdfast"):
            exec("from holdfast.loop import Loop, Reply, ToolRequest, tool", names)
        elif any(each in block.code for each in wanted):
            exec(compile(block.code, str(block), "exec"), names)
    return names


class Anthropic:
    """As Anthropic's client answers: first with a call, then with words."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.messages = Thing(create=self._create)

    def _create(self, **asked: Any) -> Any:
        self.asked.append(json.loads(json.dumps(asked)))
        used = Thing(input_tokens=11, output_tokens=7)
        if len(self.asked) == 1:
            thought = {"type": "thinking", "thinking": "Where?", "signature": "abc"}
            call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
            return Thing(content=[_dumped(thought), _dumped(call)], usage=used)
        return Thing(content=[_dumped({"type": "text", "text": "Sunny."})], usage=used)


class OpenAI:
    """As OpenAI's client answers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.chat = Thing(completions=Thing(create=self._create))

    def _create(self, **asked: Any) -> Any:
        self.asked.append(json.loads(json.dumps(asked)))
        used = Thing(prompt_tokens=11, completion_tokens=7)
        if len(self.asked) == 1:
            call = Thing(id="call_1", function=Thing(name="weather", arguments='{"city": "Oslo"}'))
            said = Thing(content=None, tool_calls=[call])
        else:
            said = Thing(content="Sunny.", tool_calls=None)
        return Thing(choices=[Thing(message=said)], usage=used)


def _dumped(block: dict[str, Any]) -> Any:
    return Thing(model_dump=lambda: block)


def drive(model: Any) -> list[Any]:
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        acme.agents.create(NewAgent(name="Guide", id="guide", system="Be brief."))
        session = acme.sessions.create(agent="guide")
        acme.messages.append(session.id, role="user", content="How is the weather in Oslo?")
        run = acme.runs.start(session.id)
        ending = Loop(model, tools=[weather]).drive(acme, run.id)
        assert (ending.status, ending.text) == ("completed", "Sunny.")
        there = acme.runs.get(run.id)
        assert (there.input_tokens, there.output_tokens) == (22, 14)
        return [message.content for message in acme.messages.list(session.id)]


def test_anthropic_s_blocks_go_out_and_come_in_as_they_are(documented: dict[str, Any]) -> None:
    client = Anthropic()
    log = drive(documented["Claude"](client, "some-model"))
    first, second = client.asked
    assert (first["system"], first["model"]) == ("Be brief.", "some-model")
    assert first["tools"] == [weather.definition()]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Where?", "signature": "abc"}
    assert second["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny in Oslo"}
    ]
    assert log[1][1] == {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}


def test_openai_s_words_are_translated_both_ways(documented: dict[str, Any]) -> None:
    client = OpenAI()
    drive(documented["Chat"](client, "some-model"))
    first, second = client.asked
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is the weather in Oslo?"},
    ]
    assert first["tools"][0]["function"] == {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": weather.schema,
    }
    assert second["messages"][2:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny in Oslo"},
    ]
