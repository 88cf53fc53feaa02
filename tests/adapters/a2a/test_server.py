"""An A2A server of the SDK on our stores: a second server continues the work of the first."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, Part
from starlette.applications import Starlette

from holdfast import AsyncTenantHandle
from holdfast.adapters.a2a import HoldfastPushNotificationConfigStore, HoldfastTaskStore
from tests.adapters.a2a.conftest import Use


class Echo(AgentExecutor):
    """An agent that repeats its input and waits for more."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        from a2a.helpers import new_task_from_user_message

        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await updater.add_artifact([Part(text=f"heard {context.get_user_input()}")])
        await updater.requires_input()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def server(tenant: AsyncTenantHandle) -> Starlette:
    """Return an A2A server that stores its data in a tenant."""
    card = AgentCard(
        name="echo",
        description="d",
        version="1",
        capabilities=AgentCapabilities(push_notifications=True),
        supported_interfaces=[AgentInterface(url="http://app/", protocol_binding="JSONRPC", protocol_version="1.0")],
        default_input_modes=["text"],
        default_output_modes=["text"],
    )
    handler = DefaultRequestHandler(
        agent_executor=Echo(),
        task_store=HoldfastTaskStore(tenant),
        agent_card=card,
        push_config_store=HoldfastPushNotificationConfigStore(tenant),
    )
    return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])


async def ask(tenant: AsyncTenantHandle, method: str, **params: Any) -> Any:
    """Make one call over JSON-RPC."""
    transport = httpx.ASGITransport(app=server(tenant))
    body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        answer = (await client.post("/", json=body, headers={"A2A-Version": "1.0"})).json()
    assert "result" in answer, answer
    return answer["result"]


def said(text: str, **more: Any) -> dict[str, Any]:
    """Return a message of the user."""
    return {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], **more}


def test_a_task_continues_on_another_server(on: Use) -> None:
    first = asyncio.run(on(lambda tenant: ask(tenant, "SendMessage", message=said("one"))))["task"]
    assert first["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    where = {"taskId": first["id"], "contextId": first["contextId"]}
    second = asyncio.run(on(lambda tenant: ask(tenant, "SendMessage", message=said("two", **where))))["task"]
    assert second["id"] == first["id"]
    texts = [part["text"] for artifact in second["artifacts"] for part in artifact["parts"]]
    assert texts == ["heard one", "heard two"]
    read = asyncio.run(on(lambda tenant: ask(tenant, "GetTask", id=first["id"])))
    assert read["artifacts"] == second["artifacts"]
    listed = asyncio.run(on(lambda tenant: ask(tenant, "ListTasks", contextId=first["contextId"])))
    assert [task["id"] for task in listed["tasks"]] == [first["id"]]


def test_a_push_configuration_is_available_on_another_server(on: Use) -> None:
    task = asyncio.run(on(lambda tenant: ask(tenant, "SendMessage", message=said("one"))))["task"]["id"]
    config = {"taskId": task, "id": "mine", "url": "https://example.test/hook"}
    asyncio.run(on(lambda tenant: ask(tenant, "CreateTaskPushNotificationConfig", **config)))
    result = asyncio.run(on(lambda tenant: ask(tenant, "GetTaskPushNotificationConfig", taskId=task, id="mine")))
    assert result["url"] == "https://example.test/hook"
    with pytest.raises(AssertionError):
        asyncio.run(on(lambda tenant: ask(tenant, "GetTaskPushNotificationConfig", taskId=task, id="other")))
