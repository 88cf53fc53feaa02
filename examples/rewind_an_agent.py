"""An agent ruins its work; its files and its conversation are rewound together, and it takes another path.

    python examples/rewind_an_agent.py

It needs no network: the model is scripted and makes a mistake the first time. It "cleans up" the configuration in step 3.
The caller inspects the changes, rewinds the run to the step before, tells the agent about the mistake, and resumes the run.
The first attempt is not lost: a redo restores it, to the last byte.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from holdfast import Holdfast, TenantHandle
from holdfast.loop import Loop, ModelTurn, Reply, ToolRequest, tool

PROJECT = Path("project")


@tool(safety="idempotent")
def write(name: str, text: str) -> str:
    """Write a file."""
    path = PROJECT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f"wrote {name}"


@tool(safety="idempotent")
def remove(name: str) -> str:
    """Remove a file or a directory."""
    path = PROJECT / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return f"removed {name}"


def model(turn: ModelTurn) -> Reply | str:
    """Choose the reply by the step, and by whether the agent was warned."""
    warned = any("keep config" in str(message) for message in turn.messages)
    if turn.iteration == 1:
        return Reply("I start.", calls=[ToolRequest("write", {"name": "main.py", "text": "print('hello')\n"})])
    if turn.iteration == 2:
        return Reply(
            "I add tests.", calls=[ToolRequest("write", {"name": "tests/test_main.py", "text": "assert True\n"})]
        )
    if turn.iteration == 3 and not warned:
        return Reply("I clean up.", calls=[ToolRequest("remove", {"name": "config"})])
    if turn.iteration == 3:
        return Reply(
            "I leave config alone.", calls=[ToolRequest("write", {"name": "README", "text": "How to run it\n"})]
        )
    return "All done."


def show(acme: TenantHandle, run_id: str, title: str) -> None:
    """Print the step, the length of the conversation and the files."""
    files = sorted(str(path.relative_to(PROJECT)) for path in PROJECT.rglob("*") if path.is_file())
    run = acme.runs.get(run_id)
    print(f"{title}: step {run.iteration}, {len(acme.messages.list(run.session_id))} messages, {', '.join(files)}")


def main() -> None:
    """Show the mistake, the rewind and the better attempt; then restore the first attempt."""
    (PROJECT / "config").mkdir(parents=True)
    (PROJECT / "config" / "settings.toml").write_text("port = 8080\n")
    with Holdfast("agents.db") as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(agent="builder")
        acme.messages.append(session.id, role="user", content="Build me something.")
        run = acme.runs.start(session.id)
        loop = Loop(model, tools=[write, remove], workspace=PROJECT)

        print(f"The agent: {loop.drive(acme, run.id).text}")
        show(acme, run.id, "Now")
        before, after = (acme.steps.get(run.id, step).snapshot for step in (2, 3))
        assert before is not None
        assert after is not None
        for change in acme.workspaces.diff(before, after):
            print(f"  step 3 {change.kind}: {change.path}")

        first = acme.workspaces.rewind(run.id, 2, PROJECT)
        show(acme, run.id, "Rewound")
        acme.messages.append(session.id, role="user", content="Continue, but keep config.")
        acme.runs.resume(run.id)
        print(f"The agent: {loop.drive(acme, run.id).text}")
        show(acme, run.id, "Now")

        acme.workspaces.rewind(run.id, 2, PROJECT)
        acme.workspaces.redo(run.id, id=first.rewind.id)
        show(acme, run.id, "First attempt, restored")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
        os.chdir("/")
