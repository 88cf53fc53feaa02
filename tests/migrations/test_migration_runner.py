"""Migrations: splitting scripts, applying and reverting, refusals, and the order of distribution."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.clock import FixedClock
from holdfast.drivers.apsw import ApswConnection
from holdfast.engines.dialect import Dialect
from holdfast.errors import HoldfastError, InvalidInput, SchemaMismatch
from holdfast.migrations import runner
from holdfast.migrations.distribution import PlannedTable, plan
from holdfast.migrations.files import MACROS, Migration, parse, plain_sql, statements
from holdfast.migrations.runner import Status, created_tables
from holdfast.sync_runner import step
from tests.errors import raises

NOW_US = 1_700_000_000_000_000
CLOCK = FixedClock(NOW_US)
TRIGGER = "CREATE TRIGGER x AFTER INSERT ON t BEGIN\n  UPDATE t SET n = 1;\n  UPDATE t SET n = 2;\nEND;"


# Scripts


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("", []),
        ("\n\n", []),
        ("-- only a remark\n  -- and another\n", []),
        ("SELECT 1;", ["SELECT 1;"]),
        ("SELECT 1;\nSELECT 2;\n", ["SELECT 1;", "SELECT 2;"]),
        ("-- first\n\nSELECT 1;\n-- then\nSELECT 2;", ["SELECT 1;", "SELECT 2;"]),
        ("SELECT 1,\n    2;\n", ["SELECT 1,\n    2;"]),
        ("SELECT ';',\n ';';\n", ["SELECT ';',\n ';';"]),
        ("SELECT 'a\n;\nb';\n", ["SELECT 'a\n;\nb';"]),
        ("SELECT 1 -- a remark; with a semicolon\n, 2;\n", ["SELECT 1 -- a remark; with a semicolon\n, 2;"]),
        ("SELECT 1, -- a remark\n-- another\n2;\n", ["SELECT 1, -- a remark\n-- another\n2;"]),
        ("SELECT 1 /* ; */\n, 2;\n", ["SELECT 1 /* ; */\n, 2;"]),
        (f"{TRIGGER}\nSELECT 1;\n", [TRIGGER, "SELECT 1;"]),
        ("SELECT '漢;字';\n", ["SELECT '漢;字';"]),
    ],
)
def test_a_script_is_split_into_its_statements(script: str, found: list[str]) -> None:
    assert statements(script) == found


NAMES = st.text("abc;'-\n", max_size=6).map(lambda text: "'" + text.replace("'", "''") + "'")


@settings(max_examples=60)
@given(st.lists(st.tuples(NAMES, st.sampled_from(["", "-- a remark; and more\n", "\n", "  -- '\n"])), max_size=6))
def test_joined_statements_are_split_again(parts: list[tuple[str, str]]) -> None:
    made = [f"SELECT {text};" for text, _ in parts]
    script = "".join(f"{between}{item}\n" for item, (_, between) in zip(made, parts, strict=True))
    assert statements(script) == made


@pytest.mark.parametrize("dialect", Dialect)
def test_every_statement_of_a_migration_is_split_completely(dialect: Dialect) -> None:
    for migration in runner.migrations(dialect):
        for script in (migration.up, migration.down):
            cut = statements(script)
            assert cut
            assert _told("\n".join(cut)) == _told(script), f"{migration}: the end of the script is no statement"


def _told(script: str) -> list[str]:
    """Return the lines of a script without comments and empty lines."""
    return [line.strip() for line in script.splitlines() if line.strip() and not line.lstrip().startswith("--")]


@pytest.mark.parametrize("dialect", Dialect)
def test_migrations_are_numbered_without_a_gap(dialect: Dialect) -> None:
    actual = runner.migrations(dialect)
    assert [item.version for item in actual] == [*range(1, len(actual) + 1)]
    assert len({item.name for item in actual}) == len(actual)
    for item in actual:
        assert item.checksum == hashlib.sha256(item.up.encode()).hexdigest()
        assert str(item) == f"{item.version:04}_{item.name}"
    assert runner.migrations(dialect) is actual, "they are read once"


def test_both_engines_have_the_same_migrations() -> None:
    names = [[str(migration) for migration in runner.migrations(dialect)] for dialect in Dialect]
    assert names[0] == names[1]


# Files for both engines


def rendered(text: str) -> list[str]:
    """Return the upgrade of a file as each engine sees it."""
    return [parse("0042_widgets.sql", f"{text}\n-- down\nDROP TABLE widgets;\n", dialect).up for dialect in Dialect]


@pytest.mark.parametrize("name", sorted(MACROS))
def test_a_macro_is_replaced_by_its_engines_type(name: str) -> None:
    assert rendered(f"a {{{name}}} b;") == [
        "a b;\n" if not MACROS[name][dialect] else f"a {MACROS[name][dialect]} b;\n" for dialect in Dialect
    ]


@pytest.mark.parametrize(
    ("text", "sqlite", "postgres"),
    [
        (
            "at {time}   NOT NULL /*pg DEFAULT now()*/,",
            "at INTEGER NOT NULL,",
            "at TIMESTAMPTZ NOT NULL DEFAULT now(),",
        ),
        ("WHERE x /*sqlite = 1*/;", "WHERE x = 1;", "WHERE x;"),
        (") {clustered} /*pg WITH (fillfactor = 70)*/;", ") STRICT, WITHOUT ROWID;", ") WITH (fillfactor = 70);"),
        ("a,\n    /*pg words TSVECTOR,*/\nb", "a,\nb", "a,\n    words TSVECTOR,\nb"),
        ("/*pg\nONE;\n*/\n/*sqlite\nTWO {int};\n*/", "TWO INTEGER;", "ONE;"),
        ("a DEFAULT '{}', /* a remark */ b", "a DEFAULT '{}', /* a remark */ b", "a DEFAULT '{}', /* a remark */ b"),
    ],
)
def test_each_engine_sees_its_own_clauses(text: str, sqlite: str, postgres: str) -> None:
    assert rendered(text) == [f"{sqlite}\n", f"{postgres}\n"]


def test_the_downgrade_follows_the_marker() -> None:
    actual = parse("0042_widgets.sql", "CREATE TABLE w (x {int});\n\n-- down\n\nDROP TABLE w;\n", Dialect.POSTGRES)
    assert actual == migration(42, "CREATE TABLE w (x BIGINT);\n", "DROP TABLE w;\n", "widgets")


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("widgets.sql", "-- down\n", "filename", "widgets.sql"),
        ("0042_widgets.up.sql", "-- down\n", "filename", "0042_widgets.up.sql"),
        ("0042_widgets.sql", "SELECT 1;\n", "down", "0"),
        ("0042_widgets.sql", "-- down\n-- down\n", "down", "2"),
        (
            "0042_widgets.sql",
            "x {uuid},\n-- down\n",
            "macro",
            "{uuid}",
        ),
    ],
)
def test_an_invalid_migration_file_is_refused_with_the_reason(name: str, text: str, field: str, value: str) -> None:
    with raises(InvalidInput, field=field) as caught:
        parse(name, text, Dialect.SQLITE)
    assert name in str(caught.value)
    assert value in str(caught.value)


@pytest.mark.parametrize("dialect", Dialect)
def test_the_printed_sql_is_one_transaction_of_all_later_migrations(dialect: Dialect) -> None:
    initial = runner.migrations(dialect)
    for after in range(len(initial) + 1):
        expected = [statement for item in initial[after:] for statement in statements(item.up)]
        assert statements(plain_sql(dialect, after=after)) == ["BEGIN;", *expected, "COMMIT;"]
    for wrong in (-1, len(initial) + 1):
        with raises(InvalidInput, field="after"):
            plain_sql(dialect, after=wrong)


# Applying and undoing


def migration(version: int, up: str, down: str = "", name: str = "") -> Migration:
    named = name or f"step{version}"
    return Migration(version, named, up, down, hashlib.sha256(up.encode()).hexdigest())


ONE = migration(1, "CREATE TABLE one (x);\nINSERT INTO one VALUES (1);\n", "DROP TABLE one;\n")
TWO = migration(2, "CREATE TABLE two (x);\nINSERT INTO two SELECT x FROM one;\n", "DROP TABLE two;\n")
THREE = migration(3, "CREATE INDEX three ON two (x);\n", "DROP INDEX three;\n")


class Database:
    """A database in memory, and a release with migrations of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.connection = ApswConnection(apsw.Connection(":memory:"))

    def release(self, *migrations: Migration) -> None:
        """Replace the migrations of the program by these."""
        self._monkeypatch.setattr(runner, "migrations", lambda dialect: migrations)

    def up(self, to: int | None = None) -> list[int]:
        return [item.version for item in step(runner.up(self.connection, CLOCK, to=to))]

    def down(self, to: int) -> list[int]:
        return [item.version for item in step(runner.down(self.connection, to=to))]

    def status(self) -> list[Status]:
        return step(runner.status(self.connection))

    def check(self) -> None:
        step(runner.check(self.connection))

    def things(self) -> set[str]:
        rows = self.connection.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite%'")
        return {row[0] for row in rows} - {"schema_migrations"}

    def ledger(self) -> list[Any]:
        return [*self.connection.execute("SELECT version, name, applied_at FROM schema_migrations ORDER BY version")]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    made = Database(monkeypatch)
    made.release(ONE, TWO, THREE)
    yield made
    made.connection.raw.close()


