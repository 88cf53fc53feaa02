"""Which schemas are opened and which are refused; upgrades and downgrades lead back to the same schema."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import psycopg
import pytest

from holdfast import AsyncHoldfast, Holdfast
from holdfast.clock import FixedClock
from holdfast.engines.dialect import Dialect
from holdfast.errors import InvalidInput, SchemaMismatch, Unavailable
from holdfast.migrations.files import migrations
from holdfast.schema import migrate_down, migrate_up, migration_status
from tests.errors import raises
from tests.migrations import catalogue

ENGINES = ["sqlite", "sqlite through the standard library", "postgres"]
LATEST = len(migrations(Dialect.SQLITE))


class Place:
    """A database that has never been migrated, and ways to look into it and to tamper with it."""

    def __init__(self, url: str, path: str | None) -> None:
        self.url, self._path = url, path

    def execute(self, sql: str) -> list[Any]:
        """Run a statement on a separate connection."""
        if self._path is None:
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(sql.encode())
                return cursor.fetchall() if cursor.description else []
        raw = apsw.Connection(self._path)
        try:
            return raw.execute(sql).fetchall()
        finally:
            raw.close()

    def everything(self) -> list[str]:
        """Return every detail of the schema except for the ledger, which may exist and be empty."""
        actual = catalogue.everything(self._path or self.url)
        return [line for line in actual if "schema_migrations" not in line]


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "postgres":
        return Place(request.getfixturevalue("bare_postgres_url"), None)
    path = str(tmp_path / "a.db")
    return Place(path if request.param == "sqlite" else f"sqlite:///{path}?library=stdlib", path)


def openings(place: Place) -> list[Callable[[], Any]]:
    """Return every way to open a database."""

    async def asynchronously() -> None:
        async with AsyncHoldfast(place.url, auto_migrate=True):
            pass

    return [
        lambda: Holdfast(place.url).close(),
        lambda: Holdfast(place.url, auto_migrate=True).close(),
        lambda: Holdfast(place.url, auto_migrate=False).close(),
        lambda: asyncio.run(asynchronously()),
        lambda: migrate_up(place.url),
        lambda: migration_status(place.url),
        lambda: migrate_down(place.url, to=0),
    ]


def test_upgrades_and_downgrades_lead_to_the_same_schemas(place: Place) -> None:
    migrate_up(place.url, to=0)
    rungs = [place.everything()]
    assert rungs == [[]]
    for version in range(1, LATEST + 1):
        (completed,) = migrate_up(place.url, to=version)
        assert (completed.version, completed.applied) == (version, True)
        rungs.append(place.everything())
        assert rungs[-1] != rungs[-2]
    for version in reversed(range(LATEST)):
        (undone,) = migrate_down(place.url, to=version)
        assert (undone.version, undone.applied) == (version + 1, False)
        assert place.everything() == rungs[version]
    assert [item.version for item in migrate_up(place.url)] == list(range(1, LATEST + 1))
    assert place.everything() == rungs[LATEST]


def test_a_downgrade_removes_its_data_and_the_schema_can_be_created_again(place: Place) -> None:
    with Holdfast(place.url, auto_migrate=True) as hf:
        hf.tenant("acme").sessions.create(key="k")
    migrate_down(place.url, to=0)
    with Holdfast(place.url, auto_migrate=True) as hf:
        assert hf.tenant("acme").sessions.count() == 0
        hf.tenant("acme").sessions.create(key="k")


def test_a_repeated_upgrade_does_nothing(place: Place) -> None:
    assert len(migrate_up(place.url)) == LATEST
    ledger = place.execute("SELECT * FROM schema_migrations")
    assert migrate_up(place.url) == []
    assert place.execute("SELECT * FROM schema_migrations") == ledger


def test_the_ledger_lists_the_applied_migrations(place: Place) -> None:
    migrate_up(place.url)
    rows = place.execute("SELECT version, name, checksum FROM schema_migrations ORDER BY version")
    initial = migrations(Dialect.POSTGRES if place.url.startswith("postgresql") else Dialect.SQLITE)
    assert [tuple(row) for row in rows] == [(item.version, item.name, item.checksum) for item in initial]
    assert [(item.version, item.name, item.applied) for item in migration_status(place.url)] == [
        (item.version, item.name, True) for item in initial
    ]


@pytest.mark.parametrize("way", range(7))
def test_an_applied_file_that_was_edited_is_refused_by_name(way: int, place: Place) -> None:
    migrate_up(place.url)
    before = place.everything()
    place.execute("UPDATE schema_migrations SET checksum = 'of another text' WHERE version = 1")
    with pytest.raises(SchemaMismatch, match="0001_conversation"):
        openings(place)[way]()
    assert place.everything() == before


@pytest.mark.parametrize("way", range(7))
def test_a_newer_schema_is_rejected_with_advice_to_upgrade(way: int, place: Place) -> None:
    migrate_up(place.url)
    before = place.everything()
    place.execute(
        "INSERT INTO schema_migrations (version, name, checksum, applied_at) "
        f"SELECT {LATEST + 1}, 'from_the_future', 'x', applied_at FROM schema_migrations WHERE version = 1"
    )
    with pytest.raises(SchemaMismatch, match=f"{LATEST + 1:04}_from_the_future"):
        openings(place)[way]()
    assert place.everything() == before


def test_an_older_schema_is_refused_without_auto_migrate(place: Place) -> None:
    migrate_up(place.url)
    migrate_down(place.url, to=LATEST - 1)
    with pytest.raises(SchemaMismatch, match=r"\b1\b.* `holdfast migrate up`"):
        Holdfast(place.url, auto_migrate=False)
    with Holdfast(place.url, auto_migrate=True) as hf:
        assert hf.tenant("acme").sessions.count() == 0


def test_sqlite_is_migrated_when_opened_unless_disabled(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with pytest.raises(SchemaMismatch, match="auto_migrate=True"):
        Holdfast(path, auto_migrate=False)
    assert Place(path, path).everything() == []
    with Holdfast(path) as hf:
        hf.tenant("acme").sessions.create(key="k")


def test_another_programs_sqlite_file_keeps_its_own_tables(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    Place(path, path).execute("CREATE TABLE theirs (x INTEGER)")
    with Holdfast(path) as hf:
        hf.tenant("acme").sessions.create(key="k")
    migrate_down(path, to=0)
    assert Place(path, path).everything() == ["table theirs CREATE TABLE theirs (x INTEGER)"]


def test_another_programs_table_of_the_same_name_fails_the_whole_migration(place: Place) -> None:
    place.execute("CREATE TABLE messages (x INTEGER)")
    before = place.everything()
    with pytest.raises(Exception, match="messages"):
        migrate_up(place.url)
    assert place.everything() == before
    place.execute("DROP TABLE messages")
    assert len(migrate_up(place.url)) == LATEST


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_unmigrated_postgres_raises_with_the_command_to_run(asynchronous: bool, bare_postgres_url: str) -> None:
    async def run(auto_migrate: bool | None) -> int:
        async with AsyncHoldfast(bare_postgres_url, auto_migrate=auto_migrate) as hf:
            return await hf.tenant("acme").sessions.count()

    def count(auto_migrate: bool | None) -> int:
        if asynchronous:
            return asyncio.run(run(auto_migrate))
        with Holdfast(bare_postgres_url, auto_migrate=auto_migrate) as hf:
            return hf.tenant("acme").sessions.count()

    for auto_migrate in (None, False):
        with pytest.raises(SchemaMismatch, match=r"`holdfast migrate up`.* auto_migrate=True"):
            count(auto_migrate)
    assert Place(bare_postgres_url, None).everything() == []
    assert count(True) == 0
    assert count(None) == 0


def test_a_read_only_file_is_never_migrated(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    Place(path, path).execute("CREATE TABLE theirs (x INTEGER)")
    with pytest.raises(SchemaMismatch):
        Holdfast(f"sqlite:///{path}?mode=ro")
    assert len(Place(path, path).everything()) == 1


def test_reading_the_status_creates_no_file(tmp_path: Path) -> None:
    path = str(tmp_path / "not.there")
    for ask in (migration_status, lambda url: migrate_down(url, to=0)):
        with pytest.raises(Unavailable):
            ask(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("to", [-1, LATEST + 1, 9_999])
def test_a_downgrade_to_an_unknown_version_is_rejected(to: int, place: Place) -> None:
    migrate_up(place.url)
    with raises(InvalidInput, field="to"):
        migrate_down(place.url, to=to)
    assert all(item.applied for item in migration_status(place.url))


def test_the_time_of_a_migration_comes_from_the_clock(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    Holdfast(path, clock=FixedClock(1_234_567_890_000_000)).close()
    assert set(Place(path, path).execute("SELECT applied_at FROM schema_migrations")) == {(1_234_567_890_000_000,)}


def test_a_separate_schema_can_be_used_on_postgres(bare_postgres_url: str) -> None:
    """Two programs may share a database, each with the first schema of its search path."""
    Place(bare_postgres_url, None).execute("CREATE SCHEMA one; CREATE SCHEMA two")
    for name in ("one", "two"):
        url = f"{bare_postgres_url}&options=-c%20search_path%3D{name}"
        with Holdfast(url, auto_migrate=True) as hf:
            hf.tenant("acme").sessions.create(key=name)
            assert [session.key for session in hf.tenant("acme").sessions.list()] == [name]
    assert Place(bare_postgres_url, None).everything() == []


def test_an_unknown_target_version_is_rejected(place: Place) -> None:
    with raises(InvalidInput, field="to"):
        migrate_up(place.url, to=99)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_processes_that_start_together_see_each_other_at_any_isolation_level(
    bare_postgres_url: str, isolation: str
) -> None:
    database = urlsplit(bare_postgres_url).path.lstrip("/")
    with psycopg.connect(bare_postgres_url, autocommit=True) as connection:
        setting = f"ALTER DATABASE \"{database}\" SET default_transaction_isolation = '{isolation}'"
        connection.execute(setting.encode())
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(migrate_up, [bare_postgres_url] * 4):
            pass
    assert all(item.applied for item in migration_status(bare_postgres_url))
