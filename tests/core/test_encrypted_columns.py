"""Encrypted columns: the values that a store writes and reads, including those stored before a key was configured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Holdfast, NewA2APushConfig
from holdfast.clock import SystemClock
from holdfast.core import text
from holdfast.core.crypto import MASK, PREFIX, KeyRing, Secret
from holdfast.core.encrypted_columns import EncryptedColumn, encrypted_columns
from holdfast.core.scope import Scope, Setting
from holdfast.encryption import rotate_secrets
from holdfast.errors import (
    Corrupt,
    DecryptionFailed,
    HoldfastError,
    InvalidInput,
    InvalidText,
    LimitExceeded,
    MissingKey,
)
from holdfast.ids import RandomIds
from holdfast.limits import Limits
from tests.core.disclosure import everything_about
from tests.errors import raises

PLAIN = "sk-very-secret"
OLD, NEW = "o" * 32, "n" * 32
TOKEN = EncryptedColumn("vault", "token")
OBJECT = EncryptedColumn("vault", "credentials", row=("kind", "name"), json=True)
ROW = ("chat", "main")


def scope_of(*keys: str, tenant: str = "acme", limits: Limits | None = None) -> Scope:
    setting = Setting(
        clock=SystemClock(),
        ids=RandomIds(),
        limits=limits or Limits(),
        session_dependents=(),
        keys=KeyRing(keys),
    )
    return Scope(tenant, setting)


def stored(column: EncryptedColumn, value: Any, *keys: str) -> str:
    result = column.encrypt(scope_of(*(keys or (OLD,))), ROW if column.json else "1", Secret(value))
    assert result is not None
    return result


def revealed(column: EncryptedColumn, stored: str, *keys: str, row: Any = None) -> Any:
    secret = column.load(scope_of(*(keys or (OLD,))), row or (ROW if column.json else "1"), stored)
    assert secret is not None
    return secret.reveal()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(st.characters()).filter(lambda value: value != MASK))
def test_a_text_round_trips(value: str) -> None:
    assert revealed(TOKEN, stored(TOKEN, value)) == value


@given(st.dictionaries(st.text(st.characters()), json_values, max_size=5))
def test_an_object_round_trips(value: dict[str, Any]) -> None:
    assert revealed(OBJECT, stored(OBJECT, value)) == value


@given(st.text(st.characters()).filter(lambda value: not value.startswith(PREFIX)))
def test_a_text_stored_without_a_key_is_readable(value: str) -> None:
    assert revealed(TOKEN, text.escape(value)) == value
    renewed = TOKEN.renew(scope_of(OLD), "1", text.escape(value))
    assert renewed is not None
    assert renewed.startswith(PREFIX)
    assert revealed(TOKEN, renewed) == value


def test_an_object_stored_without_a_key_is_readable() -> None:
    plain = text.dump({"token": f"{PLAIN}\x00"})
    assert revealed(OBJECT, plain) == {"token": f"{PLAIN}\x00"}
    renewed = OBJECT.renew(scope_of(OLD), ROW, plain)
    assert renewed is not None
    assert PLAIN not in renewed
    assert revealed(OBJECT, renewed) == {"token": f"{PLAIN}\x00"}


@pytest.mark.parametrize("plain", [MASK, "x" * 100])
def test_a_value_over_todays_limits_is_still_renewed(plain: str) -> None:
    scope = scope_of(OLD, limits=Limits(secret_bytes=10))
    renewed = TOKEN.renew(scope, "1", plain)
    assert renewed is not None
    assert revealed(TOKEN, renewed) == plain


def test_renew_changes_only_values_not_encrypted_with_the_first_key() -> None:
    old = stored(TOKEN, PLAIN, OLD)
    assert TOKEN.renew(scope_of(OLD), "1", old) == old
    assert TOKEN.renew(scope_of(OLD, NEW), "1", old) == old
    renewed = TOKEN.renew(scope_of(NEW, OLD), "1", old)
    assert renewed is not None
    assert revealed(TOKEN, renewed, NEW) == PLAIN
    assert TOKEN.renew(scope_of(OLD), "1", None) is None
    assert TOKEN.renew(scope_of(), "1", "plain") == "plain", "no key is configured"
    with pytest.raises(DecryptionFailed):
        TOKEN.renew(scope_of(NEW), "1", old)


def test_none_stays_none() -> None:
    assert TOKEN.encrypt(scope_of(), "1", None) is None
    assert TOKEN.load(scope_of(), "1", None) is None


def test_a_value_decrypts_only_in_its_tenant_table_row_and_column() -> None:
    value = stored(TOKEN, PLAIN)
    places = [
        (TOKEN, scope_of(OLD, tenant="other"), "1"),
        (EncryptedColumn("other", "token"), scope_of(OLD), "1"),
        (EncryptedColumn("vault", "other"), scope_of(OLD), "1"),
        (TOKEN, scope_of(OLD), "2"),
    ]
    for column, scope, row in places:
        secret = column.load(scope, row, value)
        assert secret is not None
        with pytest.raises(DecryptionFailed):
            secret.reveal()
    assert revealed(TOKEN, value) == PLAIN
    other = stored(OBJECT, {"a": 1})
    with pytest.raises(DecryptionFailed):
        revealed(OBJECT, other, row=("main", "chat"))


def test_a_damaged_value_can_be_listed_and_raises_when_revealed() -> None:
    secret = TOKEN.load(scope_of(OLD), "1", PREFIX + "damaged")
    assert repr(secret) == f"Secret({MASK!r})"
    with pytest.raises(DecryptionFailed, match=r"vault\.token"):
        secret.reveal()  # type: ignore[union-attr]


def test_secret_bytes_limits_the_size_in_bytes() -> None:
    scope = scope_of(OLD, limits=Limits(secret_bytes=10))
    assert TOKEN.encrypt(scope, "1", Secret("é" * 5)) is not None
    with raises(LimitExceeded, limit="secret_bytes"):
        TOKEN.encrypt(scope, "1", Secret("é" * 5 + "x"))


@pytest.mark.parametrize(
    ("column", "given", "error"),
    [
        (TOKEN, PLAIN, InvalidInput),
        (TOKEN, Secret({"a": PLAIN}), InvalidInput),
        (OBJECT, Secret(PLAIN), InvalidInput),
        (OBJECT, {"a": PLAIN}, InvalidInput),
        (OBJECT, Secret({"a": {PLAIN}}), InvalidText),
        (OBJECT, Secret({"a": PLAIN, "b": float("nan")}), InvalidText),
        (OBJECT, Secret({1: PLAIN}), InvalidText),
        (TOKEN, Secret(MASK), InvalidInput),
        (OBJECT, Secret(MASK), InvalidInput),
    ],
)
def test_invalid_secrets_are_rejected_without_being_shown(
    column: EncryptedColumn, given: Any, error: type[InvalidInput]
) -> None:
    with raises(error, field=column.column) as caught:
        column.encrypt(scope_of(OLD), ROW if column.json else "1", given)
    assert type(caught.value) is error
    assert (MASK in str(caught.value)) == (given == Secret(MASK)), "the refusal of a mask shows it"
    if isinstance(given, Secret):
        assert PLAIN not in everything_about(caught.value)
    assert PLAIN not in str(caught.value)


def test_no_error_shows_a_secret() -> None:
    value = stored(OBJECT, {"token": PLAIN})
    attempts: list[Callable[[], Any]] = [
        lambda: OBJECT.encrypt(scope_of(), ROW, Secret({"token": PLAIN})),
        lambda: OBJECT.encrypt(scope_of(OLD, limits=Limits(secret_bytes=1)), ROW, Secret({"token": PLAIN})),
        lambda: OBJECT.encrypt(scope_of(OLD, limits=Limits(json_depth=1)), ROW, Secret({"token": [[PLAIN]]})),
        lambda: revealed(OBJECT, value, NEW),
        lambda: OBJECT.renew(scope_of(NEW), ROW, value),
    ]
    for attempt in attempts:
        with pytest.raises(HoldfastError) as caught:
            attempt()
        assert PLAIN not in everything_about(caught.value)


def test_storing_a_secret_needs_a_key() -> None:
    with pytest.raises(MissingKey, match="new-key"):
        TOKEN.encrypt(scope_of(), "1", Secret(PLAIN))


@pytest.mark.parametrize("plain", ["no JSON", "[]", '"text"', "null", ""])
def test_a_stored_value_that_is_not_an_object_is_corrupt(plain: str) -> None:
    with pytest.raises(Corrupt, match=r"vault\.credentials"):
        revealed(OBJECT, plain)


def test_a_column_cannot_be_declared_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.encrypted_columns._DECLARED", {})
    assert OBJECT.declare() is OBJECT
    assert TOKEN.declare() is TOKEN
    EncryptedColumn("vault", "token").declare()
    assert encrypted_columns() == [OBJECT, TOKEN]
    with pytest.raises(ValueError, match=r"vault.token"):
        EncryptedColumn("vault", "token", json=True).declare()


@pytest.fixture(params=["sqlite", "postgres"])
def described(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], dict[str, tuple[str, bool]]]]:
    """Return the types of a table's columns, and whether they are nullable."""
    connection: Any
    if request.param == "postgres":
        connection = psycopg.connect(request.getfixturevalue("postgres_url"))
        sql = "SELECT column_name, data_type, is_nullable = 'YES' FROM information_schema.columns WHERE table_name = %s"
    else:
        Holdfast(str(tmp_path / "a.db")).close()
        connection = apsw.Connection(str(tmp_path / "a.db"))
        sql = 'SELECT name, lower(type), NOT "notnull" FROM pragma_table_info(?)'
    yield lambda table: {row[0]: (row[1], bool(row[2])) for row in connection.execute(sql, (table,))}
    connection.close()


