"""A LangGraph chat that grows: bytes on the disk and time for a turn, with our saver or with one of LangGraph's own.

    PYTHONPATH=src:. python -m bench.langgraph_growth holdfast 500
    PYTHONPATH=src:. python -m bench.langgraph_growth official 500      (needs langgraph-checkpoint-sqlite)
    PYTHONPATH=src:. python -m bench.langgraph_growth postgresql://... 500

One turn is a message of about a kilobyte and an answer of the same size: three checkpoints and two sets of writes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Annotated, Any, TypedDict

import apsw
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from holdfast import Holdfast
from holdfast.adapters.langgraph import HoldfastSaver

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
MARKS = (50, 100, 200, 300, 400, 500, 1_000)
TABLES = ["lg_log", "lg_thread", "lg_piece", "lg_checkpoint", "lg_checkpoint_write", "objects", "object_refs"]
CONFIG: Any = {"configurable": {"thread_id": "chat"}}


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    turn: int


def text(source: random.Random) -> str:
    """Words of no language, so that nothing but the repetition of syllables can be compressed."""
    words = ("".join(source.choices(SYLLABLES, k=source.randrange(1, 4))) for _ in range(200))
    return " ".join(words)


def graph(saver: Any, answers: list[str]) -> Any:
    def answer(state: State) -> dict[str, Any]:
        turn = state.get("turn", 0) + 1
        return {"messages": [AIMessage(answers[turn - 1], id=f"a{turn}")], "turn": turn}

    built = StateGraph(State)
    built.add_node("llm", answer)
    built.add_edge(START, "llm")
    built.add_edge("llm", END)
    return built.compile(checkpointer=saver)


def stored_bytes(address: str) -> int:
    if address.startswith("postgresql"):
        import psycopg

        with psycopg.connect(address) as connection:
            row = connection.execute(
                "SELECT sum(pg_total_relation_size(t::regclass)) FROM unnest(%s) AS t", [TABLES]
            ).fetchone()
            return int(row[0]) if row else 0
    connection_of_file = apsw.Connection(address)
    connection_of_file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection_of_file.close()
    return os.path.getsize(address)


def main(contender: str, turns: int) -> None:
    source = random.Random(3)
    says, answers = ([text(source) for _ in range(turns)] for _ in range(2))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        address = contender if contender.startswith("postgresql") else f"{folder}/chat.db"
        if contender == "official":
            from langgraph.checkpoint.sqlite import SqliteSaver

            saver: Any = stack.enter_context(SqliteSaver.from_conn_string(address))
            saver.setup()
        else:
            Holdfast(address, auto_migrate=True).close()
            saver = stack.enter_context(HoldfastSaver(address))
        empty = stored_bytes(address)
        chat, words, spent = graph(saver, answers), 0, []
        for turn in range(1, turns + 1):
            began = time.perf_counter()
            chat.invoke({"messages": [HumanMessage(says[turn - 1], id=f"h{turn}")]}, CONFIG, durability="sync")
            spent.append(time.perf_counter() - began)
            words += len(says[turn - 1]) + len(answers[turn - 1])
            if turn in MARKS or turn == turns:
                report(contender, chat, turn, words, stored_bytes(address) - empty, spent)


def report(contender: str, chat: Any, turn: int, words: int, stored: int, spent: list[float]) -> None:
    began = time.perf_counter()
    messages = chat.get_state(CONFIG).values["messages"]
    latest = time.perf_counter() - began
    assert len(messages) == 2 * turn
    figures = {
        "contender": contender.partition(":")[0],
        "turns": turn,
        "words_bytes": words,
        "stored_bytes": stored,
        "stored_per_word_byte": round(stored / words, 3),
        "turn_ms": round(sorted(spent[-20:])[10] * 1_000, 2),
        "whole_loop_s": round(sum(spent), 2),
        "latest_state_ms": round(latest * 1_000, 2),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
