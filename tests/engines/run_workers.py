"""Workers that claim runs of all tenants and drive them, for tests that kill them; and the check of their results.

Each step of a run intends one call of a tool that must happen at most once, makes it, and commits its result with a message and
the new state. The state counts the calls known to have been made, and those whose outcome is unknown.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import Holdfast, NewMessage, NewToolCall, TenantHandle, ToolOutcome
from holdfast.errors import Fenced
from holdfast.types import Run

STEPS = 5
TTL_MS = 400
IDLE_S = 0.005


class Died(Exception):
    """The worker is no more; whatever it held is still held as far as anybody knows."""


class Worker:
    """Drives whatever run it can get, until all runs are over.

    ``effect`` is the tool. ``at`` is told each place where a worker may die, and dies there by raising ``Died``.
    """

    def __init__(
        self, hf: Holdfast, name: str, effect: Callable[[str], None], at: Callable[[str], None] = lambda place: None
    ) -> None:
        self._hf, self._name, self._effect, self._at = hf, name, effect, at
        self.committed: list[tuple[str, int, int]] = []
        """Run, iteration and epoch of each step that was acknowledged."""
        self.fenced = 0

    def work(self, tenants: Iterable[str]) -> None:
        """Drive runs until all runs of these tenants have ended."""
        handles = [self._hf.tenant(tenant) for tenant in tenants]
        while True:
            claim = self._hf.run_queue.claim(self._name, ttl_ms=TTL_MS)
            if claim is None:
                if all(run.finished_at is not None for handle in handles for run in handle.runs.list()):
                    return
                time.sleep(IDLE_S)
                continue
            try:
                self._drive(self._hf.tenant(claim.tenant), claim.run)
            except Fenced:
                self.fenced += 1
            except Died:
                continue  # a new worker in its place

    def _drive(self, tenant: TenantHandle, run: Run) -> None:
        self._at("claimed")
        loaded = tenant.runs.load(run.id)
        state = {"known": 0, "unknown": 0} if loaded.step is None else dict(loaded.step.state)
        iteration = loaded.run.iteration
        unfinished = [item.call.id for item in tenant.tool_calls.pending(run.id)]
        while iteration < STEPS:
            iteration += 1
            outcome = self._call(tenant, run, iteration, unfinished)
            unfinished = []
            state["unknown" if outcome.status == "unknown" else "known"] += 1
            self._at("before the step")
            tenant.runs.step(
                run.id,
                epoch=run.epoch,
                iteration=iteration,
                state=state,
                messages=[NewMessage(role="assistant", content=f"{run.id} {iteration}", token_count=1)],
                tool_calls=[outcome],
                stop_reason="end_turn" if iteration == STEPS else None,
            )
            self.committed.append((run.id, iteration, run.epoch))
            self._said("step", run.id, iteration, run.epoch)
            self._at("after the step")

    def _call(self, tenant: TenantHandle, run: Run, iteration: int, unfinished: list[str]) -> ToolOutcome:
        call = f"call-{iteration}"
        if call in unfinished:  # an earlier worker began it and died
            return ToolOutcome(id=call, status="unknown")
        tenant.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id=call, tool_name="effect")])
        self._at("intended")
        self._effect(f"{run.id} {call}")
        self._at("called")
        return ToolOutcome(id=call, result="done")

    def _said(self, *words: Any) -> None:
        """Print a line; only workers in separate processes are read."""


class SpeakingWorker(Worker):
    """A worker that reports acknowledged writes to its parent."""

    def _said(self, *words: Any) -> None:
        print(*words, flush=True)


def main() -> None:
    """Run a worker in its own process: address, name, file of effects, and tenants."""
    url, name, effects, *tenants = sys.argv[1:]

    def effect(what: str) -> None:
        with open(effects, "a", encoding="utf-8") as file:
            file.write(f"{what}\n")
        with suppress(FileNotFoundError):
            os.unlink(f"{effects}.stop")  # the worker that removes it stops here, between intent and step
            print("stopped", what.split()[0], os.getpid(), 0, flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    with Holdfast(url) as hf:
        SpeakingWorker(hf, name, effect).work(tenants)


def start_runs(hf: Holdfast, tenants: Iterable[str], count: int) -> list[tuple[str, Run]]:
    """Start runs that do not fail."""
    made = []
    for tenant in tenants:
        handle = hf.tenant(tenant)
        for _ in range(count):
            session = handle.sessions.create(agent="tester")
            made.append((tenant, handle.runs.start(session.id, max_attempts=10_000)))
    return made


def judge(
    hf: Holdfast, runs: Iterable[tuple[str, Run]], effects: Iterable[str], committed: Iterable[tuple[str, int, int]]
) -> None:
    """Check that every step was done once and completely, no acknowledged write is missing, and no effect happened twice."""
    happened = Counter(effects)
    assert not [what for what, times in happened.items() if times > 1], "something happened twice"
    existing: dict[tuple[str, int], int] = {}
    for tenant, started in runs:
        handle = hf.tenant(tenant)
        run = handle.runs.get(started.id)
        assert (run.status, run.stop_reason, run.iteration) == ("completed", "end_turn", STEPS)
        steps = handle.steps.list(run.id)
        assert [step.iteration for step in steps] == [*range(1, STEPS + 1)]
        assert [step.epoch for step in steps] == sorted(step.epoch for step in steps), "epochs only rise"
        assert [(step.first_seq, step.last_seq) for step in steps] == [(n, n) for n in range(1, STEPS + 1)]
        texts = [message.content[0]["text"] for message in handle.messages.list(run.session_id)]
        assert texts == [f"{run.id} {n}" for n in range(1, STEPS + 1)]
        calls = handle.tool_calls.list(run.id)
        assert [call.step for call in calls] == [*range(1, STEPS + 1)]
        initial = [call for call in calls if call.status == "finished"]
        assert steps[-1].state == {"known": len(initial), "unknown": STEPS - len(initial)}
        assert all(happened[f"{run.id} {call.id}"] == 1 for call in initial), (
            "every finished call was executed exactly once"
        )
        existing.update({(run.id, step.iteration): step.epoch for step in steps})
    for run_id, iteration, epoch in committed:
        assert existing[run_id, iteration] == epoch, "an acknowledged step has another epoch"


def read_effects(file: Path) -> list[str]:
    """Return the effects that the tool has recorded."""
    return file.read_text("utf-8").splitlines() if file.exists() else []


if __name__ == "__main__":
    main()
