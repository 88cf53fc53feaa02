"""No row of a deleted run, or of the runs of a purged session, stays in any table."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, NewMessage, NewToolCall, TenantHandle, ToolOutcome
from holdfast.migrations.catalogue import tables_of_tenants
from holdfast.types import Run

OF_RUNS = (
    "runs", "run_steps", "tool_calls", "rewinds", "rewound_steps", "rewound_calls", "snapshots", "run_retention"
)  # fmt: skip
TREE = Path(holdfast.__file__).parent / "engines" / "sqlite"


@pytest.fixture(params=[True, False], ids=["foreign keys", "no foreign keys"])
def joined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[TenantHandle, sqlite3.Connection]]:
    """A tenant on a caller's own connection, with and without foreign keys."""
    url = str(tmp_path / "a.db")
    with Holdfast(url, sqlite="stdlib") as hf:
        raw = sqlite3.connect(url, isolation_level=None)
        raw.execute(f"PRAGMA foreign_keys = {'ON' if request.param else 'OFF'}")
        yield hf.tenant("acme").join(raw), raw
        raw.close()


def ended(acme: TenantHandle) -> Run:
    """Return a run that has rows in every table of runs."""
    run = acme.runs.start(acme.sessions.create().id)
    claimed = acme.leases.claim("w", run_id=run.id)
    assert claimed is not None
    for step in (1, 2):
        acme.tool_calls.intend(run.id, epoch=claimed.epoch, calls=[NewToolCall(id=str(step), tool_name="t")])
        talk = [NewMessage(role="user", content="hi")]
        calls = [ToolOutcome(id=str(step), result="done")]
        acme.runs.step(run.id, epoch=claimed.epoch, iteration=step, state=step, messages=talk, tool_calls=calls)
    acme.workspaces.capture(run.id, TREE, step=2)
    acme.retention.keep_snapshots_for(run.id, seconds=60)
    rewind = acme.rewinds.begin(run.id, to_step=1, epoch=claimed.epoch)
    acme.rewinds.finish(rewind.id)
    return acme.runs.cancel(run.id)


def traces(raw: sqlite3.Connection, *ids: str) -> set[str]:
    """Return the tables with a row that names one of the ids."""
    result = set()
    for table in tables_of_tenants():
        rows = raw.execute(f"SELECT * FROM {table.name}").fetchall()
        result |= {table.name for row in rows if any(id in str(value) for value in row for id in ids)}
    return result


def _delete(acme: TenantHandle, run: Run) -> None:
    acme.runs.delete(run.id)


def _purge(acme: TenantHandle, run: Run) -> None:
    acme.sessions.purge(run.session_id)


@pytest.mark.parametrize("remove", [_delete, _purge])
def test_no_row_of_a_run_stays(
    joined: tuple[TenantHandle, sqlite3.Connection], remove: Callable[[TenantHandle, Run], None]
) -> None:
    acme, raw = joined
    run, other = ended(acme), ended(acme)
    ids = [run.id, *(item.id for item in acme.rewinds.list(run.id))]
    theirs = [other.id, *(item.id for item in acme.rewinds.list(other.id))]
    of_other = traces(raw, *theirs)
    assert of_other >= {*OF_RUNS}
    assert traces(raw, *ids) >= of_other - {"run_queue"}
    remove(acme, run)
    assert traces(raw, *ids) == {"activity"}
    assert traces(raw, *theirs) == of_other
