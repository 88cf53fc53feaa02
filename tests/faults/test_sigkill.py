"""Processes killed while they write: every acknowledged write exists once, and other processes continue."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from holdfast import Holdfast
from tests.faults.kill import TENANT, Ledger, Line, Work, Writers
from tests.servers import PostgresServer

KILLS_IN_TESTS = 50
KILLS_IN_SOAK = 2_000


def kill_many(url: str, *, kills: int, seed: int) -> None:
    """Kill writers at moments drawn from a seed, alone or together, until a number of them are dead."""
    random = Random(seed)
    killed = 0
    with Writers() as writers, Holdfast(url) as hf:
        tenant = hf.tenant(TENANT)
        while killed < kills:
            sessions = [tenant.sessions.create().id for _ in range(2)]
            while len(writers.alive) < 3:
                style = random.choice(("threads", "tasks"))
                writers.start(Work(url, sessions, style=style, width=random.choice((1, 3, 6))))
            writers.work(random.randrange(1, 40))
            victims = random.sample(writers.alive, random.choice((1, 1, 3)))
            writers.kill(*victims)
            killed += len(victims)
            if not writers.alive:
                assert writers.ledger.problems(tenant) == []
        writers.kill(*writers.alive)
        assert writers.ledger.problems(tenant) == []
        assert writers.ledger.acknowledgements >= killed
        assert writers.refusals == []


@pytest.mark.parametrize(("library", "kills"), [("apsw", KILLS_IN_TESTS), ("stdlib", 15)])
def test_killed_writers_lose_no_acknowledged_write(tmp_path: Path, library: str, kills: int) -> None:
    kill_many(f"sqlite:///{tmp_path}/a.db?library={library}", kills=kills, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_many_killed_writers_lose_no_acknowledged_write(tmp_path: Path, seed: int) -> None:
    kill_many(str(tmp_path / "a.db"), kills=KILLS_IN_SOAK // 10, seed=seed)


def test_killed_writers_on_postgres_lose_no_acknowledged_write(postgres_url: str) -> None:
    kill_many(postgres_url, kills=KILLS_IN_TESTS, seed=2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_many_killed_writers_on_postgres_lose_no_acknowledged_write(postgres_url: str, seed: int) -> None:
    kill_many(postgres_url, kills=KILLS_IN_SOAK // 10, seed=seed)


def crash_many(server: PostgresServer, *, crashes: int, seed: int) -> None:
    """Kill and stop the server while writers in other processes use it, and start it again each time."""
    random = Random(seed)
    url = server.create_database("crashing")
    with Holdfast(url, auto_migrate=True) as hf:
        sessions = [hf.tenant(TENANT).sessions.create().id for _ in range(4)]
    with Writers() as writers:
        for style in ("threads", "tasks", "tasks"):
            writers.start(Work(url, sessions, style=style, width=4))
        for _ in range(crashes):
            writers.work(random.randrange(20, 120))
            random.choice((server.kill, server.kill, server.stop))()
            server.start()
        writers.work(60)
        writers.kill(*writers.alive)
        with Holdfast(url) as hf:
            assert writers.ledger.problems(hf.tenant(TENANT)) == []
        assert writers.refusals, "the server was never away"
        assert {refusal.partition(":")[0] for refusal in writers.refusals} <= HONEST


HONEST = {"Unavailable", "ConnectionLost", "OutcomeUnknown"}
"""What a caller may be told while the server is gone."""


def test_a_crashing_postgres_loses_no_acknowledged_write(own_postgres: PostgresServer) -> None:
    crash_many(own_postgres, crashes=6, seed=1)


@pytest.mark.soak
def test_a_postgres_that_crashes_often_loses_no_acknowledged_write(own_postgres: PostgresServer) -> None:
    crash_many(own_postgres, crashes=300, seed=2)


def a_ledger(session: str, ids: list[str], seqs: list[int]) -> Ledger:
    ledger = Ledger()
    ledger.note(Line("trying", 1, session, ids))
    ledger.note(Line("acknowledged", 1, session, ids, seqs))
    return ledger


def test_the_ledger_detects_lost_foreign_and_changed_messages(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as hf:
        tenant = hf.tenant(TENANT)
        session = tenant.sessions.create()
        message = tenant.messages.append(session.id, role="user", content="not what was promised", token_count=0)
        other = tenant.sessions.create().id
        assert [problem.split(":")[0] for problem in a_ledger(session.id, [other], [1]).problems(tenant)] == [
            "lost",
            f"no writer wrote {message.id}",
            "not as written",
            f"{session.id} counts 1 messages, 0 tokens, of 1",
        ]
        half = a_ledger(session.id, [message.id, other], [1, 2]).problems(tenant)
        assert any(item.startswith("half done") for item in half)
