"""``kagent.adk``: sessions, share tools, memory and the whole app, unchanged and without a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from a2a.types import AgentCapabilities, AgentCard
from google.adk.agents import BaseAgent
from google.adk.events import Event, EventActions
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types
from kagent.adk import KAgentApp
from kagent.adk._memory_service import KagentMemoryService
from kagent.adk._session_service import KAgentSessionService
from kagent.adk._token import KAgentTokenService
from kagent.adk.tools.share_tools import CreateShareLinkTool, DeleteShareLinkTool, ListShareLinksTool
from kagent.core.a2a import set_request_user_id

from tests.adapters.kagent.a2a_turn import talk

APP = "ns__NS__app"


def event_of(text: str, **state: Any) -> Event:
    """Return an event with a text and a state change."""
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return Event(invocation_id="i", author="user", content=content, actions=EventActions(state_delta=state))


def test_a_session_is_returned_with_its_events_and_state(base: str, name: str) -> None:
    async def use() -> None:
        async with httpx.AsyncClient(base_url=base) as client:
            service = KAgentSessionService(client)
            place = {"app_name": APP, "user_id": f"bob {name}", "session_id": name}
            assert await service.get_session(**place) is None
            made = await service.create_session(**place, state={"session_name": "n", "source": "agent"})
            assert (made.id, made.user_id) == (name, f"bob {name}")
            for number in range(3):
                await service.append_event(made, event_of(f"hi {number} \U0001f600", k=number, **{f"k{number}": "x"}))
            partial = event_of("not sent")
            partial.partial = True
            await service.append_event(made, partial)
            again = await service.get_session(**place)
            assert again is not None
            assert again.state == {"k": 2, "k0": "x", "k1": "x", "k2": "x"}
            assert [event.content.parts[0].text for event in again.events] == [f"hi {n} \U0001f600" for n in range(3)]
            assert [event.id for event in again.events] == [event.id for event in made.events[:3]]
            recent = await service.get_session(**place, config=GetSessionConfig(num_recent_events=1))
            assert (len(recent.events), recent.state["k0"]) == (1, "x"), "the whole state with one event"

    asyncio.run(use())


def test_events_after_a_time(base: str, name: str) -> None:
    async def use() -> None:
        async with httpx.AsyncClient(base_url=base) as client:
            service = KAgentSessionService(client)
            place = {"app_name": APP, "user_id": name, "session_id": name}
            made = await service.create_session(**place)
            await service.append_event(made, event_of("first"))
            body = (await client.get(f"/api/sessions/{name}", params={"user_id": name})).json()["data"]["events"][0]
            from datetime import datetime

            after = datetime.fromisoformat(body["created_at"]).timestamp()
            await service.append_event(made, event_of("second"))
            result = await service.get_session(**place, config=GetSessionConfig(after_timestamp=after))
            assert [event.content.parts[0].text for event in result.events] == ["second"]

    asyncio.run(use())


def test_sessions_are_listed_deleted_and_created_again(base: str, name: str) -> None:
    async def use() -> None:
        async with httpx.AsyncClient(base_url=base) as client:
            service = KAgentSessionService(client)
            assert (await service.list_sessions(app_name=APP, user_id=name)).sessions == []
            made = await service.create_session(app_name=APP, user_id=name)
            named = await service.create_session(app_name=APP, user_id=name, session_id=f"s-{name}")
            await service.append_event(named, event_of("old", old=True))
            twice = await service.create_session(app_name=APP, user_id=name, session_id=f"s-{name}")
            assert twice.id == named.id, "two pods may both find no session and create it"
            listed = (await service.list_sessions(app_name=APP, user_id=name)).sessions
            assert {row.id for row in listed} == {made.id, named.id}
            await service.delete_session(app_name=APP, user_id=name, session_id=named.id)
            await service.delete_session(app_name=APP, user_id=name, session_id=named.id)
            place = {"app_name": APP, "user_id": name, "session_id": named.id}
            assert await service.get_session(**place) is None
            await service.create_session(**place)
            fresh = await service.get_session(**place)
            assert (fresh.events, fresh.state) == ([], {}), "without the old history"

    asyncio.run(use())


@pytest.mark.parametrize("user", ["a+b@x.com", "a b@x.com", "John Doe", "a&b", "a#b"])
def test_a_user_with_any_name_is_one_user(base: str, name: str, user: str) -> None:
    async def use() -> None:
        token = KAgentTokenService(APP)
        who = user + name if "#" not in user and "&" not in user else user
        set_request_user_id(who)
        async with httpx.AsyncClient(base_url=base, event_hooks=token.event_hooks()) as client:
            service = KAgentSessionService(client)
            place = {"app_name": APP, "user_id": who, "session_id": name}
            made = await service.create_session(**place)
            await service.append_event(made, event_of("hi"))
            assert len((await service.get_session(**place)).events) == 1
            assert [session.id for session in (await service.list_sessions(app_name=APP, user_id=who)).sessions] == [
                name
            ]
            await service.delete_session(**place)
            assert await service.get_session(**place) is None

    asyncio.run(use())
    set_request_user_id(None)


def test_without_the_header_a_plus_in_a_url_is_a_plus(base: str, name: str) -> None:
    async def use() -> None:
        async with httpx.AsyncClient(base_url=base) as client:
            service = KAgentSessionService(client)
            place = {"app_name": APP, "user_id": f"a+{name}@x.com", "session_id": name}
            await service.append_event(await service.create_session(**place), event_of("hi"))
            assert len((await service.get_session(**place)).events) == 1

    asyncio.run(use())


def test_an_agent_cannot_append_to_the_session_of_another(base: str, name: str) -> None:
    async def use() -> None:
        async with httpx.AsyncClient(base_url=base, headers={"X-Agent-Name": "ns/app"}) as client:
            service = KAgentSessionService(client)
            made = await service.create_session(app_name=APP, user_id=name, session_id=name)
            await service.append_event(made, event_of("mine, however my name is written"))
        async with httpx.AsyncClient(base_url=base, headers={"X-Agent-Name": "ns__NS__other"}) as client:
            with pytest.raises(httpx.HTTPStatusError, match="403"):
                await KAgentSessionService(client).append_event(made, event_of("not mine"))

    asyncio.run(use())


def test_a_link_is_created_listed_and_deleted_by_its_tools(base: str, name: str) -> None:
    async def use() -> None:
        context: Any = SimpleNamespace(session=SimpleNamespace(id=name, app_name=APP))
        async with httpx.AsyncClient(base_url=base, headers={"X-User-Id": name}) as client:
            await KAgentSessionService(client).create_session(app_name=APP, user_id=name, session_id=name)
            text = await CreateShareLinkTool(client).run_async(args={"read_only": True}, tool_context=context)
            (share,) = (await client.get(f"/api/sessions/{name}/shares")).json()["data"]
            assert share["token"] in str(text)
            assert share["token"] in str(await ListShareLinksTool(client).run_async(args={}, tool_context=context))
            args = {"token": share["token"]}
            await DeleteShareLinkTool(client).run_async(args=args, tool_context=context)
            assert (await client.get(f"/api/sessions/{name}/shares")).json()["data"] == []

    asyncio.run(use())


class Embedding:
    """Embeddings without a model: each word has its own direction."""

    async def generate(self, texts: Any) -> Any:
        results = [self._one(item) for item in ([texts] if isinstance(texts, str) else texts)]
        return results[0] if isinstance(texts, str) else results

    def _one(self, text: str) -> list[float]:
        vector = [0.01] * 768
        for word in text.lower().split():
            vector[sum(word.encode()) % 768] = 1.0
        return vector


def test_memories_are_added_and_found(base: str, name: str) -> None:
    async def use() -> None:
        async with httpx.AsyncClient(base_url=base) as client:
            service = KagentMemoryService(agent_name=f"ns__NS__{name}", http_client=client, ttl_days=7)
            service._embedding_client = Embedding()
            entries = [
                MemoryEntry(content=types.Content(role="user", parts=[types.Part(text=text)]))
                for text in ("likes green tea", "works in Vienna")
            ]
            await service.add_memory(app_name=APP, user_id=name, memories=entries)
            result = await service.search_memory(app_name=APP, user_id=name, query="green tea")
            assert result.memories
            assert "green tea" in result.memories[0].content.parts[0].text
            other = await service.search_memory(app_name=APP, user_id="eve", query="green tea")
            assert other.memories == []
            listed = (
                await client.get("/api/memories", params={"agent_name": f"ns__NS__{name}", "user_id": name})
            ).json()
            assert len(listed) == 2
            assert max(row["access_count"] for row in listed) == 1

    asyncio.run(use())


class Echo(BaseAgent):
    """An agent that reports how many messages it has received."""

    async def _run_async_impl(self, ctx: Any) -> AsyncIterator[Event]:
        heard = [event for event in ctx.session.events if event.author == "user"]
        text = f"turn {len(heard)} with {ctx.session.state.get('headers', {}).get('authorization', 'nothing')}"
        content = types.Content(role="model", parts=[types.Part(text=text)])
        yield Event(invocation_id=ctx.invocation_id, author=self.name, content=content)


CARD = AgentCard(
    name="echo",
    description="d",
    url="http://x",
    version="1",
    capabilities=AgentCapabilities(streaming=False),
    default_input_modes=["text"],
    default_output_modes=["text"],
    skills=[],
)


def app_on(base: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A whole ADK app that uses our server."""
    monkeypatch.setattr("kagent.adk._a2a.kagent_url_override", base)  # read from the environment at import
    return KAgentApp(lambda: Echo(name="echo"), CARD, base, APP).build()


def test_secrets_are_not_stored_without_a_key(
    base: str, http: httpx.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(asyncio.run(talk(app_on(base, monkeypatch), name, "one")))
    assert "turn 1 with [withheld" in body
    response = http.get(f"/api/sessions/{name}", params={"user_id": "bob", "order": "asc"}).json()["data"]["events"]
    assert any('"headers"' in row["data"] for row in response)
    assert "very-secret" not in json.dumps(response)
