"""Converts a reply and the outcomes of its calls to messages of the session's log, as models expect them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast import NewMessage, ToolOutcome

from .replies import NormalizedReply


def messages_of(reply: NormalizedReply, outcomes: Sequence[ToolOutcome]) -> list[NewMessage]:
    """Return the messages of the reply and of the results of its calls.

    The token count of the reply is the output tokens that the model reported, if it did. Discarded calls are left out.
    """
    discarded = {outcome.id for outcome in outcomes if outcome.status == "discarded"}
    content = [block for block in reply.content if block.get("id") not in discarded or block.get("type") != "tool_use"]
    results = [block_of(outcome) for outcome in outcomes if outcome.id not in discarded]
    messages = []
    if content:
        tokens = 0 if discarded else reply.output_tokens
        messages.append(NewMessage(role="assistant", content=content, token_count=tokens, metadata=reply.metadata))
    if results:
        messages.append(NewMessage(role="user", content=results))
    return messages


def block_of(outcome: ToolOutcome) -> dict[str, Any]:
    """Return the ``tool_result`` block of an outcome."""
    block = {"type": "tool_result", "tool_use_id": outcome.id, "content": text_of(outcome)}
    return block if outcome.status == "finished" else {**block, "is_error": True}


def text_of(outcome: ToolOutcome) -> str:
    """Return an outcome as text for the model."""
    if outcome.status == "finished":
        result = outcome.result
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    if outcome.status == "cancelled":
        return f"this call was cancelled{f': {outcome.error}' if outcome.error else ''}"
    return outcome.error or str(outcome.status)
