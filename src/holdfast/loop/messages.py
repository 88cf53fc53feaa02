"""What an iteration adds to the session's log, in the words that models understand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast import NewMessage, ToolOutcome

from .replies import Said


def messages_of(said: Said, outcomes: Sequence[ToolOutcome]) -> list[NewMessage]:
    """The reply, and the results of its calls. A reply has as many tokens as the model was paid for, if it says so."""
    dropped = {each.id for each in outcomes if each.status == "discarded"}
    content = [block for block in said.content if block.get("id") not in dropped or block.get("type") != "tool_use"]
    results = [block_of(each) for each in outcomes if each.id not in dropped]
    messages = []
    if content:
        tokens = 0 if dropped else said.output_tokens
        messages.append(NewMessage(role="assistant", content=content, token_count=tokens, metadata=said.metadata))
    if results:
        messages.append(NewMessage(role="user", content=results))
    return messages


def block_of(outcome: ToolOutcome) -> dict[str, Any]:
    """What the model is told a call came to."""
    block = {"type": "tool_result", "tool_use_id": outcome.id, "content": text_of(outcome)}
    return block if outcome.status == "finished" else {**block, "is_error": True}


def text_of(outcome: ToolOutcome) -> str:
    """The same in words."""
    if outcome.status == "finished":
        result = outcome.result
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    if outcome.status == "cancelled":
        return f"this call was cancelled{f': {outcome.error}' if outcome.error else ''}"
    return outcome.error or str(outcome.status)
