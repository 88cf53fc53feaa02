"""The schema functions: migrations in steps, integrity checks, and databases that do not exist."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from holdfast import Holdfast, NewAgent, schema
from holdfast.errors import InvalidInput, SchemaMismatch, Unavailable


def test_a_database_is_migrated_up_in_steps_and_down_again(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    first = schema.migrate_up(url, to=1)
    assert [(migration.version, migration.applied) for migration in first] == [(1, True)]
    assert [status.version for status in schema.migration_status(url) if status.applied] == [1]
    missing = schema.check_integrity(url)
    assert missing[0] == "migration 2 is not applied"
    rest = schema.migrate_up(url)
    assert len(missing) == len(rest)
    assert schema.migrate_up(url) == []
    assert schema.check_integrity(url) == []
    undone = schema.migrate_down(url, to=rest[-2].version)
    assert [(migration.version, migration.applied) for migration in undone] == [(rest[-1].version, False)]


@pytest.mark.parametrize(
    "call", [schema.migration_status, schema.check_integrity, lambda url: schema.migrate_down(url, to=0)]
)
def test_inspecting_a_missing_database_does_not_create_it(tmp_path: Path, call: Any) -> None:
    with pytest.raises(Unavailable):
        call(str(tmp_path / "absent.db"))
    assert list(tmp_path.iterdir()) == []


def test_only_postgresql_can_be_distributed(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    schema.migrate_up(url)
    with pytest.raises(InvalidInput):
        schema.distribute(url)


def test_a_row_without_its_parent_is_reported_once(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    with Holdfast(url) as hf:
        for number in range(3):
            hf.tenant("acme").agents.create(NewAgent(str(number)))
            hf.tenant("acme").blocks.set(str(number), "persona", "x")
    raw = apsw.Connection(url)
    raw.execute("PRAGMA foreign_keys = OFF; DELETE FROM agents")
    raw.close()
    problems = schema.check_integrity(url)
    assert problems
    assert len(problems) == len(set(problems))
    assert all(problem.endswith("a row refers to a row of agents that does not exist") for problem in problems)


def test_a_file_that_is_not_a_database_is_reported_and_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(Random(3).randbytes(9_000))
    (problem,) = schema.check_integrity(str(path))
    assert "not a database" in problem
    assert len(path.read_bytes()) == 9_000


def test_an_unknown_migration_raises_instead_of_being_reported(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    schema.migrate_up(url)
    raw = apsw.Connection(url)
    raw.execute(
        "UPDATE schema_migrations SET version = 9999 WHERE version = (SELECT max(version) FROM schema_migrations)"
    )
    raw.close()
    with pytest.raises(SchemaMismatch):
        schema.check_integrity(url)
