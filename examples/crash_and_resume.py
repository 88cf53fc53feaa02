"""An agent that is killed in the middle of a tool, and another process that brings its work to an end.

    python examples/crash_and_resume.py

No network, no key: the model is scripted. The agent counts the stock (may be done twice), orders more (must not), and reports.
The first process is killed, with a real SIGKILL, while the order is under way: the order has reached the supplier, and nothing in
Holdfast knows yet. The second process goes on at the last step. It does not ask the model again what it has answered, it does
not count again what was counted, and it does not order again: it tells the model that nobody knows, and the model asks
the supplier.
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
"""What the supplier knows: a file outside of Holdfast, as the rest of the world is."""


@tool(safety="idempotent")
def count_stock(item: str) -> int:
    """Count what is there."""
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
    """What the supplier has got."""
    return Path(SUPPLIER).read_text("utf-8").splitlines()


def model(turn: ModelTurn) -> Reply | str:
    """What to say, by what was said last."""
    last = turn.messages[-1]["content"][0]
    print(f"    [model] asked for step {turn.iteration}")
    if last["type"] == "text":
        return Reply("First I count.", calls=[ToolRequest("count_stock", {"item": "screws"})])
    if last["content"] == "2":
        return Reply("Too few. I order.", calls=[ToolRequest("order", {"item": "screws", "amount": 100})])
    if "unknown" in last["content"]:
        return Reply("Nobody knows whether I have ordered. I ask.", calls=[ToolRequest("ask_supplier")])
    return f"There were 2 screws, and the supplier has got: {last['content']}."


def drive(run_id: str) -> None:
    """What each of the two processes does."""
    said = {"step": "committed", "calling": "recorded its intent"}

    def watch(event: Event) -> None:
        if event.kind in said:
            print(f"  {said[event.kind]}: step {event.iteration}", flush=True)

    loop = Loop(model, tools=[count_stock, order, ask_supplier], on_event=watch)
    with Holdfast("agents.db") as hf:
        ending = loop.drive(hf.tenant("acme"), run_id, ttl_ms=LEASE_MS)
        while ending.status == "busy":  # the dead process still holds it, for a lease and a half
            time.sleep(0.05)
            ending = loop.drive(hf.tenant("acme"), run_id, ttl_ms=LEASE_MS)
    print(f"  {ending.status}: {ending.text}")


def process(run_id: str, **environment: str) -> int:
    """Drive the run in a process of its own."""
    command = [sys.executable, os.path.abspath(__file__), run_id]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


def main() -> None:
    """Start a run, have it killed, have it finished, and look."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with Holdfast("agents.db") as hf:
            acme = hf.tenant("acme")
            session = acme.sessions.create(agent="storekeeper")
            acme.messages.append(session.id, role="user", content="See that there are enough screws.")
            run = acme.runs.start(session.id)
        print("The first process:", flush=True)
        code = process(run.id, DIE_WHILE_ORDERING="1")
        print(f"  ended with {code}\nThe second process:", flush=True)
        assert process(run.id) == 0
        with Holdfast("agents.db") as hf:
            acme = hf.tenant("acme")
            print("The ledger:")
            for call in acme.tool_calls.list(run.id):
                if not call.tool_name.startswith("holdfast."):
                    print(f"  step {call.step}: {call.tool_name} {call.status}, begun {call.attempts} time")
        print(f"The supplier got {len(ask_supplier())} order.")
        os.chdir("/")


if __name__ == "__main__":
    drive(sys.argv[1]) if len(sys.argv) > 1 else main()
