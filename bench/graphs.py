"""Benchmark of LangGraph savers in a growing conversation: bytes on disk, time per turn, and time to read the state.

A turn is a message and a reply of about 1 KB each. It writes three checkpoints and the writes of the tasks. All savers run the
same graph; LangGraph's own savers also run it with ``DeltaChannel``, which requires a change of the graph. No model is called.
Each step is durable before the next begins. The words are random, so that they compress about as well as real text within a
message, but hardly across messages.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import wraps
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

from .case import Case, Engine, Job, Result
from .workload import SEED, middle_us

GROUP = "langgraph"
NOTHING_SAVED_SYNC, NOTHING_SAVED = "nothing saved", "nothing saved, async"
"""The floor, LangGraph's own time: a saver that keeps the state in memory and returns it unchanged."""
TURNS = 500
MARKS = (5, 50, 100, 200, 300, 400, 500)
"""Numbers of turns after which everything is measured."""
WINDOW = 20
"""Number of turns over which the median time of a turn is taken."""
LISTED = 100
READS = 15
MESSAGE_CHARS = 1_000
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_CALLS = ("put", "put_writes", "get_tuple", "get_delta_channel_history")
Config = Any
Saver = Any


def cases() -> list[Case]:
    """Return one case per saver."""
    return [
        Case(GROUP, name, environment="langgraph", engine=engine, params={"turns": TURNS})
        for name, (engine, *_) in CONTENDERS.items()
    ]


def run(job: Job) -> Result:
    """Run the conversation and measure at every mark."""
    return asyncio.run(_run(job))


async def _run(job: Job) -> Result:
    engine, opened, is_async, is_delta = CONTENDERS[job.contender]
    address = job.place if engine == "postgres" else str(Path(job.place) / "chat.db")
    output = texts(2 * job.params["turns"])
    async with AsyncExitStack() as stack:
        saver = await stack.enter_async_context(opened(address))
        talk = Talk(saver, output, is_async=is_async, is_delta=is_delta)
        saved = _nothing if engine == "none" else _stored
        empty = saved(address)
        result: Result = {}
        for turn in range(1, job.params["turns"] + 1):
            await talk.turn(turn)
            if turn in MARKS:
                result |= talk.figures(turn) | {f"bytes_{turn}": saved(address) - empty}
        result |= await talk.reading()
    slower = {"saver_growth": round(result[f"saver_us_{TURNS}"] / result["saver_us_50"], 2)}
    if engine == "none":
        return result | slower
    async with opened(address) as fresh:
        result |= {"latest_new_us": await Talk(fresh, output, is_async=is_async, is_delta=is_delta).latest(1)}
    last, payload = result[f"bytes_{TURNS}"], sum(map(len, output))
    growth = {"bytes_growth": round(last / result["bytes_50"], 2), "payload_ratio": round(last / payload, 3)}
    return {**result, **growth, **slower, "bytes": last}


def texts(count: int) -> list[str]:
    """Yield messages of 1,000 characters."""
    source = random.Random(SEED)
    return [_text(source) for _ in range(count)]


def _text(source: random.Random) -> str:
    words = ("".join(source.choices(_SYLLABLES, k=source.randrange(1, 4))) for _ in range(260))
    return " ".join(words)[:MESSAGE_CHARS]