def test_missing_migrations_are_applied_in_order_and_recorded_with_their_time(database: Database) -> None:
    assert database.up() == [1, 2, 3]
    assert database.things() == {"one", "two", "three"}
    assert database.ledger() == [(1, "step1", NOW_US), (2, "step2", NOW_US), (3, "step3", NOW_US)]
    assert database.up() == []
    database.check()


def test_reading_the_status_creates_no_ledger(database: Database) -> None:
    assert database.status() == [Status(1, "step1", False), Status(2, "step2", False), Status(3, "step3", False)]
    assert not database.connection.execute("SELECT 1 FROM sqlite_master")


@pytest.mark.parametrize(("to", "applied"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3])])
def test_an_upgrade_stops_at_the_given_version(to: int, applied: list[int], database: Database) -> None:
    assert database.up(to) == applied
    assert [item.version for item in database.status() if item.applied] == applied


@pytest.mark.parametrize(("to", "undone"), [(0, [3, 2, 1]), (1, [3, 2]), (2, [3]), (3, [])])
def test_a_downgrade_reverts_the_newest_first(to: int, undone: list[int], database: Database) -> None:
    database.up()
    assert database.down(to) == undone
    assert [row[0] for row in database.ledger()] == [*range(1, to + 1)]
    assert database.down(to) == [], "a second time there is nothing to undo"


