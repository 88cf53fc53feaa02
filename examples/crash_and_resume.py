"""An agent is killed in the middle of a tool, and another process finishes its work.

    python examples/crash_and_resume.py

It needs no network and no key: the model is scripted. The agent counts the stock (may be repeated), orders more (must not
be repeated), and reports. The first process is killed with a real SIGKILL during the order: the supplier has received it,
but Holdfast has not recorded its outcome yet. The second process resumes at the last step. It does not repeat the model's
recorded replies, the finished count or the order. It tells the model that the outcome is unknown, and the model asks the
supplier.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast import Holdfast
from holdfast.loop import Call, Event, Loop, ModelTurn, Reply, ToolRequest, tool

LEASE_MS = 500
SUPPLIER = "supplier.txt"
"""The supplier's records: a file outside of Holdfast, like any external system."""


@tool(safety="idempotent")
def count_stock(item: str) -> int:
    """Count the items in stock."""
    print(f"    [tool] counting {item}")
    return 2


@tool(safety="at_most_once")
def order(item: str, amount: int, call: Call) -> str:
    """Order more from the supplier."""
    print(f"    [tool] ordering {amount} {item}")
    with open(SUPPLIER, "a", encoding="utf-8") as supplier:
        supplier.write(f"{amount} {item}\n")
    if os.environ.get("DIE_WHILE_ORDERING"):
        print("    [tool] ... and here the process is killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return "ordered"


@tool(safety="idempotent")
def ask_supplier() -> list[str]:
    """Return the orders that the supplier has received."""
    return Path(SUPPLIER).read_text("utf-8").splitlines()


def model(turn: ModelTurn) -> Reply | str:
    """Choose the next reply by the last message."""
    last = turn.messages[-1]["content"][0]
    print(f"    [model] asked for step {turn.iteration}")
    if last["type"] == "text":
        return Reply("First I count the stock.", calls=[ToolRequest("count_stock", {"item": "screws"})])
    if last["content"] == "2":
        return Reply("Too few. I order more.", calls=[ToolRequest("order", {"item": "screws", "amount": 100})])
    if "unknown" in last["content"]:
        return Reply(
            "I do not know whether the order was placed. I ask the supplier.", calls=[ToolRequest("ask_supplier")]
        )
    return f"There were 2 screws, and the supplier has received: {last['content']}."


def drive(run_id: str) -> None:
    """Drive the run to its end; both processes do this."""
    labels = {"step": "committed", "calling": "recorded the intent"}

    def watch(event: Event) -> None:
        if event.kind in labels:
            print(f"  {labels[event.kind]}: step {event.iteration}", flush=True)

    loop = Loop(model, tools=[count_stock, order, ask_supplier], on_event=watch)
    with Holdfast("agents.db") as hf:
        ending = loop.drive(hf.tenant("acme"), run_id, ttl_ms=LEASE_MS)
        while ending.status == "busy":  # the dead process holds the run for a lease and a half
            time.sleep(0.05)
            ending = loop.drive(hf.tenant("acme"), run_id, ttl_ms=LEASE_MS)
    print(f"  {ending.status}: {ending.text}")


def run_process(run_id: str, **environment: str) -> int:
    """Drive the run in a new process and return its exit code."""
    command = [sys.executable, os.path.abspath(__file__), run_id]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


def main() -> None:
    """Start a run, kill it, finish it in another process, and show the result."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with Holdfast("agents.db") as hf:
            acme = hf.tenant("acme")
            session = acme.sessions.create(agent="storekeeper")
            acme.messages.append(session.id, role="user", content="Make sure there are enough screws.")
            run = acme.runs.start(session.id)
        print("The first process:", flush=True)
        code = run_process(run.id, DIE_WHILE_ORDERING="1")
        print(f"  ended with {code}\nThe second process:", flush=True)
        assert run_process(run.id) == 0
        with Holdfast("agents.db") as hf:
            acme = hf.tenant("acme")
            print("The ledger:")
            for call in acme.tool_calls.list(run.id):
                if not call.tool_name.startswith("holdfast."):
                    print(f"  step {call.step}: {call.tool_name} {call.status}, started {call.attempts} time")
        print(f"The supplier received {len(ask_supplier())} order.")
        os.chdir("/")


if __name__ == "__main__":
    drive(sys.argv[1]) if len(sys.argv) > 1 else main()
