"""The input and the reply of a model, and the normalized reply that is stored.

A model is any function from a ``ModelTurn`` to a ``Reply`` (or plain text). Its tool calls can be in ``calls`` or in the
``tool_use`` blocks of its content; either way they end up in the content, which goes into the session's log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from holdfast import Usage
from holdfast.errors import InvalidInput
from holdfast.types import Agent, Block, Context, Run

if TYPE_CHECKING:
    from .tools import Tool


class ToolRequest(Struct, frozen=True):
    """A tool call that the model requests. Without an ``id`` it gets one; a provider's id must be unique in the run."""

    name: str
    input: Any = {}
    id: str | None = None


class Reply(Struct, frozen=True):
    """The model's reply.

    ``content`` is text or a list of content blocks, ``calls`` the tools to call. ``state``, if set, is the run's state from this
    step on. A reply without calls ends the run, unless it sets ``continue_run``, or ``pause_s``: continue after these seconds.
    ``stop`` ends the run in any case, with this reason, after its calls were made.
    """

    content: str | Sequence[Mapping[str, Any]] = ""
    calls: Sequence[ToolRequest] = ()
    usage: Usage | None = None
    state: Any = UNSET
    stop: str | None = None
    continue_run: bool = False
    pause_s: float | None = None
    metadata: Mapping[str, Any] | None = None


class ModelTurn(Struct, frozen=True):
    """The input of a model: the part of the session that fits, the agent's definition and the tools."""

    run: Run
    iteration: int
    state: Any
    context: Context
    agent: Agent | None
    blocks: Sequence[Block]
    tools: Sequence[Tool]
    say: Callable[[str], None]
    """Emit a piece of the reply while it streams in, as a ``token`` event."""

    @property
    def system(self) -> str:
        """The system prompt: the agent's own prompt, its core blocks, system messages and the summary of older messages."""
        parts = [self.agent.system] if self.agent is not None and self.agent.system else []
        parts += [f"<{block.label}>\n{block.value}\n</{block.label}>" for block in self.blocks]
        parts += [_text(message.content) for message in self.context.messages if message.role == "system"]
        return "\n\n".join([*parts, *([self.context.summary] if self.context.summary else [])])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as ``{"role": ..., "content": [blocks]}``, without the messages that are in ``system``."""
        return [
            {"role": message.role, "content": message.content}
            for message in self.context.messages
            if message.role not in (None, "system")
        ]


class RequestedCall(Struct, frozen=True):
    """A tool call of a reply, with its id."""

    id: str
    name: str
    input: Any


class NormalizedReply(Struct, frozen=True, omit_defaults=True, rename={"continue_run": "go_on"}):
    """A reply in the form that is stored in the intent, so that the model is not asked twice."""

    content: list[dict[str, Any]]
    input_tokens: int = 0
    output_tokens: int = 0
    state: Any | UnsetType = UNSET
    stop: str | None = None
    continue_run: bool = False
    pause_s: float | None = None
    metadata: dict[str, Any] | None = None

    @property
    def requests(self) -> list[RequestedCall]:
        """The calls of the reply, in order."""
        calls = [block for block in self.content if block.get("type") == "tool_use"]
        return [RequestedCall(block["id"], block["name"], block.get("input")) for block in calls]

    @property
    def text(self) -> str:
        """The text of the reply."""
        return _text(self.content)

    def to_json(self) -> Any:
        """Return the reply as plain JSON values for the ledger."""
        return msgspec.to_builtins(self)


def normalize_reply(reply: object, iteration: int) -> NormalizedReply:
    """Validate a model's answer and return it in the stored form.

    Raises:
        InvalidInput: it is neither text nor a ``Reply``, or a part of it is invalid.
    """
    if isinstance(reply, str):
        reply = Reply(reply)
    if not isinstance(reply, Reply):
        raise InvalidInput(f"a model must return a Reply or text, not {type(reply).__name__}", field="model")
    if reply.pause_s is not None and not _is_duration(reply.pause_s):
        raise InvalidInput(f"pause_s must be 0 or more seconds, not {reply.pause_s!r}", field="pause_s")
    usage = reply.usage or Usage()
    try:
        content = _with_ids([*_blocks(reply.content), *map(_block, reply.calls)], iteration)
        state = reply.state if reply.state is UNSET else msgspec.to_builtins(reply.state)
        metadata = None if reply.metadata is None else dict(reply.metadata)
    except (TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(f"the model's reply is not JSON: {error}", field="reply") from None
    return NormalizedReply(
        content,
        usage.input_tokens,
        usage.output_tokens,
        state,
        reply.stop,
        bool(reply.continue_run),
        reply.pause_s,
        metadata,
    )


def decode_reply(value: object) -> NormalizedReply:
    """Return the reply that ``to_json`` encoded."""
    return msgspec.convert(value, NormalizedReply)


def _is_duration(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 1e9


def _blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    plain = msgspec.to_builtins(content)
    if not isinstance(plain, list | tuple) or not all(isinstance(block, dict) for block in plain):
        raise InvalidInput("the content of a reply must be text or a list of content blocks", field="content")
    return [*plain]


def _block(call: ToolRequest) -> dict[str, Any]:
    block = {"type": "tool_use", "name": call.name, "input": msgspec.to_builtins(call.input)}
    return block if call.id is None else {**block, "id": call.id}


def _with_ids(content: list[dict[str, Any]], iteration: int) -> list[dict[str, Any]]:
    """Return the blocks with ids for calls that had none: by their number, so that the ids are the same after a retry."""
    number, seen = 0, set()
    for block in content:
        if block.get("type") != "tool_use":
            continue
        number += 1
        block["id"] = block.get("id") or f"call-{iteration}-{number}"
        if not isinstance(block.get("name"), str) or not isinstance(block["id"], str) or block["id"] in seen:
            raise InvalidInput("every tool call needs a name, and an id that is unique in the reply", field="calls")
        seen.add(block["id"])
    return content


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block.get("type") == "text" and "text" in block)
