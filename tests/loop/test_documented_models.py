"""The model adapters of the guide, tried with fake clients that answer like the real ones."""

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
    """The classes of the guide."""
    names: dict[str, Any] = {"__name__": "page"}
    prefixes = ("class Claude", "class Chat", "from holdfast.loop import Loop, Reply")
    for block in blocks(PAGE):
        if block.code.startswith("from holdfast import Holdfast"):
            exec("from holdfast.loop import Loop, Reply, ToolRequest, tool", names)
        elif any(prefix in block.code for prefix in prefixes):
            exec(compile(block.code, str(block), "exec"), names)
    return names


class Anthropic:
    """Answers like Anthropic's client: first with a call, then with text."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.messages = Thing(create=self._create)

    def _create(self, **arguments: Any) -> Any:
        self.requests.append(json.loads(json.dumps(arguments)))
        used = Thing(input_tokens=11, output_tokens=7)
        if len(self.requests) == 1:
            thought = {"type": "thinking", "thinking": "Where?", "signature": "abc"}
            call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
            return Thing(content=[_block(thought), _block(call)], usage=used)
        return Thing(content=[_block({"type": "text", "text": "Sunny."})], usage=used)


class OpenAI:
    """Answers like OpenAI's client."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.chat = Thing(completions=Thing(create=self._create))

    def _create(self, **arguments: Any) -> Any:
        self.requests.append(json.loads(json.dumps(arguments)))
        used = Thing(prompt_tokens=11, completion_tokens=7)
        if len(self.requests) == 1:
            call = Thing(id="call_1", function=Thing(name="weather", arguments='{"city": "Oslo"}'))
            message = Thing(content=None, tool_calls=[call])
        else:
            message = Thing(content="Sunny.", tool_calls=None)
        return Thing(choices=[Thing(message=message)], usage=used)


def _block(block: dict[str, Any]) -> Any:
    return Thing(model_dump=lambda: block)


def drive(model: Any) -> list[Any]:
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        acme.agents.create(NewAgent("guide", display_name="Guide", system="Be brief."))
        session = acme.sessions.create(agent="guide")
        acme.messages.append(session.id, role="user", content="How is the weather in Oslo?")
        run = acme.runs.start(session.id)
        ending = Loop(model, tools=[weather]).drive(acme, run.id)
        assert (ending.status, ending.text) == ("completed", "Sunny.")
        finished = acme.runs.get(run.id)
        assert (finished.input_tokens, finished.output_tokens) == (22, 14)
        return [message.content for message in acme.messages.list(session.id)]


def test_anthropic_blocks_are_passed_unchanged_both_ways(documented: dict[str, Any]) -> None:
    client = Anthropic()
    log = drive(documented["Claude"](client, "some-model"))
    first, second = client.requests
    assert (first["system"], first["model"]) == ("Be brief.", "some-model")
    assert first["tools"] == [weather.definition()]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Where?", "signature": "abc"}
    assert second["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny in Oslo"}
    ]
    assert log[1][1] == {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}


def test_openai_messages_are_translated_both_ways(documented: dict[str, Any]) -> None:
    client = OpenAI()
    drive(documented["Chat"](client, "some-model"))
    first, second = client.requests
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
