"""The messages and the timing that all contenders share."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter, process_time
from typing import Any

from .case import Result

SEED = 20_240
MESSAGE_BYTES = 1_024
_OVERHEAD_BYTES = 60  # the role and the punctuation around the text
_WARM_UP = 20

WORDS = (
    "agent answer average batch block branch budget build call chunk client column commit config cost count cursor delete"
    " deploy diff disk edge error event file first frame from graph group have hash index insert into key latency leaf limit"
    " lock loop make median memory merge message model network node offset only order over page parent patch path people plan"
    " policy process prompt query queue read result retry root row schema search secret select server session some span state"
    " step store stream system table text that the their then there they this thread time timeout token tool total trace tree"
    " update user value vector version what when where which will window with worker write would"
).split()

Message = dict[str, str]
Append = Callable[[int, Message], Any]
AsyncAppend = Callable[[int, Message], Awaitable[Any]]
AppendTogether = Callable[[Sequence[Message]], Any]
AsyncAppendTogether = Callable[[Sequence[Message]], Awaitable[Any]]


def messages(count: int, *, seed: int = SEED) -> list[Message]:
    """Return messages of about 1 KB of JSON, in the format of the OpenAI SDK."""
    rng = random.Random(seed)
    return [{"role": rng.choice(("user", "assistant")), "content": _text(rng)} for _ in range(count)]


def _text(rng: random.Random) -> str:
    words: list[str] = []
    size = 0
    while size < MESSAGE_BYTES:
        word = rng.choice(WORDS) if rng.random() > 0.12 else str(rng.randrange(10_000))
        words.append(word)
        size += len(word) + 1
    return " ".join(words)[: MESSAGE_BYTES - _OVERHEAD_BYTES]


def summary(took: Sequence[float], elapsed: float, cpu: float) -> Result:
    """Return the rate, latency and CPU time of many timed operations."""
    ordered = sorted(took)
    return {
        "operations": len(took),
        "rate": round(len(took) / elapsed, 1),
        "p50_us": middle_us(ordered),
        "p95_us": round(ordered[int(len(ordered) * 0.95)] * 1e6, 1),
        "cpu_us": round(cpu / len(took) * 1e6, 1),
    }


def middle_us(took: Sequence[float]) -> float:
    """Return the median in microseconds."""
    return round(statistics.median(took) * 1e6, 1)


def write_for(seconds: float, append: Append) -> Result:
    """Append sequentially from one writer for the given time."""
    supply = messages(256)
    for message in supply[:_WARM_UP]:
        append(0, message)
    took: list[float] = []
    cpu, start = process_time(), perf_counter()
    now = start
    while now - start < seconds:
        before = now
        append(0, supply[len(took) % 256])
        now = perf_counter()
        took.append(now - before)
    return {**summary(took, now - start, process_time() - cpu), "appended": len(took) + _WARM_UP}


async def write_together(seconds: float, append: AsyncAppendTogether, writers: int) -> Result:
    """Append a message to each session in one call, sequentially for the given time."""
    supply = messages(256)
    await append(supply[:writers])
    took: list[float] = []
    cpu, start = process_time(), perf_counter()
    now = start
    while now - start < seconds:
        before, start_at = now, len(took) % (256 - writers)
        await append(supply[start_at : start_at + writers])
        now = perf_counter()
        took += [now - before] * writers
    return {**summary(took, now - start, process_time() - cpu), "appended": len(took) + writers}


async def write_from_many(seconds: float, append: AsyncAppend, writers: int) -> Result:
    """Append from concurrent writers for the given time, each to its own session and one append at a time."""
    first = max(1, _WARM_UP // writers)
    await _write(append, writers, lambda count: count < first)
    end = perf_counter() + seconds
    result = await _write(append, writers, lambda _: perf_counter() < end)
    return {**result, "appended": result["operations"] + first * writers}


async def write_each(count: int, append: AsyncAppend, writers: int) -> Result:
    """Append ``count`` messages from each concurrent writer, without a warm-up."""
    result = await _write(append, writers, lambda done: done < count)
    return {**result, "appended": result["operations"]}


async def _write(append: AsyncAppend, writers: int, more: Callable[[int], bool]) -> Result:
    supply = messages(256)
    took: list[float] = []

    async def write(writer: int) -> None:
        completed = 0
        while more(completed):
            before = perf_counter()
            await append(writer, supply[(writer + completed) % 256])
            took.append(perf_counter() - before)
            completed += 1

    cpu, start = process_time(), perf_counter()
    await asyncio.gather(*map(write, range(writers)))
    return summary(took, perf_counter() - start, process_time() - cpu)