def test_every_declared_column_is_nullable_text_so_that_an_export_can_leave_it_out(described: Any) -> None:
    def unfit(columns: list[EncryptedColumn]) -> list[str]:
        fit = [described(column.table).get(column.column) == ("text", True) for column in columns]
        return [column.column for column, is_fit in zip(columns, fit, strict=True) if not is_fit]

    assert unfit(encrypted_columns()) == []
    wrong = [EncryptedColumn("contacts", name) for name in ("display_name", "last_seen_at", "nothing")]
    assert unfit(wrong) == ["display_name", "last_seen_at", "nothing"]


def test_a_secret_that_needs_no_key_is_stored_as_plain_text_until_there_is_one(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    secret = Secret({"token": "t0k"})

    def stored() -> str:
        (row,) = apsw.Connection(path).execute("SELECT config FROM a2a_push_configs")
        return str(row[0])

    with Holdfast(path, encryption_key=()) as hf:
        configs = hf.tenant("acme").a2a_push_configs
        created = configs.create(NewA2APushConfig("t", secret))
        assert (created.config, stored()) == (secret, '{"token":"t0k"}')
    with Holdfast(path, encryption_key="k" * 32) as hf:
        configs = hf.tenant("acme").a2a_push_configs
        assert [config.config for config in configs.list()] == [secret]
        assert rotate_secrets(hf).renewed == 1
        assert stored().startswith(PREFIX)
        assert [config.config for config in configs.list()] == [secret]
