"""Every grant store over HTTP, based on its types: a new store needs no test here, only its routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from msgspec import Struct, to_builtins

from holdfast.api.operations import Operation
from holdfast.api.resources import OPERATIONS
from tests.api.test_record_routes import T, to_json
from tests.api.v1 import V1Client, open_here
from tests.contract.cases.grant_samples import GrantSamples, Table, create_sides, grant_stores

TABLES = [(store, table) for store, kind in grant_stores().items() for table in kind.grants]


def routes(store: str, table: Table) -> dict[str, Operation]:
    """Return the operations of a table of a grant store, by the method that each calls."""
    made = [(operation, getattr(operation.function, "made_from", ("", None))) for operation in OPERATIONS]
    own = [(item, method) for item, (name, method) in made if name == store]
    several = len(grant_stores()[store].grants) > 1
    prefix = f"/{table.principal}s"
    return {method.__name__: item for item, method in own if not several or prefix in item.path}


@pytest.fixture(scope="module")
def server() -> Iterator[V1Client]:
    yield from open_here()


class Client:
    """One table of a grant store of a new tenant, over HTTP."""

    def __init__(self, v1: V1Client, store: str, table: Table) -> None:
        self.v1, self.store, self.table, self.samples = v1.another(), store, table, GrantSamples(table)
        self._routes = routes(store, table)
        self.v1.run(create_sides(self.v1.server.holdfast.tenant(self.v1.name), table))

    def ask(self, method: str, new: Struct, body: Any = None, status: int | None = None) -> Any:
        """Call the operation of a method on a grant."""
        operation = self._routes[method]
        path = operation.path.removeprefix(T)
        for name, value in zip((self.table.resource, self.table.principal), self.samples.sides(new), strict=True):
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        return self.v1.good(operation.method, path, body, status or operation.status)

    def put(self, new: Struct) -> Any:
        """Make a grant."""
        sides = (self.table.resource, self.table.principal)
        body = {name: value for name, value in to_builtins(new).items() if name not in sides}
        return self.ask("grant", new, body)

    def list(self, **query: str) -> Any:
        """List grants."""
        return self.v1.good("GET", f"{self._routes['list'].path.removeprefix(T)}?{urlencode(query)}")


@pytest.fixture(params=TABLES, ids=lambda item: item[1].name)
def client(server: V1Client, request: pytest.FixtureRequest) -> Client:
    return Client(server, *request.param)


def test_all_operations_of_a_grant(client: Client) -> None:
    new = client.samples.new(1, 1, 1)
    made = client.put(new)
    store = getattr(client.v1.tenant, client.store)
    assert made == to_json(client.v1.run(store.find(*client.samples.sides(new), kind=client.table.principal)))
    assert client.put(new) == made, "repeating it has no effect"
    assert client.ask("find", new) == made
    client.ask("find", client.samples.new(2, 1), status=404)
    changed = client.put(client.samples.new(1, 1, 2))
    assert client.ask("find", new) == changed
    assert changed.keys() == made.keys()
    assert client.ask("revoke", new) == {"done": True}
    assert client.ask("revoke", new) == {"done": False}
    client.ask("find", new, status=404)


def test_both_lists_have_pages(client: Client) -> None:
    for number in range(3):
        client.put(client.samples.new(1, number))
        client.put(client.samples.new(number, 1))
    sides = {client.table.resource: client.samples.resource(1), client.table.principal: client.samples.principal(1)}
    for name, value in sides.items():
        whole = client.list(**{name: value})["items"]
        assert len(whole) == 3
        page = client.list(**{name: value}, limit="2")
        assert page["items"] + client.list(**{name: value}, limit="2", cursor=page["next"])["items"] == whole
    path = client._routes["list"].path.removeprefix(T)
    client.v1.bad("GET", path)
    client.v1.bad("GET", f"{path}?{urlencode(sides)}")


def test_wrong_grants_and_missing_records_are_refused(client: Client) -> None:
    path = client._routes["grant"].path
    new = client.samples.new(1, 1)
    assert "no_such_field" in str(client.ask("grant", new, {"no_such_field": 1}, status=400))
    for field in client.samples.attributes:
        client.ask("grant", new, {field.name: {"x": [1]} if field.kind != "json" else 7}, status=400)
    if client.table.references:
        other = Client(client.v1, client.store, client.table)
        foreign = client.samples.new(77, 77)
        body = {name: value for name, value in to_builtins(foreign).items() if f"{{{name}}}" not in path}
        other.ask("grant", foreign, body, status=404)
    assert client.list(**{client.table.resource: client.samples.resource(1)})["items"] == []


def test_tenants_are_isolated(client: Client) -> None:
    new = client.samples.new(1, 1)
    client.put(new)
    other = Client(client.v1, client.store, client.table)
    other.ask("find", new, status=404)
    assert other.ask("revoke", new) == {"done": False}
    assert client.ask("find", new)
