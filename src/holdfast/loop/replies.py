"""What a model answers, and the one form of it that is kept.

A model is any function from a ``Turn`` to a ``Reply`` (or plain text). Its calls of tools can come as ``calls``, or as the
``tool_use`` blocks of its content; either way they end up in the content, which is what goes into the session's log.
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
    """A tool that the model wants called. Without an ``id`` it gets one; one of the provider's must be new in the run."""

    name: str
    input: Any = {}
    id: str | None = None


class Reply(Struct, frozen=True):
    """What the model has to say.

    ``content`` is text or a list of content blocks, ``calls`` the tools it wants called. ``state``, if given, is the run's state
    from this step on. A reply without calls ends the run, unless it says ``go_on``, or ``pause_s``: go on in so many seconds.
    ``stop`` ends the run in any case, with this reason, after its calls were made.
    """

    content: str | Sequence[Mapping[str, Any]] = ""
    calls: Sequence[ToolRequest] = ()
    usage: Usage | None = None
    state: Any = UNSET
    stop: str | None = None
    go_on: bool = False
    pause_s: float | None = None
    metadata: Mapping[str, Any] | None = None


class Turn(Struct, frozen=True):
    """What a model is asked: the session as far as it fits, who the agent is, and what tools there are."""

    run: Run
    iteration: int
    state: Any
    context: Context
    agent: Agent | None
    blocks: Sequence[Block]
    tools: Sequence[Tool]
    say: Callable[[str], None]
    """Hand on a piece of the answer while it comes in; whoever listens to the loop's events gets it as a ``token``."""

    @property
    def system(self) -> str:
        """The system prompt: the agent's own, its core blocks, and what was summed up before."""
        parts = [self.agent.system] if self.agent is not None and self.agent.system else []
        parts += [f"<{block.label}>\n{block.value}\n</{block.label}>" for block in self.blocks]
        said = [_text(each.content) for each in self.context.messages if each.role == "system"]
        return "\n\n".join([*parts, *said, *([self.context.summary] if self.context.summary else [])])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as ``{"role": ..., "content": [blocks]}``, without what is in ``system``."""
        return [
            {"role": each.role, "content": each.content}
            for each in self.context.messages
            if each.role not in (None, "system")
        ]


class Requested(Struct, frozen=True):
    """A call that stands in a reply."""

    id: str
    name: str
    input: Any


class Said(Struct, frozen=True, omit_defaults=True):
    """A reply in the form that is kept in the intent, so that nobody has to ask the model twice."""

    content: list[dict[str, Any]]
    input_tokens: int = 0
    output_tokens: int = 0
    state: Any | UnsetType = UNSET
    stop: str | None = None
    go_on: bool = False
    pause_s: float | None = None
    metadata: dict[str, Any] | None = None

    @property
    def requests(self) -> list[Requested]:
        """The calls in it, in order."""
        calls = [block for block in self.content if block.get("type") == "tool_use"]
        return [Requested(block["id"], block["name"], block.get("input")) for block in calls]

    @property
    def text(self) -> str:
        """Its words."""
        return _text(self.content)

    def recorded(self) -> Any:
        """It as JSON for the ledger."""
        return msgspec.to_builtins(self)


def said_of(reply: object, iteration: int) -> Said:
    """A model's answer, checked.

    Raises:
        InvalidInput: it is neither text nor a ``Reply``, or something in it cannot be used.
    """
    if isinstance(reply, str):
        reply = Reply(reply)
    if not isinstance(reply, Reply):
        raise InvalidInput(f"a model answers a Reply or text, not {type(reply).__name__}")
    if reply.pause_s is not None and not _is_time(reply.pause_s):
        raise InvalidInput(f"pause_s is a number of seconds from 0 on, not {reply.pause_s!r}")
    usage = reply.usage or Usage()
    try:
        content = _with_ids([*_blocks(reply.content), *map(_block, reply.calls)], iteration)
        state = reply.state if reply.state is UNSET else msgspec.to_builtins(reply.state)
        metadata = None if reply.metadata is None else dict(reply.metadata)
    except (TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(f"the model's answer is not JSON: {error}") from None
    return Said(
        content,
        usage.input_tokens,
        usage.output_tokens,
        state,
        reply.stop,
        bool(reply.go_on),
        reply.pause_s,
        metadata,
    )


def recorded_reply(stored: object) -> Said:
    """What ``recorded`` made."""
    return msgspec.convert(stored, Said)


def _is_time(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 1e9


def _blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    plain = msgspec.to_builtins(content)
    if not isinstance(plain, list | tuple) or not all(isinstance(block, dict) for block in plain):
        raise InvalidInput("the content of a reply is text or a list of content blocks")
    return [*plain]


def _block(call: ToolRequest) -> dict[str, Any]:
    block = {"type": "tool_use", "name": call.name, "input": msgspec.to_builtins(call.input)}
    return block if call.id is None else {**block, "id": call.id}


def _with_ids(content: list[dict[str, Any]], iteration: int) -> list[dict[str, Any]]:
    """The same blocks; calls that came without an id are numbered, so that asking again would give the same."""
    place, seen = 0, set()
    for block in content:
        if block.get("type") != "tool_use":
            continue
        place += 1
        block["id"] = block.get("id") or f"call-{iteration}-{place}"
        if not isinstance(block.get("name"), str) or not isinstance(block["id"], str) or block["id"] in seen:
            raise InvalidInput("every call of a tool needs a name, and an id that no other call of the reply has")
        seen.add(block["id"])
    return content


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block.get("type") == "text" and "text" in block)