class Talk:
    """A conversation with one saver, and its measurements."""

    def __init__(self, saver: Saver, said: list[str], *, is_async: bool, is_delta: bool) -> None:
        self._saver, self._said, self._async = saver, said, is_async
        self._config: Config = {"configurable": {"thread_id": "chat"}}
        self._turns: list[float] = []
        self._inside: list[float] = []
        self._spent = 0.0
        for name in _CALLS:
            self._time(f"a{name}" if is_async else name)
        self._graph = self._built(is_delta)

    async def turn(self, number: int) -> None:
        """Run one turn: a message and its reply."""
        from langchain_core.messages import HumanMessage

        text = self._said[2 * number - 2]
        new = {"messages": [HumanMessage(text, id=f"h{number}")]}
        self._spent = 0.0
        began = perf_counter()
        if self._async:
            await self._graph.ainvoke(new, self._config, durability="sync")
        else:
            self._graph.invoke(new, self._config, durability="sync")
        self._turns.append(perf_counter() - began)
        self._inside.append(self._spent)

    def figures(self, turn: int) -> Result:
        """Return the recent median time of a turn, and the part of it spent in the saver."""
        return {
            f"turn_us_{turn}": middle_us(self._turns[-WINDOW:]),
            f"saver_us_{turn}": middle_us(self._inside[-WINDOW:]),
        }

    async def reading(self) -> Result:
        """Measure reading the latest state and listing checkpoints."""
        listed = []
        for _ in range(5):
            began = perf_counter()
            count = (
                len([item async for item in self._saver.alist(self._config, limit=LISTED)])
                if self._async
                else len(list(self._saver.list(self._config, limit=LISTED)))
            )
            listed.append(perf_counter() - began)
            assert count == LISTED
        loop = {"loop_us": round(sum(self._turns) * 1e6)}
        return {**loop, "latest_us": await self.latest(READS), "list_us": round(median(listed) * 1e6, 1)}

    async def latest(self, times: int) -> float:
        """Read the latest state."""
        took = []
        for _ in range(times):
            began = perf_counter()
            state = await self._graph.aget_state(self._config) if self._async else self._graph.get_state(self._config)
            took.append(perf_counter() - began)
            assert len(state.values["messages"]) == len(self._said)
        return round(median(took) * 1e6, 1)

    def _built(self, is_delta: bool) -> Any:
        from langchain_core.messages import AIMessage
        from langgraph.graph import END, START, StateGraph

        def answer(state: Any) -> dict[str, Any]:
            turn = state.get("turn", 0) + 1
            return {"messages": [AIMessage(self._said[2 * turn - 1], id=f"a{turn}")], "turn": turn}

        graph = StateGraph(_state(is_delta))
        graph.add_node("model", answer)
        graph.add_edge(START, "model")
        graph.add_edge("model", END)
        return graph.compile(checkpointer=self._saver)

    def _time(self, name: str) -> None:
        """Wrap a method of the saver to measure the time spent in it."""
        method = getattr(self._saver, name)

        @contextmanager
        def counted() -> Iterator[None]:
            began = perf_counter()
            try:
                yield
            finally:
                self._spent += perf_counter() - began

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with counted():
                return method(*args, **kwargs)

        @wraps(method)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            with counted():
                return await method(*args, **kwargs)

        setattr(self._saver, name, acall if self._async else call)


def _state(is_delta: bool) -> Any:
    from langgraph.channels import DeltaChannel
    from langgraph.graph.message import _messages_delta_reducer, add_messages
    from typing_extensions import TypedDict

    merge = DeltaChannel(_messages_delta_reducer) if is_delta else add_messages
    return TypedDict("State", {"messages": Annotated[list, merge], "turn": int}, total=False)


def _nothing(address: str) -> int:
    return 0


_SIZE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("PRAGMA page_count").fetchone()[0] * connection.execute("PRAGMA page_size").fetchone()[0])
"""


def _stored(address: str) -> int:
    """Return the size of the database on disk, without its write-ahead log."""
    if not address.startswith("postgresql:"):
        # In a separate process: two SQLite libraries in one process release each other's locks.
        command = [sys.executable, "-c", _SIZE, address]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        sizes = (
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c WHERE c.relkind = 'r' AND c.relnamespace = {}"
        )
        row = connection.execute(sizes.format("'public'::regnamespace").encode()).fetchone()
        return int(row[0] or 0) if row else 0


@asynccontextmanager
async def holdfast(address: str) -> AsyncIterator[Saver]:
    from holdfast.adapters.langgraph import HoldfastSaver

    async with HoldfastSaver(address) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def holdfast_async(address: str) -> AsyncIterator[Saver]:
    from holdfast.adapters.langgraph import HoldfastSaver

    async with HoldfastSaver(address) as saver:
        await saver.asetup()
        yield saver


@asynccontextmanager
async def nothing_saved(address: str) -> AsyncIterator[Saver]:
    from .unsaved import Unsaved

    yield Unsaved(LISTED)


@asynccontextmanager
async def sqlite(address: str) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(address) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def sqlite_async(address: str) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(address) as saver:
        await saver.setup()
        yield saver


@asynccontextmanager
async def postgres(address: str) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(address) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def postgres_async(address: str) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    async with AsyncPostgresSaver.from_conn_string(address) as saver:
        await saver.setup()
        yield saver


Opened = Callable[[str], Any]
CONTENDERS: dict[str, tuple[Engine, Opened, bool, bool]] = {
    "Holdfast": ("sqlite", holdfast, False, False),
    "Holdfast, async": ("sqlite", holdfast_async, True, False),
    NOTHING_SAVED_SYNC: ("none", nothing_saved, False, False),
    NOTHING_SAVED: ("none", nothing_saved, True, False),
    "SqliteSaver": ("sqlite", sqlite, False, False),
    "SqliteSaver, DeltaChannel": ("sqlite", sqlite, False, True),
    "AsyncSqliteSaver": ("sqlite", sqlite_async, True, False),
    "AsyncSqliteSaver, DeltaChannel": ("sqlite", sqlite_async, True, True),
    "Holdfast, PostgreSQL": ("postgres", holdfast, False, False),
    "Holdfast, async, PostgreSQL": ("postgres", holdfast_async, True, False),
    "PostgresSaver": ("postgres", postgres, False, False),
    "PostgresSaver, DeltaChannel": ("postgres", postgres, False, True),
    "AsyncPostgresSaver": ("postgres", postgres_async, True, False),
}
"""Engine, factory, whether the saver is asynchronous, and whether the graph uses ``DeltaChannel``."""
