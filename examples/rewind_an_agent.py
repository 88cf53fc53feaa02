"""An agent ruins its work; its files and its conversation go back together, and it goes on another way.

Run it: ``python examples/rewind_an_agent.py``. It needs no network. The model is a script that makes a mistake the first time:
it "cleans up" the configuration in step 3. Somebody looks at what changed, takes the run back to the step before, says what is
wrong, and has the agent go on. What it did the first time is not lost: a redo would bring it back, to the last byte.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from holdfast import Holdfast, TenantHandle
from holdfast.loop import Loop, ModelTurn, Reply, ToolRequest, tool

PLACE = Path("project")


@tool(safety="idempotent")
def write(name: str, text: str) -> str:
    """Write a file."""
    path = PLACE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f"wrote {name}"


@tool(safety="idempotent")
def remove(name: str) -> str:
    """Remove a file or a directory."""
    path = PLACE / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return f"removed {name}"


def model(turn: ModelTurn) -> Reply | str:
    """A model without a mind: what it says depends on the step, and on whether it was warned."""
    warned = any("keep config" in str(message) for message in turn.messages)
    if turn.iteration == 1:
        return Reply("I start.", calls=[ToolRequest("write", {"name": "main.py", "text": "print('hello')\n"})])
    if turn.iteration == 2:
        return Reply(
            "Some tests.", calls=[ToolRequest("write", {"name": "tests/test_main.py", "text": "assert True\n"})]
        )
    if turn.iteration == 3 and not warned:
        return Reply("I clean up.", calls=[ToolRequest("remove", {"name": "config"})])
    if turn.iteration == 3:
        return Reply(
            "I leave config alone.", calls=[ToolRequest("write", {"name": "README", "text": "How to run it\n"})]
        )
    return "All done."


def show(acme: TenantHandle, run_id: str, title: str) -> None:
    """The files, and how long the conversation is."""
    files = sorted(str(path.relative_to(PLACE)) for path in PLACE.rglob("*") if path.is_file())
    run = acme.runs.get(run_id)
    print(f"{title}: step {run.iteration}, {len(acme.messages.list(run.session_id))} messages, {', '.join(files)}")


def main() -> None:
    """The incident, from the question to the good end, and back once more to see that nothing was lost."""
    (PLACE / "config").mkdir(parents=True)
    (PLACE / "config" / "settings.toml").write_text("port = 8080\n")
    with Holdfast("agents.db") as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(agent="builder")
        acme.messages.append(session.id, role="user", content="Build me something.")
        run = acme.runs.start(session.id)
        loop = Loop(model, tools=[write, remove], workspace=PLACE)

        print(f"The agent: {loop.drive(acme, run.id).text}")
        show(acme, run.id, "Now")
        before, after = (acme.steps.get(run.id, step).snapshot for step in (2, 3))
        assert before is not None
        assert after is not None
        for change in acme.workspaces.diff(before, after):
            print(f"  step 3 {change.kind}: {change.path}")

        first = acme.workspaces.rewind(run.id, 2, PLACE)
        show(acme, run.id, "Rewound")
        acme.messages.append(session.id, role="user", content="Go on, but keep config.")
        acme.runs.resume(run.id)
        print(f"The agent: {loop.drive(acme, run.id).text}")
        show(acme, run.id, "Now")

        acme.workspaces.rewind(run.id, 2, PLACE)
        acme.workspaces.redo(run.id, id=first.rewind.id)
        show(acme, run.id, "As it was the first time")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
        os.chdir("/")
