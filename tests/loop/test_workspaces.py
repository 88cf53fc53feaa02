"""A loop with a workspace: every step has its files, after any crash, and a rewind restores both."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncHoldfast, FixedClock, Holdfast, TenantHandle
from holdfast.loop import Loop, Reply, ToolRequest, tool
from holdfast.loop.commands import CaptureFiles, CommitStep
from holdfast.loop.config import LoopConfig
from holdfast.loop.core import claim_and_drive
from holdfast.loop.executor import Executor
from holdfast.types import Run
from tests.workspaces.fingerprints import Fingerprint, fingerprint, put

STEPS = 4
TTL_MS = 1_000


def loop_in(root: Path, **options: Any) -> Loop:
    """Return an agent that writes a file in each step but the last, from the existing files."""

    @tool(safety="idempotent")
    def write(number: int) -> str:
        "Write a file."
        put(
            root,
            f"file {number}",
            f"{sorted(path.name for path in root.iterdir() if path.name < f'file {number}')}".encode(),
        )
        (root / "log").write_text("".join(f"{line}\n" for line in range(number + 1)))
        return f"wrote {number}"

    def model(turn: Any) -> Reply | str:
        if turn.iteration < STEPS:
            return Reply(
                f"step {turn.iteration}", calls=[ToolRequest("write", {"number": turn.iteration})], state=turn.iteration
            )
        return "done"

    return Loop(model, tools=[write], workspace=options.pop("workspace", root), **options)


def start_run(acme: TenantHandle) -> Run:
    session = acme.sessions.create(agent="writer")
    acme.messages.append(session.id, role="user", content="Write.")
    return acme.runs.start(session.id, max_attempts=1_000)


def contents(root: Path) -> Fingerprint:
    """Return everything but times, which differ between runs."""
    return fingerprint(root, times=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path / "tree", "README", b"before anything\n")
    return tmp_path / "tree"


def restore(acme: TenantHandle, snapshot: str | None, out: Path) -> Fingerprint:
    assert snapshot is not None
    acme.workspaces.restore(snapshot, out, replace=True)
    return contents(out)


def test_every_step_has_its_files(root: Path, tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        run = start_run(acme)
        trees = [contents(root)]
        loop = loop_in(root, on_event=lambda event: trees.append(contents(root)) if event.kind == "step" else None)
        assert loop.drive(acme, run.id).status == "completed"
        first = acme.snapshots.find(run.id, step=0)
        assert first is not None
        steps = list(acme.steps.list(run.id))
        snapshots = [first.id, *(step.snapshot for step in steps)]
        for number, snapshot in enumerate(snapshots):
            assert restore(acme, snapshot, tmp_path / "out") == trees[number], f"step {number}"
        assert steps[-1].snapshot == steps[-2].snapshot, "no tool was called, so nothing was captured"
        assert len(acme.snapshots.list(run_id=run.id)) == STEPS


def test_a_rewind_restores_files_and_conversation_and_the_agent_continues(root: Path, tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        run = start_run(acme)
        loop = loop_in(root)
        loop.drive(acme, run.id)
        end, messages = contents(root), [message.content for message in acme.messages.list(run.session_id)]
        for to_step in range(STEPS):
            put(root, "README", b"the agent has ruined it")
            acme.workspaces.rewind(run.id, to_step, root)
            assert (root / "README").read_bytes() == b"before anything\n"
            assert len(list(root.glob("file *"))) == to_step
            assert len(acme.messages.list(run.session_id)) == 1 + 2 * to_step
            acme.runs.resume(run.id)
            assert loop.drive(acme, run.id).status == "completed"
            assert contents(root) == end
            assert [message.content for message in acme.messages.list(run.session_id)] == messages


def test_files_are_captured_in_an_event_loop(root: Path, tmp_path: Path) -> None:
    async def driven() -> None:
        async with AsyncHoldfast(str(tmp_path / "agents.db")) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            run = await acme.runs.start(session.id)
            ending = await loop_in(root).adrive(acme, run.id)
            assert ending.status == "completed"
            await acme.workspaces.rewind(run.id, 1, root)

    asyncio.run(driven())
    assert len(list(root.glob("file *"))) == 1


def test_each_run_can_have_its_own_directory(root: Path, tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        run_ids: list[str] = []

        def workspace(run: Run) -> Path | None:
            run_ids.append(run.id)
            return root if run.id == mine.id else None

        mine, other = start_run(acme), start_run(acme)
        loop = loop_in(root, workspace=workspace)
        for run in (mine, other):
            assert loop.drive(acme, run.id).status == "completed"
        assert run_ids == [mine.id, other.id]
        assert len(acme.snapshots.list(run_id=mine.id)) == STEPS
        assert len(acme.snapshots.list(run_id=other.id)) == 0
        assert [step.snapshot for step in acme.steps.list(other.id)] == [None] * STEPS


def test_a_workspace_function_that_raises_fails_the_run(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        run = start_run(acme)

        def fails(run: Run) -> Path:
            raise OSError("no such place")

        assert loop_in(tmp_path, workspace=fails).drive(acme, run.id).status == "failed"
        assert "no such place" in (acme.runs.get(run.id).error or "")


class Died(Exception):
    """The simulated process has died."""


def carry_out(config: LoopConfig, acme: TenantHandle, run_id: str, last: int | None) -> list[Any]:
    """Drive a run until it ends or has carried out that number of commands."""
    commands: list[Any] = []
    generator = claim_and_drive(config, run_id, holder="me", ttl_ms=TTL_MS)
    executor = Executor(config, acme, None, lambda: True)
    answer: Any = None
    try:
        while True:
            command = generator.send(answer)
            if len(commands) == last:
                raise Died
            commands.append(command)
            answer = executor.carry_out(command)
    except StopIteration:
        return commands
    finally:
        executor.close()


def test_after_a_crash_at_any_command_every_step_has_its_files(root: Path, tmp_path: Path) -> None:
    clock = FixedClock()
    with Holdfast(str(tmp_path / "agents.db"), clock=clock, durability="normal") as hf:
        acme, loop = hf.tenant("acme"), loop_in(root)
        config = loop.config
        twin = start_run(acme)
        commands = carry_out(config, acme, twin.id, None)
        assert sum(isinstance(command, CaptureFiles) for command in commands) == STEPS
        expected = [restore(acme, step.snapshot, tmp_path / "out") for step in acme.steps.list(twin.id)]
        end = contents(root)
        points = [number for number, command in enumerate(commands) if isinstance(command, (CaptureFiles, CommitStep))]
        for point in sorted({*points, *(number + 1 for number in points)}):
            for path in [*root.glob("file *"), *root.glob("log")]:
                path.unlink()
            run = start_run(acme)
            if point < len(commands):
                with pytest.raises(Died):
                    carry_out(config, acme, run.id, point)
                clock.advance(TTL_MS)
                assert acme.leases.claim("heir", run_id=run.id) is None, "doubted first"
                clock.advance(TTL_MS)
            carry_out(config, acme, run.id, None)
            steps = list(acme.steps.list(run.id))
            assert [restore(acme, step.snapshot, tmp_path / "out") for step in steps] == expected, point
            assert contents(root) == end


def test_an_interrupted_rewind_is_finished_before_the_loop_continues(root: Path, tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme, loop = hf.tenant("acme"), loop_in(root)
        run = start_run(acme)
        loop.drive(acme, run.id)
        snapshot = acme.steps.get(run.id, 1).snapshot
        acme.rewinds.begin(run.id, to_step=1, path=str(root), snapshot=snapshot)
        acme.runs.resume(run.id)  # by a caller that does not know of the rewind
        end = contents(root)
        put(root, "left over", b"from the steps that are no more")
        assert loop.drive(acme, run.id).status == "completed"
        assert contents(root) == end
        assert list(acme.rewinds.pending()) == []
