"""Appends and steps that wait together are distributed among the lanes, and each is stored unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from holdfast import AsyncHoldfast, AsyncTenantHandle, NewMessage, NewToolCall, Usage
from holdfast.engines.postgres.batcher import SPLIT_FROM, Batcher
from holdfast.types import Run, Session
from tests.engines.postgres_handles import crowd, soon


@pytest.mark.parametrize(("waiting", "answered"), [(SPLIT_FROM, SPLIT_FROM // 2), (SPLIT_FROM - 1, 0)])
def test_a_long_queue_is_split_between_two_lanes(waiting: int, answered: int, postgres_url: str) -> None:
    """Another transaction holds one session: items in the same batch wait, and items in the other lane do not."""

    async def main() -> None:
        async with AsyncHoldfast(postgres_url) as hf:
            acme = hf.tenant("acme")
            sessions = [await acme.sessions.create() for _ in range(waiting)]
            await crowd(acme)
            with psycopg.connect(postgres_url) as other:
                other.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [sessions[0].id])
                appends = [
                    asyncio.create_task(acme.messages.append(session.id, role="user", content="hello"))
                    for session in sessions
                ]
                completed, pending = await asyncio.wait(
                    appends, timeout=60 if answered else 2, return_when="FIRST_COMPLETED"
                )
                assert len(completed) == answered
                other.rollback()
            await soon(asyncio.gather(*pending))
            assert [(await acme.sessions.get(session.id)).message_count for session in sessions] == [1] * waiting

    asyncio.run(main())


def test_while_one_lane_is_busy_the_other_takes_all_waiting_items(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise half of the items would wait for the busy lane."""
    sent: list[int] = []
    send = Batcher._send_batch

    async def noting(self: Batcher, connection: Any, taken: Any) -> None:
        sent.append(len(taken))
        await send(self, connection, taken)

    async def main() -> None:
        async with AsyncHoldfast(postgres_url) as hf:
            acme = hf.tenant("acme")
            sessions = [await acme.sessions.create() for _ in range(2 * SPLIT_FROM)]
            await crowd(acme)
            monkeypatch.setattr(Batcher, "_send_batch", noting)

            def append_to(some: Sequence[Session]) -> list[asyncio.Task[Any]]:
                ids = [session.id for session in some]
                return [asyncio.create_task(acme.messages.append(item, role="user", content="hello")) for item in ids]

            with psycopg.connect(postgres_url) as other:
                other.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [sessions[0].id])
                held, free = append_to(sessions[:SPLIT_FROM]), append_to(sessions[SPLIT_FROM:])
                await soon(asyncio.gather(*free))
                assert sent == [SPLIT_FROM, SPLIT_FROM]
                await soon(asyncio.gather(*append_to(sessions[SPLIT_FROM:])))
                assert sent == [SPLIT_FROM] * 3
                assert not any(item.done() for item in held)
                other.rollback()
            await soon(asyncio.gather(*held))

    asyncio.run(main())


def test_ordinary_and_special_writes_can_share_a_batch(postgres_url: str) -> None:
    """A column with only default values is not sent. Each message differs in one field, with default ones before and after it."""
    unusual = [
        NewMessage(role="user", content="tokens", token_count=7),
        NewMessage(role="user", content="metadata", token_count=0, metadata={"a": [1, None]}),
        NewMessage(role="assistant", content="summary", token_count=0, is_summary=True),
        NewMessage(role="user", content="preserved", token_count=0, is_preserved=True),
        NewMessage(kind="item", content={"raw": True}, token_count=0),
    ]
    usual = NewMessage(role="user", content="usual", token_count=0)

    async def main() -> None:
        async with AsyncHoldfast(postgres_url) as hf:
            acme = hf.tenant("acme")
            for odd in [*unusual, usual]:
                sessions = [await acme.sessions.create() for _ in range(3)]
                sent = [[usual], [usual, odd, usual], [usual]]
                answers = await asyncio.gather(
                    *(acme.messages.append_many(session.id, new) for session, new in zip(sessions, sent, strict=True))
                )
                for session, new, answer in zip(sessions, sent, answers, strict=True):
                    saved = list(await acme.messages.list(session.id))
                    assert saved == list(answer)
                    assert [item.seq for item in saved] == list(range(1, len(new) + 1))
                    assert [(item.kind, item.role, item.token_count, item.metadata) for item in saved] == [
                        (item.kind, item.role, item.token_count or 0, item.metadata or {}) for item in new
                    ]
                    assert [(item.is_preserved, item.is_summary) for item in saved] == [
                        (item.is_preserved, item.is_summary) for item in new
                    ]
                    counted = await acme.sessions.get(session.id)
                    tokens = sum(item.token_count or 0 for item in new)
                    assert (counted.message_count, counted.token_count) == (len(new), tokens)

    asyncio.run(main())


def test_steps_without_messages_are_stored_unchanged(postgres_url: str) -> None:
    """They are committed by a separate statement, which omits columns with only default values."""
    unusual: list[dict[str, Any]] = [
        {"last_tool_result": ""},
        {"snapshot": "a snapshot"},
        {"usage": Usage(input_tokens=3)},
        {"usage": Usage(output_tokens=5)},
        {},
    ]

    async def main() -> None:
        async with AsyncHoldfast(postgres_url) as hf:
            acme = hf.tenant("acme")
            runs = [await claimed(acme) for _ in range(3)]
            for number, odd in enumerate(unusual, 1):
                arguments: list[dict[str, Any]] = [{}, odd, {}]
                completed = await asyncio.gather(
                    *(
                        acme.runs.step(run.id, epoch=run.epoch, iteration=number, state={"n": number}, **more)
                        for run, more in zip(runs, arguments, strict=True)
                    )
                )
                for run, more, item in zip(runs, arguments, completed, strict=True):
                    step = await acme.steps.get(run.id, number)
                    assert item.step == step
                    usage = more.get("usage", Usage())
                    assert step.state == {"n": number}
                    assert (step.last_tool_result, step.snapshot) == (
                        more.get("last_tool_result"),
                        more.get("snapshot"),
                    )
                    assert (step.input_tokens, step.output_tokens) == (usage.input_tokens, usage.output_tokens)
            totals = await acme.runs.get(runs[1].id)
            assert (totals.iteration, totals.input_tokens, totals.output_tokens) == (len(unusual), 3, 5)

    asyncio.run(main())


def test_a_progress_step_includes_decisions_made_in_the_meantime(postgres_url: str) -> None:
    async def main() -> None:
        async with AsyncHoldfast(postgres_url) as hf:
            acme = hf.tenant("acme")
            run, other = await claimed(acme), await claimed(acme)
            await acme.tool_calls.intend(
                run.id, epoch=run.epoch, calls=[NewToolCall(id="a", tool_name="t", tool_input={})]
            )
            await acme.tool_calls.cancel(run.id, "a")
            await asyncio.gather(
                *(acme.runs.step(item.id, epoch=item.epoch, iteration=1, state=None) for item in (run, other))
            )
            (call,) = await acme.tool_calls.list(run.id)
            assert (call.status, call.step) == ("cancelled", 1)
            assert (await acme.runs.get(other.id)).iteration == 1

    asyncio.run(main())


async def claimed(acme: AsyncTenantHandle) -> Run:
    """Return a claimed run."""
    started = await acme.runs.start((await acme.sessions.create()).id)
    lease = await acme.leases.claim("test", run_id=started.id, ttl_ms=600_000)
    assert lease is not None
    return lease
