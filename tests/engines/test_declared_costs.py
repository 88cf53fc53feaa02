"""The number of statements of ``declared.apply``: what has not changed costs few, however many resources there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Holdfast, NewAgent, TenantHandle
from holdfast.drivers.apsw import ApswConnection
from holdfast.drivers.psycopg import PsycopgConnection
from holdfast.encryption import Secret, new_key
from holdfast.types import NewMcpServer, NewModel, NewProvider, ResourceToApply

RESOURCES = 1_000
STATEMENTS_PER_100 = 10
"""The limit that the documentation states."""
CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "PRAGMA")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that were sent, without those that only begin and end transactions."""
    result: list[str] = []
    for kind in (ApswConnection, PsycopgConnection):
        execute = kind.execute

        def noting(self: Any, sql: str, args: Any = (), _execute: Any = execute) -> Any:
            if not sql.startswith(CONTROL):
                result.append(sql)
            return _execute(self, sql, args)

        monkeypatch.setattr(kind, "execute", noting)
    return result


@pytest.fixture(params=["sqlite", "postgres"])
def acme(request: pytest.FixtureRequest) -> Iterator[TenantHandle]:
    url = ":memory:" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Holdfast(url, encryption_key=new_key()) as hf:
        yield hf.tenant("acme")


def resources(number: int) -> list[ResourceToApply]:
    text = f"resource {number}"
    provider = NewProvider(name=text, api_key=Secret(text))
    server = NewMcpServer(name=text, transport="sse", url="https://example.com", headers=Secret({"token": text}))
    common: dict[str, Any] = {"namespace": "ns", "name": str(number), "spec": {"text": text}}
    return [
        ResourceToApply(kind="ModelConfig", rows=[provider, NewModel(provider=text, name="gpt")], **common),
        ResourceToApply(kind="MCPServer", rows=[server], **common),
        ResourceToApply(kind="Agent", rows=[NewAgent(id=text)], secrets=Secret({"key": text}), **common),
        ResourceToApply(kind="Memory", **common),
    ]


def test_resources_that_have_not_changed_cost_few_statements(acme: TenantHandle, sent: list[str]) -> None:
    given = [resource for number in range(RESOURCES // 4) for resource in resources(number)]
    kinds = ["ModelConfig", "MCPServer", "Agent", "Memory"]
    acme.declared.apply(given, source="files")
    for prune in ([], kinds):
        sent.clear()
        assert {change.action for change in acme.declared.apply(given, source="files", prune=prune)} == {"unchanged"}
        assert len(sent) <= STATEMENTS_PER_100 * RESOURCES // 100, sent
        assert len(sent) <= 12, "the number does not even depend on the number of resources"
        assert not [sql for sql in sent if not sql.lstrip().startswith(("SELECT", "--"))], sent


def test_one_change_costs_the_same_however_many_resources_there_are(acme: TenantHandle, sent: list[str]) -> None:
    counts = []
    for number in (1, 100):
        given = [resource for index in range(number) for resource in resources(index)]
        acme.declared.apply(given, source="files")
        changed = ResourceToApply(kind="Memory", namespace="ns", name="0", spec={"text": f"changed {number}"})
        sent.clear()
        acme.declared.apply([*given[:3], changed, *given[4:]], source="files", prune=["Memory"])
        counts.append(len(sent))
    assert counts[0] == counts[1]