@pytest.mark.parametrize("to", [-1, 4, 10_000])
def test_a_downgrade_to_a_missing_version_is_refused(to: int, database: Database) -> None:
    database.up()
    with raises(InvalidInput, field="to"):
        database.down(to)
    assert len(database.ledger()) == 3


def test_a_downgrade_of_an_empty_database_does_nothing(database: Database) -> None:
    assert database.down(0) == []


def test_applied_migrations_are_not_applied_again_by_the_next_release(database: Database) -> None:
    database.release(ONE)
    assert database.up() == [1]
    database.release(ONE, TWO, THREE)
    assert database.up() == [2, 3]


def test_a_failed_migration_is_rolled_back_and_earlier_ones_stay(database: Database) -> None:
    broken = migration(2, "CREATE TABLE two (x);\nINSERT INTO two VALUES (1);\nINSERT INTO nowhere VALUES (1);\n")
    database.release(ONE, broken, THREE)
    with pytest.raises(HoldfastError, match="nowhere"):
        database.up()
    assert database.things() == {"one"}
    assert [row[0] for row in database.ledger()] == [1]
    database.release(ONE, TWO, THREE)
    assert database.up() == [2, 3], "once it is repaired it goes on from there"


def test_a_failed_downgrade_leaves_the_migration_applied(database: Database) -> None:
    broken = migration(3, THREE.up, "DROP INDEX three;\nDROP TABLE nowhere;\n")
    database.release(ONE, TWO, broken)
    database.up()
    with pytest.raises(HoldfastError, match="nowhere"):
        database.down(0)
    assert database.things() == {"one", "two", "three"}
    assert len(database.ledger()) == 3


@pytest.mark.parametrize("missing", [1, 2])
def test_an_outdated_schema_is_refused_with_the_number_of_missing_migrations(missing: int, database: Database) -> None:
    database.up(3 - missing)
    with pytest.raises(SchemaMismatch, match=rf"\b{missing}\b.*`holdfast migrate up`"):
        database.check()


def test_an_edited_migration_is_refused_by_name_everywhere(database: Database) -> None:
    database.up()
    database.release(ONE, migration(2, TWO.up + "-- a remark\n", TWO.down), THREE)
    for way in (database.status, database.check, database.up):
        with pytest.raises(SchemaMismatch, match="0002_step2"):
            way()


