"""Agents of all frameworks continue after the server was killed."""

from __future__ import annotations

import asyncio
import json

import pytest
from kagent.crewai._memory import KagentMemoryStorage
from kagent.crewai._state import KagentFlowPersistence
from langgraph.types import Command

from tests.adapters.kagent import test_adk, test_crewai, test_langgraph
from tests.adapters.kagent.a2a_turn import talk
from tests.adapters.kagent.conftest import Start
from tests.adapters.kagent.test_langgraph import config_of, interrupting_graph, run_graph

KEY = "k" * 32


def test_agents_of_all_frameworks_continue_after_the_server_was_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path_factory.mktemp("crewai")))
    server = start(HOLDFAST_ENCRYPTION_KEY=KEY)
    adk = [asyncio.run(talk(test_adk.app_on(server.url, monkeypatch), "adk", "one"))]
    graphs = [asyncio.run(talk(test_langgraph.app_on(server.url), "graph", "one"))]
    asyncio.run(run_graph(server.url, interrupting_graph(), {"n": 1, "log": []}, config_of("t")))
    test_crewai.flow_of(KagentFlowPersistence("t", "carol", server.url)).kickoff(inputs={"id": "f"})
    KagentMemoryStorage("t", "carol", server.url).save("write", {}, "1700000000.0", 1.0)

    server._process.kill()
    server.wait()
    server = start(HOLDFAST_ENCRYPTION_KEY=KEY)

    adk.append(asyncio.run(talk(test_adk.app_on(server.url, monkeypatch), "adk", "two")))
    assert ["turn 1" in json.dumps(adk[0]), "turn 2" in json.dumps(adk[1])] == [True, True], adk
    assert "Bearer very-secret" in json.dumps(adk[1]), "with an encryption key, an agent has its caller's token"
    tasks = server.http.get("/api/sessions/adk/tasks", params={"user_id": "bob"}).json()["data"]
    assert [task["status"]["state"] for task in tasks] == ["completed", "completed"]
    assert server.http.get("/api/agents/ns/app").status_code == 200, "an unknown agent is registered"

    graphs.append(asyncio.run(talk(test_langgraph.app_on(server.url), "graph", "two")))
    assert ["heard 1" in str(graphs[0]), "heard 3" in str(graphs[1])] == [True, True]
    of_default_user = server.http.get("/api/sessions/graph/tasks").json()["data"]
    assert len(of_default_user) == 2, "of kagent's default user, regardless of the caller"
    assert asyncio.run(run_graph(server.url, interrupting_graph(), Command(resume="yes"), config_of("t")))["log"] == [
        "a",
        "b:yes",
    ]

    flow = test_crewai.flow_of(KagentFlowPersistence("t", "carol", server.url))
    flow.kickoff(inputs={"id": "f"})
    assert flow.state.n == 22
    assert len(KagentMemoryStorage("t", "carol", server.url).load("write", 3)) == 1
