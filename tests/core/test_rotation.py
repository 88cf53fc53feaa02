"""Key rotation: every value is encrypted with the first key, despite interruptions and concurrent writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.core import rotation
from holdfast.core.crypto import PREFIX, KeyRing, Secret
from holdfast.core.encrypted_columns import EncryptedColumn
from holdfast.core.scope import Scope
from holdfast.encryption import FAILURES_SHOWN, rotate_secrets
from holdfast.errors import DecryptionFailed, MissingKey
from holdfast.ids import SeededIds

OLD, NEW, LOST = "o" * 32, "n" * 32, "l" * 32
TOKEN = EncryptedColumn("vault", "token")
CREDENTIALS = EncryptedColumn("safe", "credentials", row=("kind", "name"), json=True)
TABLES = [
    "CREATE TABLE vault (tenant_id text, id {uuid}, token text, PRIMARY KEY (tenant_id, id))",
    "CREATE TABLE safe (tenant_id text, kind text, name text, credentials text, PRIMARY KEY (tenant_id, kind, name))",
]
TENANTS = ("acme", "zeta\x00")
ROWS = 5
PER_TRANSACTION = 2


class Vault:
    """A database with two encrypted columns, and plain access to them."""

    def __init__(self, url: str, connection: Any, mark: str) -> None:
        self.url, self.connection, self._mark = url, connection, mark

    def run(self, sql: str, *args: Any) -> list[Any]:
        cursor = self.connection.execute(sql.replace("?", self._mark), args)
        return cursor.fetchall() if self._mark == "?" or cursor.description else []

    def open(self, *keys: str) -> Holdfast:
        return Holdfast(self.url, encryption_key=keys)

    def fill(self, *keys: str, rows: int = ROWS) -> None:
        """Store values in each column of each tenant: encrypted with these keys in turn, and one without a key."""
        rings = [KeyRing(key) for key in keys]
        ids = SeededIds(1)
        with self.open() as hf:
            for tenant in TENANTS:
                for number in range(rows):
                    scope = Scope(tenant, hf._setting)
                    scope.keys = rings[number % len(rings)]
                    self._add(scope, ids.new(), number)
        self.run("UPDATE vault SET token = ? WHERE token = (SELECT min(token) FROM vault)", "plain")

    def _add(self, scope: Scope, id: str, number: int) -> None:
        token = TOKEN.encrypt(scope, id, Secret(f"token {number}"))
        self.run("INSERT INTO vault VALUES (?, ?, ?)", scope.stored_tenant, id, token)
        row = ("ABab"[number % 4], f"name {number}")
        credentials = CREDENTIALS.encrypt(scope, row, Secret({"number": number}))
        self.run("INSERT INTO safe VALUES (?, ?, ?, ?)", scope.stored_tenant, *row, credentials)

    def stored(self) -> list[str]:
        """Return every value in its stored form."""
        rows = self.run("SELECT token FROM vault UNION ALL SELECT credentials FROM safe")
        return [row[0] for row in rows if row[0] is not None]

    def revealed(self, *keys: str) -> list[Any]:
        """Return every value, decrypted with these keys."""
        results: list[Any] = []
        with self.open(*keys) as hf:
            for tenant in TENANTS:
                scope = Scope(tenant, hf._setting)
                for column, names in ((TOKEN, "CAST(id AS text)"), (CREDENTIALS, "kind, name")):
                    sql = f"SELECT {names}, {column.column} FROM {column.table} WHERE tenant_id = ?"
                    for *row, encoded in sorted(self.run(sql, scope.stored_tenant)):
                        secret = column.load(scope, row, encoded)
                        results.append(None if secret is None else secret.reveal())
        return results

    def current(self) -> int:
        """Return the number of values encrypted with the new key."""
        return sum(KeyRing(NEW).is_current(item) for item in self.stored())


@pytest.fixture(params=["sqlite", "postgres"])
def vault(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    monkeypatch.setattr("holdfast.core.encrypted_columns._DECLARED", {})
    monkeypatch.setattr(rotation, "ROWS_PER_TRANSACTION", PER_TRANSACTION)
    TOKEN.declare()
    CREDENTIALS.declare()
    if request.param == "sqlite":
        url = str(tmp_path / "a.db")
        Holdfast(url).close()
        created = Vault(url, apsw.Connection(url), "?")
    else:
        url = request.getfixturevalue("postgres_url")
        created = Vault(url, psycopg.connect(url, autocommit=True), "%s")
    for table in TABLES:
        created.run(table.format(uuid="text" if request.param == "sqlite" else "uuid"))
    yield created
    created.connection.close()


def test_everything_is_encrypted_with_the_first_key(vault: Vault) -> None:
    vault.fill(OLD, NEW)
    before, current = vault.revealed(NEW, OLD), vault.current()
    steps: list[tuple[int, int]] = []
    with vault.open(NEW, OLD) as hf:
        result = rotate_secrets(hf, on_progress=lambda rows, total: steps.append((rows, total)))
        again = rotate_secrets(hf)
    assert (result.renewed, result.failed, again.renewed) == (4 * ROWS - current, 0, 0)
    assert sum(rows for rows, _ in steps) == result.renewed
    assert {total for _, total in steps} == {result.renewed}
    assert max(rows for rows, _ in steps) <= PER_TRANSACTION
    assert vault.revealed(NEW) == before
    assert "plain" in before
    assert "plain" not in vault.stored()


def test_null_values_stay_null(vault: Vault) -> None:
    vault.fill(OLD)
    vault.run("UPDATE vault SET token = NULL")
    with vault.open(NEW, OLD) as hf:
        assert rotate_secrets(hf).renewed == 2 * ROWS
    assert vault.run("SELECT COUNT(*) FROM vault WHERE token IS NULL")[0][0] == 2 * ROWS


class ProcessDied(Exception):
    """The process has died."""


def dying(hf: Holdfast, at: int, *, committed: bool) -> None:
    """Make the process die in one of its transactions, or right after its commit."""
    write, counted = hf._engine.write, iter(range(1_000))

    async def write_or_die(call: Any) -> Any:
        if next(counted) != at:
            return await write(call)

        async def run_and_die(connection: Any) -> Any:
            await call(connection)
            raise ProcessDied

        await write(call if committed else run_and_die)
        raise ProcessDied

    hf._engine.write = write_or_die  # type: ignore[method-assign]


@pytest.mark.parametrize("committed", [False, True])
def test_the_next_rotation_finishes_an_interrupted_one(vault: Vault, committed: bool) -> None:
    for at in range(100):
        vault.run("DELETE FROM vault")
        vault.run("DELETE FROM safe")
        vault.fill(OLD)
        before = vault.revealed(OLD)
        with vault.open(NEW, OLD) as hf:
            dying(hf, at, committed=committed)
            try:
                rotate_secrets(hf)
            except ProcessDied:
                pass
            else:
                break
        assert vault.revealed(NEW, OLD) == before
        rest = 4 * ROWS - vault.current()
        with vault.open(NEW, OLD) as hf:
            assert rotate_secrets(hf).renewed == rest
        assert vault.revealed(NEW) == before
    assert at == 4 * -(-ROWS // PER_TRANSACTION), "it died once in each transaction"


def test_a_value_that_cannot_be_decrypted_is_reported_and_the_rest_is_rotated(vault: Vault) -> None:
    vault.fill(OLD, LOST)
    lost = [item for item in vault.stored() if item.startswith(KeyRing(LOST).current_prefix)]
    with vault.open(NEW, OLD) as hf:
        result = rotate_secrets(hf)
    assert (result.failed, result.renewed) == (len(lost), 4 * ROWS - len(lost))
    assert {*lost} < {*vault.stored()}
    assert len(result.failures) == len(lost) <= FAILURES_SHOWN
    assert all(KeyRing(LOST).key_ids[0] in failure for failure in result.failures)
    with vault.open(NEW, LOST) as hf:
        assert rotate_secrets(hf).renewed == len(lost)


def test_some_of_many_failures_are_listed_and_all_are_counted(vault: Vault) -> None:
    vault.fill(LOST, rows=FAILURES_SHOWN)
    with vault.open(NEW) as hf:
        result = rotate_secrets(hf)
    assert (result.failed, len(result.failures)) == (4 * FAILURES_SHOWN - 1, FAILURES_SHOWN)


@pytest.mark.parametrize("vault", ["postgres"], indirect=True)  # SQLite has one writer at a time
def test_a_concurrently_changed_value_is_not_overwritten(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    vault.fill(OLD, rows=1)
    renew = EncryptedColumn.renew

    def change_it_first(self: EncryptedColumn, scope: Scope, row: Sequence[str], stored: str) -> str | None:
        vault.run("UPDATE vault SET token = ? WHERE token = ?", "newer", stored)
        return renew(self, scope, row, stored)

    with vault.open(NEW, OLD) as hf:
        with monkeypatch.context() as patched:
            patched.setattr(EncryptedColumn, "renew", change_it_first)
            assert rotate_secrets(hf).renewed == len(TENANTS), "the values of the other column"
        assert vault.run("SELECT DISTINCT token FROM vault") == [("newer",)]
        assert rotate_secrets(hf).renewed == len(TENANTS)


def test_a_moved_value_is_not_repaired(vault: Vault) -> None:
    vault.fill(OLD)
    first, second = vault.run("SELECT CAST(id AS text) FROM vault WHERE tenant_id = 'acme' AND token <> 'plain'")[:2]
    sql = "UPDATE vault SET token = (SELECT token FROM vault WHERE CAST(id AS text) = ?) WHERE CAST(id AS text) = ?"
    vault.run(sql, first[0], second[0])
    with vault.open(NEW, OLD) as hf:
        assert rotate_secrets(hf).failed == 1
    with pytest.raises(DecryptionFailed):
        vault.revealed(NEW, OLD)


def test_without_a_key_nothing_is_rotated(vault: Vault) -> None:
    vault.fill(OLD)
    before = sorted(vault.stored())
    with vault.open() as hf, pytest.raises(MissingKey):
        rotate_secrets(hf)
    assert sorted(vault.stored()) == before
    assert sum(item.startswith(PREFIX) for item in before) == 4 * ROWS - 1
