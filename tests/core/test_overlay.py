"""Scope overlays: the specific row shadows the general one, for one name and for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Struct

from holdfast.core.filters import column
from holdfast.core.overlay import MAX_LEVELS, AsyncOverlay, Overlay, OverlayTable
from holdfast.core.records import Limited
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded
from tests.core.table_databases import TableDatabase, check_statements, database, detects, pages, with_defect
from tests.errors import raises


class Setting(Struct, frozen=True):
    name: Annotated[str, Limited("name_bytes", empty=False)]
    agent: Annotated[str, Limited("name_bytes")]
    enabled: bool
    value: Annotated[str, Limited("text_bytes")]


class AsyncSettings(AsyncOverlay[Setting]):
    """Settings."""

    overlay = OverlayTable("overlaid", Setting, name_field="name", level="agent", noun="setting")


class Settings(Overlay[Setting]):
    """The same for synchronous programs."""


TABLE = """CREATE TABLE overlaid (tenant_id {text} NOT NULL, name {text} NOT NULL, agent {text} NOT NULL,
    enabled {bool} NOT NULL, value {text} NOT NULL, PRIMARY KEY (tenant_id, name, agent))"""


@pytest.fixture(params=["sqlite", "postgres"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableDatabase]:
    with database(request, tmp_path, "overlaid", TABLE) as result:
        yield result


def add(here: TableDatabase, *rows: tuple[str, str, str], tenant: str = "acme", enabled: bool = True) -> None:
    for name, agent, value in rows:
        values = f"'{tenant}', '{name}', '{agent}', {str(enabled).upper()}, '{value}'"
        here.execute(f"INSERT INTO overlaid VALUES ({values}) RETURNING 1")


def settings(here: TableDatabase, tenant: str = "acme") -> Settings:
    return here.store(AsyncSettings, Settings, tenant)


Open = Callable[..., Settings]
CHAIN = ["helper", "team", ""]


def values(rows: list[Setting]) -> dict[str, str]:
    return {row.name: row.value for row in rows}


def resolved(store: Settings, name: str, **more: Any) -> str | None:
    row = store.resolve(name, CHAIN, **more)
    return None if row is None else row.value


def the_specific_row_shadows_the_general_one(here: TableDatabase, open: Open) -> None:
    add(here, ("a", "", "general"), ("a", "team", "of team"), ("a", "helper", "own"), ("a", "other", "of other"))
    add(here, ("b", "", "general"), ("b", "team", "of team"), ("c", "", "general"), ("d", "other", "of other"))
    acme = open(here)
    assert [resolved(acme, name) for name in "abcd"] == ["own", "of team", "general", None]
    assert values(acme.effective(CHAIN)) == {"a": "own", "b": "of team", "c": "general"}
    assert values(acme.effective(["", "helper"])) == {"a": "general", "b": "general", "c": "general"}
    assert values(acme.effective(["other"])) == {"a": "of other", "d": "of other"}


def a_row_that_is_filtered_out_shadows_nothing(here: TableDatabase, open: Open) -> None:
    add(here, ("a", "", "general"))
    add(here, ("a", "helper", "own"), enabled=False)
    acme, enabled = open(here), [column("enabled").eq(True)]
    assert resolved(acme, "a") == "own"
    assert resolved(acme, "a", where=enabled) == "general"
    assert values(acme.effective(CHAIN, where=enabled)) == {"a": "general"}


def pages_contain_each_name_once(here: TableDatabase, open: Open) -> None:
    for number, agents in enumerate((["", "team", "helper"], [""], ["team", "helper"], ["helper"], ["", "helper"])):
        add(here, *((f"n{number}", agent, agent) for agent in agents))
    acme = open(here)
    whole = acme.effective(CHAIN)
    assert [(row.name, row.value) for row in whole] == [
        ("n0", "helper"), ("n1", ""), ("n2", "helper"), ("n3", "helper"), ("n4", "helper")
    ]  # fmt: skip
    for limit in (1, 2, 5):
        assert pages(partial(acme.effective, CHAIN), limit) == whole


def overlays_of_tenants_are_separate(here: TableDatabase, open: Open) -> None:
    add(here, ("a", "", "mine"), ("b", "", "mine"))
    add(here, ("a", "helper", "theirs"), ("c", "", "theirs"), tenant="zenith")
    acme = open(here)
    assert resolved(acme, "a") == "mine"
    assert acme.resolve("c", CHAIN) is None
    assert values(acme.effective(CHAIN)) == {"a": "mine", "b": "mine"}


PROMISES = [
    the_specific_row_shadows_the_general_one,
    a_row_that_is_filtered_out_shadows_nothing,
    pages_contain_each_name_once,
    overlays_of_tenants_are_separate,
]


@pytest.mark.parametrize("promise", PROMISES)
def test_an_overlay(here: TableDatabase, promise: Callable[[TableDatabase, Open], None]) -> None:
    promise(here, settings)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WHERE tenant_id = :tenant_id", "WHERE TRUE"),
        ("ORDER BY name", "ORDER BY agent, name"),
        ("LIMIT :limit", "LIMIT (:limit + 2) / 3"),
        ("/*where*/", ""),
    ],
)
def test_a_defect_is_detected(here: TableDatabase, old: str, new: str) -> None:
    wrong = type("Wrong", (AsyncSettings,), {"overlay": with_defect(AsyncSettings.overlay, old, new)})
    assert detects(here, PROMISES, lambda database, tenant="acme": database.store(wrong, Settings, tenant), "overlaid")


def test_invalid_arguments_are_rejected(here: TableDatabase) -> None:
    acme = settings(here)
    wrong: list[Any] = [[], "helper", None, [7], ["a", "a"], [str(number) for number in range(MAX_LEVELS + 1)]]
    for levels in wrong:
        with pytest.raises(InvalidInput):
            acme.resolve("a", levels)
        with pytest.raises(InvalidInput):
            acme.effective(levels)
    with pytest.raises(InvalidInput):
        acme.resolve("", CHAIN)
    with pytest.raises(InvalidFilter):
        acme.effective(CHAIN, limit=1, cursor="x")
    add(here, *((f"n{number}", "", "") for number in range(7)))
    with raises(LimitExceeded, limit="list_rows", maximum=6):
        acme.effective(CHAIN)


def test_the_statements_follow_the_rules(here: TableDatabase, request: pytest.FixtureRequest) -> None:
    check_statements(here, AsyncSettings.overlay, request)
