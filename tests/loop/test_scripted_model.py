"""The scripted model with which users test their agents."""

from __future__ import annotations

from holdfast import Holdfast
from holdfast.loop import Loop, Reply, ToolRequest, tool
from holdfast.testing import FixedClock, ScriptedModel, SeededIds


@tool(safety="idempotent")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def test_a_scripted_model_drives_a_run_to_its_end() -> None:
    model = ScriptedModel([Reply(calls=[ToolRequest("weather", {"city": "Oslo"})]), "Take an umbrella."])
    with Holdfast(":memory:", clock=FixedClock(), ids=SeededIds(1)) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(agent="a")
        ending = Loop(model, tools=[weather]).drive(acme, acme.runs.start(session.id).id)
        last = acme.messages.list(session.id)[-1]
    assert ending.status == "completed"
    assert "umbrella" in str(last.content)
    assert [turn.iteration for turn in model.turns] == [1, 2]


def test_a_script_that_is_too_short_fails_the_run() -> None:
    model = ScriptedModel([Reply("More follows.", continue_run=True)])
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        run = acme.runs.start(acme.sessions.create(agent="a").id)
        ending = Loop(model).drive(acme, run.id)
    assert ending.status == "failed"
    assert "iteration 2 has no reply" in str(ending.error)
