"""Grant stores on test tables, on both engines; and the detection of defects by their promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest import mock

import pytest
from msgspec import UNSET, Struct, UnsetType

from holdfast.core import grants
from holdfast.core.grants import AsyncGrants, GrantTable
from holdfast.core.records import Limited, Names
from holdfast.core.rows import Column
from holdfast.limits import Limits
from holdfast.stores.agents.agent_shares import LIVE_AGENT
from holdfast.stores.objects.activity import Audited
from holdfast.sync_runner import step
from tests.contract.cases.grant_promises import PROMISES, GrantKit, Promise, wrong_grants_are_rejected
from tests.contract.cases.grant_samples import create_sides
from tests.contract.legs import awaited
from tests.core.table_databases import TableDatabase, check_statements, database, with_defect
from tests.core.test_records import Awaited


class NewMember(Struct, frozen=True, kw_only=True):
    team: str
    user: str
    role: Literal["member", "lead"] = "member"
    tools: list[str] = []
    note: str = ""


class Member(Struct, frozen=True):
    team: Annotated[str, Limited("name_bytes", empty=False)]
    user: Annotated[str, Limited("name_bytes", empty=False), Column("user_id")]
    role: Literal["member", "lead"]
    tools: Annotated[list[str], Names("tools")]
    note: Annotated[str, Limited("text_bytes")]
    created_at: datetime
    updated_at: datetime


class NewAgentMember(Struct, frozen=True, kw_only=True):
    team: str
    agent: str
    granted_by: str | UnsetType = UNSET


class AgentMember(Struct, frozen=True):
    team: Annotated[str, Limited("name_bytes", empty=False)]
    agent: Annotated[str, Limited("name_bytes", empty=False), LIVE_AGENT]
    granted_by: Annotated[str, Limited("name_bytes")]
    created_at: datetime


class AsyncMembers(Audited, AsyncGrants[Member | AgentMember, NewMember | NewAgentMember]):
    """The members of teams: users and agents."""

    grants = (
        GrantTable("members", Member, NewMember, resource="team", principal="user", noun="member"),
        GrantTable(
            "agent_members", AgentMember, NewAgentMember, resource="team", principal="agent", noun="agent member"
        ),
    )


TABLES = (
    """CREATE TABLE members (tenant_id {text} NOT NULL, team {text} NOT NULL, user_id {text} NOT NULL,
        role {text} NOT NULL, tools {json} NOT NULL, note {text} NOT NULL, created_at {time} NOT NULL,
        updated_at {time} NOT NULL, PRIMARY KEY (tenant_id, team, user_id))""",
    "CREATE INDEX members_by_user ON members (tenant_id, user_id, team)",
    """CREATE TABLE agent_members (tenant_id {text} NOT NULL, team {text} NOT NULL, agent {text} NOT NULL,
        granted_by {text} NOT NULL, created_at {time} NOT NULL, PRIMARY KEY (tenant_id, team, agent),
        FOREIGN KEY (tenant_id, agent) REFERENCES agents ON DELETE CASCADE)""",
    "CREATE INDEX agent_members_by_agent ON agent_members (tenant_id, agent, team)",
)
LIMITS = Limits(list_rows=3, name_bytes=60, text_bytes=60, tools=2)
KINDS = {table.principal: number for number, table in enumerate(AsyncMembers.grants)}


@pytest.fixture(params=["sqlite", "postgres"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., TableDatabase]]:
    if request.param == "postgres":
        request.getfixturevalue("postgres_url")  # now, so that it is removed after this fixture
    opened: list[AbstractContextManager[TableDatabase]] = []

    def open(limits: Limits | None = None) -> TableDatabase:
        opened.append(database(request, tmp_path, "members agent_members", *TABLES, limits=limits or Limits()))
        return opened[-1].__enter__()

    yield open
    for item in opened:
        item.__exit__(None, None, None)


def kit_of(here: TableDatabase, kind: str, promise: str) -> GrantKit:
    """Return a kit with tenants of its own."""
    tenants = [here.tenant(f"{promise} {name}") for name in ("acme", "zenith")]
    table = AsyncMembers.grants[KINDS[kind]]
    for tenant in tenants:
        step(create_sides(awaited(tenant), table))
    stores = [Awaited(grants.Grants(AsyncMembers(tenant._engine, tenant._scope))) for tenant in tenants]
    handles = awaited(tenants[0]), awaited(tenants[1])
    return GrantKit(AsyncMembers, table, (stores[0], stores[1]), handles, here.clock, tenants[0].limits)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_a_declared_store_keeps_every_promise(here: Callable[..., TableDatabase], kind: str, promise: Promise) -> None:
    step(promise(kit_of(here(), kind, "a")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_declared_store_rejects_wrong_grants(here: Callable[..., TableDatabase], kind: str) -> None:
    step(wrong_grants_are_rejected(kit_of(here(LIMITS), kind, "limits")))


def test_the_first_grant_registers_its_tenant(here: Callable[..., TableDatabase]) -> None:
    opened = here()
    kit = kit_of(opened, "user", "first")
    assert opened.execute("SELECT id FROM tenants") == []
    step(kit.store.grant(kit.samples.new(1, 1)))
    assert opened.execute("SELECT id FROM tenants") == [("first acme",)]


def statement(kind: str, old: str, new: str) -> AbstractContextManager[Any]:
    """Patch all statements of a table."""
    tables = [*AsyncMembers.grants]
    tables[KINDS[kind]] = with_defect(tables[KINDS[kind]], old, new)
    return mock.patch.object(AsyncMembers, "grants", tuple(tables))


DEFECTS: dict[str, tuple[str, AbstractContextManager[Any]]] = {
    "another tenant": ("user", statement("user", "WHERE tenant_id = :tenant_id AND ", "WHERE ")),
    "an attribute that stays": ("user", statement("user", "role = excluded.role, ", "")),
    "a grant that loses its creation time": (
        "user",
        statement("user", "updated_at = excluded.", "created_at = excluded."),
    ),
    "all grants of a resource": ("user", statement("user", " AND user_id = :user", "")),
    "another order": ("user", statement("user", "ORDER BY", "ORDER BY role DESC,")),
    "a short page": ("user", statement("user", "LIMIT :limit", "LIMIT :limit - 1")),
    "a record that does not exist": ("agent", mock.patch.object(grants, "check_references", mock.AsyncMock())),
    "a record of another tenant": (
        "agent",
        statement(
            "agent", "FROM agents WHERE tenant_id = :tenant_id AND", "FROM agents WHERE :tenant_id IS NOT NULL AND"
        ),
    ),
    "a change that is not logged": ("user", mock.patch.object(AsyncMembers, "_on_change", mock.AsyncMock())),
    "everything is a change": ("user", mock.patch.object(grants, "is_same", return_value=False)),
    "an actor that is not named": (
        "agent",
        mock.patch.object(GrantTable, "values", lambda self, new, acting: {**_given(new), "granted_by": ""}),
    ),
}


def _given(new: Struct) -> dict[str, Any]:
    return {name: getattr(new, name) for name in new.__struct_fields__}


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("here", ["sqlite"], indirect=True)
def test_the_promises_detect(here: Callable[..., TableDatabase], defect: str) -> None:
    kind, planted = DEFECTS[defect]
    opened = here()

    def is_kept(promise: Promise, planted: AbstractContextManager[Any]) -> bool:
        kit = kit_of(opened, kind, f"{promise.__name__} {type(planted).__name__}")
        with planted:
            kit.table = AsyncMembers.grants[KINDS[kind]]
            try:
                step(promise(kit))
            except Exception:  # any error means that the defect was detected
                return False
        return True

    assert all(is_kept(promise, nullcontext()) for promise in PROMISES)
    assert not all(is_kept(promise, planted) for promise in PROMISES)


@pytest.mark.parametrize("kind", KINDS)
def test_the_statements_follow_the_rules(
    here: Callable[..., TableDatabase], kind: str, request: pytest.FixtureRequest
) -> None:
    check_statements(here(), AsyncMembers.grants[KINDS[kind]], request)


def test_types_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(TypeError):
        GrantTable("members", Member, NewAgentMember, resource="team", principal="user")
