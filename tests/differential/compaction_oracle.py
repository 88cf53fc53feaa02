"""A second, slow and simple implementation of the rules of compactions, written from the guarantees alone."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from holdfast import CompactionPolicy, NewMessage
from holdfast.core.text import dump
from holdfast.stores.conversation.tokens import estimate
from holdfast.types import Message

WORDS = ["alpha", "beta \x00", "\ud800", "naïve", "世界", "\U0010f801", "line\nline", '"quoted"', "\\", "x" * 90]
NUMBERS = [0, -1, 2**63, 10**30, 1.0, 1e16, -1e300, 5e-324, True, None]


def random_text(random: Random) -> str:
    """Return a few words, or a few pages."""
    return " ".join(random.choices(WORDS, k=random.choice((1, 2, 3, 8, 40))))


def random_json(random: Random) -> Any:
    """Return a random JSON value."""
    return random.choice(
        [random_text(random), random.choice(NUMBERS), [random.choice(NUMBERS), {}], {random_text(random): [1, 1.0]}]
    )


def random_messages(random: Random, count: int, tools: list[str]) -> list[NewMessage]:
    """Return messages of all kinds. Calls and results use few ids, so that these repeat and occur in every order."""
    return [_random_message(random, tools) for _ in range(count)]


def random_policy(random: Random) -> CompactionPolicy:
    """Return a random policy for small sessions."""
    window = random.choice((50, 400, 3_000))
    return CompactionPolicy(
        strategy=random.choice(("hybrid", "summarization")),
        trigger=random.choice((0.01, 0.5, 1.0)),
        window_tokens=window,
        target_tokens=random.randrange(1, window),
        preserve_last=random.choice((0, 0, 1, 3, 10)),
        protected_tokens=random.choice((0, 0, 1, 40, 300)),
        keep_tool_outputs=random.random() < 0.2,
        prune_tokens=random.choice((0, 1, 50, 1_000)),
    )


def tokens(message: Message) -> int:
    """Return the stored count, or else the estimate."""
    return message.token_count if message.token_count > 0 else estimate(message.content)


def total(messages: Sequence[Message]) -> int:
    """Count tokens independently of the stores."""
    return sum(map(tokens, messages))


def untouchable(messages: Sequence[Message], policy: CompactionPolicy) -> set[str]:
    """Return the ids of messages that a compaction must not change."""
    protected_ids = {message.id for message in messages if message.is_preserved or message.role == "system"}
    for number in range(1, policy.preserve_last + 1):
        if number <= len(messages):
            protected_ids.add(messages[-number].id)
    for number in range(1, len(messages) + 1):
        if policy.protected_tokens and total(messages[-number:]) <= policy.protected_tokens:
            protected_ids.add(messages[-number].id)
    return protected_ids


def pairs(messages: Sequence[Message]) -> list[tuple[int, int | None]]:
    """Return pairs of indexes of calls and results. A result belongs to the nearest call without a result, or else to the nearest
    call; a call without a result is paired with ``None``."""
    calls: list[tuple[int, str]] = []
    found_pairs: list[tuple[tuple[int, str], int]] = []
    for message in messages:
        for name, tool in _halves_in_order(message):
            if name == "tool_use":
                calls.append((message.seq, tool))
                continue
            before = [call for call in reversed(calls) if call[1] == tool]
            free = [call for call in before if all(call != answered for answered, _ in found_pairs)]
            found_pairs += [(call, message.seq) for call in (free or before)[:1]]
    unanswered = [call for call in calls if all(call != other for other, _ in found_pairs)]
    return [*((call[0], result) for call, result in found_pairs), *((call[0], None) for call in unanswered)]


def bound(messages: Sequence[Message], stays: set[int]) -> set[int]:
    """Return these messages, and all messages connected to them by tool pairs."""
    held = pairs(messages)
    while True:
        more = {id for pair in held if None not in pair and stays & {*pair} for id in pair if id is not None}
        if more <= stays:
            return stays
        stays |= more


def removable(messages: Sequence[Message], policy: CompactionPolicy) -> list[Message]:
    """Return the removable messages: none that is untouchable, no call without a result, and no half of a pair."""
    fixed = untouchable(messages, policy)
    stays = {message.seq for message in messages if message.id in fixed}
    stays = bound(messages, stays | {call for call, result in pairs(messages) if result is None})
    return [message for message in messages if message.seq not in stays]


def without_outputs(message: Message) -> Message:
    """Return a message whose tool outputs are replaced by the mark, if they are longer than it."""
    mark = "[tool output removed]"
    content = [
        {**block, "content": mark}
        if block["type"] == "tool_result" and len(dump(block["content"]).encode()) > len(dump(mark))
        else block
        for block in message.content
    ]
    return replace(message, content=content)


def pairs_are_whole(before: Sequence[Message], after: Sequence[Message]) -> bool:
    """Return whether each remaining call has all its results, each result its call, and none the result of another."""
    left = {message.seq for message in after}
    expected = [(call, result) for call, result in pairs(before) if call in left or result in left]
    return sorted(expected, key=str) == sorted(pairs(after), key=str)


def _halves_in_order(message: Message) -> list[tuple[str, str]]:
    """Return the calls and results in a message, each once."""
    ids = {"tool_use": "id", "tool_result": "tool_use_id"}
    blocks = message.content if message.kind == "message" else []
    return [*dict.fromkeys((block["type"], block[ids[block["type"]]]) for block in blocks if block["type"] in ids)]


def _random_message(random: Random, tools: list[str]) -> NewMessage:
    how: dict[str, Any] = {
        "is_preserved": random.random() < 0.1,
        "is_summary": random.random() < 0.1,
        "token_count": random.choice((0, 0, 0, 1, 20, 500)),
        "metadata": {"m": random_json(random)} if random.random() < 0.3 else None,
    }
    if random.random() < 0.15:
        return NewMessage(
            kind="adk.event", role=random.choice((None, "user", "system")), content=random_json(random), **how
        )
    role = random.choice(("user", "user", "assistant", "assistant", "assistant", "system"))
    return NewMessage(role=role, content=_random_blocks(random, tools), **how)


def _random_blocks(random: Random, tools: list[str]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        kind = random.random()
        if kind < 0.5:
            blocks.append({"type": "text", "text": random_text(random)})
        elif kind < 0.75:
            tool = {"id": random.choice(tools), "name": "look", "input": {"q": random_json(random)}}
            blocks.append({"type": "tool_use", **tool})
        else:
            output = random.choice((random_text(random), "o" * 500, [{"type": "text", "text": "p" * 600}]))
            blocks.append({"type": "tool_result", "tool_use_id": random.choice(tools), "content": output})
    return blocks