def test_a_changed_downgrade_is_not_an_edit(database: Database) -> None:
    database.up()
    database.release(ONE, TWO, migration(3, THREE.up, "-- another way\nDROP INDEX three;\n"))
    database.check()
    assert database.down(2) == [3]


def test_an_older_release_refuses_a_newer_schema_and_changes_nothing(database: Database) -> None:
    database.up()
    database.release(ONE, TWO)
    for way in (database.status, database.check, database.up):
        with pytest.raises(SchemaMismatch, match="0003_step3"):
            way()
    assert len(database.ledger()) == 3


def test_a_gap_left_by_a_merge_is_filled(database: Database) -> None:
    database.release(ONE, later := migration(3, "CREATE TABLE three (x);\n", "DROP TABLE three;\n"))
    assert database.up() == [1, 3]
    database.release(ONE, TWO, later)
    assert [item.applied for item in database.status()] == [True, False, True]
    assert database.up() == [2]


def test_a_migration_in_the_callers_transaction_is_rolled_back_with_it(database: Database) -> None:
    database.connection.execute("BEGIN IMMEDIATE")
    assert database.up() == [1, 2, 3]
    database.connection.execute("ROLLBACK")
    assert database.things() == set()
    assert database.up() == [1, 2, 3]


# Spreading over several machines


def test_sqlite_is_not_distributed(database: Database) -> None:
    database.up()
    with raises(InvalidInput, field="database"):
        step(runner.distribute(database.connection))


def test_a_plan_for_no_tables_is_empty() -> None:
    assert plan([]) == []
    assert plan([PlannedTable("tenants", False)], distributed=["tenants"]) == []
    assert plan([PlannedTable("tenants", False)]) == ["SELECT create_reference_table('tenants')"]


def test_all_tables_of_tenants_are_colocated_with_the_first() -> None:
    actual = plan([PlannedTable("b", True, frozenset({"a"})), PlannedTable("c", True), PlannedTable("a", True)])
    assert actual[0] == "SELECT create_distributed_table('a', 'tenant_id')"
    assert {item.partition("colocate_with => ")[2] for item in actual[1:]} == {"'a')"}


def test_a_foreign_key_to_a_table_of_another_program_is_ignored() -> None:
    actual = plan([PlannedTable("a", True, frozenset({"theirs"}))])
    assert actual == ["SELECT create_distributed_table('a', 'tenant_id')"]


def test_a_cycle_of_foreign_keys_is_refused_with_its_tables() -> None:
    circle = [PlannedTable("a", True, frozenset({"b"})), PlannedTable("b", True, frozenset({"a"}))]
    with pytest.raises(SchemaMismatch, match=r"a -> b -> a|b -> a -> b"):
        plan(circle)
    plan([PlannedTable("a", True, frozenset({"a"}))])  # a table may point to itself


@st.composite
def schemas(draw: st.DrawFn) -> list[PlannedTable]:
    """Generate tables whose keys point to earlier ones, in any order."""
    count = draw(st.integers(0, 7))
    kinds = sorted(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    made: list[PlannedTable] = []
    for number, by_tenant in enumerate(kinds):
        targets = draw(st.sets(st.sampled_from([item.name for item in made]))) if made else set()
        made.append(PlannedTable(f"t{number}", by_tenant, frozenset(targets)))
    return draw(st.permutations(made))


@settings(max_examples=60)
@given(schemas(), st.randoms(use_true_random=False))
def test_a_plan_is_deterministic_and_lists_targets_first(tables: list[PlannedTable], random: Any) -> None:
    actual = plan(tables)
    places = {item.partition("'")[2].partition("'")[0]: place for place, item in enumerate(actual)}
    assert {*places} == {table.name for table in tables}
    for table in tables:
        assert all(places[target] < places[table.name] for target in table.references)
        assert ("create_reference_table" in actual[places[table.name]]) is not table.by_tenant
    random.shuffle(tables := [*tables])
    assert plan(tables) == actual
    completed = {table.name for table in tables if random.random() < 0.5}
    assert plan(tables, distributed=completed) == [item for item in actual if item.split("'")[1] not in completed]


def test_every_created_table_is_listed_once() -> None:
    actual = created_tables()
    assert actual[0] == "schema_migrations"
    assert len({*actual}) == len(actual)
    assert {"tenants", "sessions", "messages", "runs", "api_keys"} <= {*actual}
