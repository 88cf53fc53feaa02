"""One turn with an A2A app in this process."""

from __future__ import annotations

from typing import Any

import httpx


async def talk(app: Any, context: str, text: str) -> dict[str, Any]:
    """Run one turn and return its result."""
    message = {"role": "user", "kind": "message", "messageId": text, "contextId": context}
    body = {
        "jsonrpc": "2.0",
        "id": "1",
        "method": "message/send",
        "params": {"message": {**message, "parts": [{"kind": "text", "text": text}]}},
    }
    headers = {"x-user-id": "bob", "authorization": "Bearer very-secret"}
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app", timeout=60) as client:
        answer = (await client.post("/", json=body, headers=headers)).json()
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result
