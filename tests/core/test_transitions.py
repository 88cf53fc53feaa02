"""State machines: only legal moves, one of two concurrent callers succeeds, and one holder at a time whatever the clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Struct

from holdfast.core.actor_context import ActorContext
from holdfast.core.blocking import blocking
from holdfast.core.filters import column
from holdfast.core.records import Limited
from holdfast.core.store import writes_with_actor
from holdfast.core.transition_stores import AsyncLeasedTransitions, LeasedTransitions
from holdfast.core.transitions import Lease, Move, TransitionTable
from holdfast.engines.protocol import Connection
from holdfast.errors import Conflict, Fenced, InvalidInput, LimitExceeded, NotFound
from holdfast.ids import Id
from tests.core.table_databases import TableDatabase, check_statements, database, detects, with_defect
from tests.errors import raises

IDS = [f"01900000-0000-7000-8000-00000000000{number}" for number in range(5)]
TTL_MS = 10_000


class Task(Struct, frozen=True):
    id: Id
    status: Literal["pending", "running", "done", "failed", "cancelled"]
    result: Annotated[str | None, Limited("text_bytes")]
    holder: Annotated[str, Limited("name_bytes")]
    lease_until: datetime | None
    epoch: int
    attempts: int


class AsyncTasks(AsyncLeasedTransitions[Task]):
    """Tasks."""

    transitions = TransitionTable(
        "machine",
        Task,
        noun="task",
        moves={
            "finish": Move({"running": "done"}, sets=("result",), by_holder=True),
            "release": Move({"running": "pending"}, by_holder=True),
            "cancel": Move({"pending": "cancelled", "running": "cancelled"}),
            "retry": Move({"failed": "pending", "cancelled": "pending"}),
        },
        lease=Lease(ready="pending", held="running", failed="failed", max_attempts=2),
    )

    @writes_with_actor
    async def create(self, connection: Connection, acting: ActorContext, id: str, result: str | None = None) -> Task:
        return await self._create(connection, acting, {"result": result}, id=id)

    @writes_with_actor
    async def move(
        self,
        connection: Connection,
        acting: ActorContext,
        id: str,
        name: str,
        *,
        epoch: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Task:
        return await self._move(connection, acting, id, name, epoch=epoch, values=values)


class Tasks(LeasedTransitions[Task]):
    """The same for synchronous programs."""

    create = blocking(AsyncTasks.create)
    move = blocking(AsyncTasks.move)


TABLE = """CREATE TABLE machine (tenant_id {text} NOT NULL, id {id} NOT NULL, status {text} NOT NULL DEFAULT 'pending',
    result {text}, due_at {time}, holder {text} NOT NULL DEFAULT '', lease_until {time}, epoch {int} NOT NULL DEFAULT 0,
    attempts {int} NOT NULL DEFAULT 0, PRIMARY KEY (tenant_id, id))"""


@pytest.fixture(params=["sqlite", "postgres"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableDatabase]:
    with database(request, tmp_path, "machine", TABLE) as result:
        yield result


def add(here: TableDatabase, *ids: str, tenant: str = "acme") -> None:
    for id in ids:
        here.execute(f"INSERT INTO machine (tenant_id, id) VALUES ('{tenant}', '{id}') RETURNING 1")


def tasks(here: TableDatabase, tenant: str = "acme") -> Tasks:
    return here.store(AsyncTasks, Tasks, tenant)


Open = Callable[..., Tasks]


def taken(store: Tasks, holder: str = "w") -> Task:
    task = store.claim(holder, ttl_ms=TTL_MS)
    assert task is not None
    return task


def a_row_is_created_once_and_listed(here: TableDatabase, open: Open) -> None:
    acme, zenith = open(here), open(here, "zenith")
    made = [acme.create(id, "r") for id in (IDS[2], IDS[0], IDS[1])]
    assert (made[0].status, made[0].holder, made[0].lease_until, made[0].epoch) == ("pending", "", None, 0)
    acme.move(IDS[0], "cancel")
    assert acme.create(IDS[0], "r").status == "cancelled", "repeating it changes nothing"
    with raises(Conflict, reason="other_content"):
        acme.create(IDS[0], "other")
    assert [task.id for task in acme.list()] == IDS[:3]
    assert acme.list(status="pending") == [made[2], made[0]]
    assert acme.list(where=[column("id").eq(IDS[2])]) == [made[0]]
    assert (acme.count(), acme.count(status="cancelled")) == (3, 1)
    page = acme.list(limit=2)
    assert [task.id for task in acme.list(limit=2, cursor=page.next)] == IDS[2:3]
    assert acme.get(IDS[1]) == made[2]
    assert zenith.list() == []
    assert zenith.count() == 0
    zenith.create(IDS[0], "theirs")
    for tenant, result in ((acme, "r"), (zenith, "theirs")):
        assert tenant.get(IDS[0]).result == result


def the_oldest_is_claimed_once(here: TableDatabase, open: Open) -> None:
    add(here, IDS[1], IDS[0])
    acme = open(here)
    first, second = taken(acme), taken(acme, "v")
    assert (first.id, first.status, first.holder, first.epoch, first.attempts) == (IDS[0], "running", "w", 1, 1)
    assert (second.id, second.holder) == (IDS[1], "v")
    assert acme.claim("w", ttl_ms=TTL_MS) is None
    result = acme.move(first.id, "finish", epoch=1, values={"result": "7"})
    assert (result.status, result.result, result.holder, result.lease_until, result.attempts) == (
        "done",
        "7",
        "",
        None,
        0,
    )
    assert acme.claim("w", ttl_ms=TTL_MS) is None


def only_legal_moves_are_made(here: TableDatabase, open: Open) -> None:
    add(here, IDS[0])
    acme = open(here)
    with raises(Conflict, reason="status") as refused:
        acme.move(IDS[0], "retry")
    assert all(name in str(refused.value) for name in (IDS[0], "pending", "retry", "failed", "cancelled"))
    assert acme.move(IDS[0], "cancel").status == "cancelled"
    with raises(Conflict, reason="status") as refused:
        acme.move(IDS[0], "cancel")
    assert all(name in str(refused.value) for name in (IDS[0], "cancelled", "pending", "running"))
    assert acme.claim("w", ttl_ms=TTL_MS) is None
    assert acme.move(IDS[0], "retry").status == "pending"
    with pytest.raises(NotFound):
        acme.move(IDS[1], "cancel")


def an_expired_lease_is_taken_over_and_its_holder_fenced(here: TableDatabase, open: Open) -> None:
    add(here, IDS[0])
    acme = open(here)
    old = taken(acme)
    here.clock.advance(9)
    assert acme.claim("v", ttl_ms=TTL_MS) is None
    here.clock.advance(1)
    new = taken(acme, "v")
    assert (new.holder, new.epoch, new.attempts) == ("v", 2, 2)
    for call in (
        lambda: acme.move(old.id, "finish", epoch=old.epoch),
        lambda: acme.renew(old.id, epoch=old.epoch, ttl_ms=TTL_MS),
    ):
        with pytest.raises(Fenced):
            call()
    assert acme.move(new.id, "release", epoch=new.epoch).status == "pending"
    with pytest.raises(Conflict):
        acme.renew(new.id, epoch=new.epoch, ttl_ms=TTL_MS)


def a_renewed_lease_is_kept(here: TableDatabase, open: Open) -> None:
    add(here, IDS[0])
    acme = open(here)
    task = taken(acme)
    for _ in range(3):
        here.clock.advance(9)
        task = acme.renew(task.id, epoch=task.epoch, ttl_ms=TTL_MS)
        assert acme.claim("v", ttl_ms=TTL_MS) is None
        assert acme.recover() == []
    assert acme.move(task.id, "finish", epoch=task.epoch).status == "done"


def a_move_from_outside_fences_the_holder(here: TableDatabase, open: Open) -> None:
    add(here, IDS[0])
    acme = open(here)
    task = taken(acme)
    assert acme.move(task.id, "cancel").status == "cancelled"
    acme.move(task.id, "retry")
    taken(acme, "v")
    with pytest.raises(Fenced):
        acme.move(task.id, "finish", epoch=task.epoch)


def expired_leases_are_recovered_and_fail_after_too_many_attempts(here: TableDatabase, open: Open) -> None:
    add(here, IDS[0])
    acme = open(here)
    for attempt, status in ((1, "pending"), (2, "failed")):
        task = taken(acme)
        assert (task.attempts, acme.recover()) == (attempt, [])
        here.clock.advance(10)
        recovered = [(row.status, row.holder, row.lease_until) for row in acme.recover()]
        assert recovered == [(status, "", None)]
        assert acme.recover() == []
        with pytest.raises(Fenced):
            acme.move(task.id, "finish", epoch=task.epoch)
    assert acme.claim("w", ttl_ms=TTL_MS) is None
    acme.move(IDS[0], "retry")
    assert taken(acme).attempts == 1


def an_exhausted_task_is_not_taken_over(here: TableDatabase, open: Open) -> None:
    add(here, IDS[0])
    acme = open(here)
    for _ in range(2):
        taken(acme)
        here.clock.advance(10)
    assert acme.claim("w", ttl_ms=TTL_MS) is None
    assert [task.status for task in acme.recover()] == ["failed"]


def tasks_of_tenants_are_separate(here: TableDatabase, open: Open) -> None:
    add(here, IDS[0])
    add(here, IDS[0], tenant="zenith")
    acme, zenith = open(here), open(here, "zenith")
    mine = taken(acme)
    assert acme.claim("w", ttl_ms=TTL_MS) is None
    theirs = taken(zenith, "v")
    here.clock.advance(9)
    theirs = zenith.renew(theirs.id, epoch=theirs.epoch, ttl_ms=TTL_MS)
    here.clock.advance(1)
    assert [task.id for task in acme.recover()] == [mine.id]
    assert acme.move(mine.id, "cancel").status == "cancelled"
    assert zenith.move(theirs.id, "finish", epoch=theirs.epoch).status == "done"


PROMISES = [
    a_row_is_created_once_and_listed,
    the_oldest_is_claimed_once,
    only_legal_moves_are_made,
    an_expired_lease_is_taken_over_and_its_holder_fenced,
    a_renewed_lease_is_kept,
    a_move_from_outside_fences_the_holder,
    expired_leases_are_recovered_and_fail_after_too_many_attempts,
    an_exhausted_task_is_not_taken_over,
    tasks_of_tenants_are_separate,
]


@pytest.mark.parametrize("promise", PROMISES)
def test_a_state_machine(here: TableDatabase, promise: Callable[[TableDatabase, Open], None]) -> None:
    promise(here, tasks)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WHERE tenant_id = :tenant_id AND id = :id", "WHERE id = :id"),
        ("WHERE tenant_id = :tenant_id AND ((status", "WHERE ((status"),
        ("WHERE tenant_id = :tenant_id AND status = 'running' AND id IN", "WHERE status = 'running' AND id IN"),
        (" AND epoch = :epoch", ""),
        ("epoch = epoch + 1,", ""),
        (", epoch = epoch + 1", ""),
        ("status = 'running' AND lease_until <= :now_at", "status = 'running'"),
        ("OR (status = 'running' AND lease_until <= :now_at)", ""),
        ("lease_until <= :now_at", "lease_until < :now_at"),
        ("attempts = attempts + 1", "attempts = attempts"),
        (" AND attempts < 2", ""),
        ("attempts = 0", "attempts = attempts"),
        (" AND status IN ('pending', 'running')", ""),
        ("lease_until = :lease_until_at\n", "lease_until = lease_until\n"),
        ("ORDER BY id", "ORDER BY id DESC"),
        ("DO NOTHING", "DO UPDATE SET result = excluded.result"),
        ("WHERE tenant_id = :tenant_id/*where*/", "WHERE TRUE/*where*/"),
    ],
)
def test_a_defect_is_detected(here: TableDatabase, old: str, new: str) -> None:
    wrong = type("Wrong", (AsyncTasks,), {"transitions": with_defect(AsyncTasks.transitions, old, new)})
    assert detects(here, PROMISES, lambda database, tenant="acme": database.store(wrong, Tasks, tenant), "machine")


def test_concurrent_claims_get_distinct_rows(here: TableDatabase) -> None:
    add(here, *IDS)
    acme = tasks(here)
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda number: acme.claim(f"w{number}", ttl_ms=TTL_MS), range(8)))
    assert sorted(task.id for task in claims if task is not None) == IDS


class Job(Struct, frozen=True):
    id: Id
    status: Annotated[str, Limited("name_bytes")]
    holder: Annotated[str, Limited("name_bytes")]
    lease_until: datetime | None
    epoch: int
    attempts: int
    due_at: datetime | None


class AsyncJobs(AsyncLeasedTransitions[Job]):
    """Jobs with a due time."""

    transitions = TransitionTable(
        "machine",
        Job,
        noun="job",
        moves={},
        lease=Lease(ready="pending", held="running", failed="failed", max_attempts=2, due="due_at"),
    )


class Jobs(LeasedTransitions[Job]):
    """The same for synchronous programs."""


def test_a_row_is_claimed_when_it_is_due(here: TableDatabase) -> None:
    add(here, *IDS[:3])
    due = here.clock.now_us() // 1_000_000 + 5
    value = f"to_timestamp({due})" if here.dialect.native_time else f"{due}000000"
    here.execute(f"UPDATE machine SET due_at = {value} WHERE id = '{IDS[1]}' RETURNING 1")
    jobs = here.store(AsyncJobs, Jobs)
    assert jobs.claim("w", ttl_ms=TTL_MS) is None
    here.clock.advance(5)
    claimed = jobs.claim("w", ttl_ms=TTL_MS)
    assert claimed is not None
    assert claimed.id == IDS[1]
    assert jobs.claim("w", ttl_ms=TTL_MS) is None


def test_invalid_arguments_are_rejected(here: TableDatabase) -> None:
    add(here, IDS[0])
    acme = tasks(here)
    wrong: Any
    calls: list[Callable[[], Any]] = [
        lambda: acme.move(IDS[0], "explode"),
        lambda: acme.move(IDS[0], "cancel", epoch=1),
        lambda: acme.move(IDS[0], "finish"),
        lambda: acme.move(IDS[0], "cancel", values={"result": "x"}),
        lambda: acme.move("no id", "cancel"),
        lambda: acme.claim("", ttl_ms=1),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    for wrong in (0, -1, True, "1", None):
        with pytest.raises(InvalidInput):
            acme.claim("w", ttl_ms=wrong)
    for wrong in (-1, True, "1", 1.0):
        with pytest.raises(InvalidInput):
            acme.move(IDS[0], "finish", epoch=wrong)
    with raises(LimitExceeded, limit="lease_ms"):
        acme.claim("w", ttl_ms=900_001)
    assert taken(acme).attempts == 1


def test_the_statements_follow_the_rules(here: TableDatabase, request: pytest.FixtureRequest) -> None:
    check_statements(here, AsyncTasks.transitions, request)
