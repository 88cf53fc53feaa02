"""Every record store over HTTP, based on its types: a new store needs no test v1, only its routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from msgspec import to_builtins

from holdfast.api.operations import Operation
from holdfast.api.resources import OPERATIONS
from holdfast.encryption import mask_secret
from tests.api.v1 import V1Client, open_here
from tests.contract.cases.record_samples import Samples, create_referenced, given, record_stores

T = "/v1/tenants/{tenant}"


def routes(store: str) -> dict[str, Operation]:
    """Return the operations of a record store, by the method that each calls."""
    made = [(operation, getattr(operation.function, "made_from", ("", None))) for operation in OPERATIONS]
    return {method.__name__: item for item, (name, method) in made if name == store}


ROUTED = [name for name in record_stores() if "create" in routes(name)]


@pytest.fixture(scope="module")
def server() -> Iterator[V1Client]:
    yield from open_here()


class Client:
    """One record store of a new tenant, over HTTP."""

    def __init__(self, v1: V1Client, store: str) -> None:
        self.v1, self.samples, self._routes = v1.another(), Samples(record_stores()[store]), routes(store)
        self.v1.run(create_referenced(self.v1.server.holdfast.tenant(self.v1.name), self.samples.kind))
        self.is_soft, self.has_version = self.samples.is_soft, self.samples.has_version

    def ask(self, method: str, record: Any = None, body: Any = None, status: int | None = None, **how: Any) -> Any:
        """Call the operation of a method; the record's key is in the path and in the query."""
        operation = self._routes[method]
        path = operation.path.removeprefix(T)
        if record is not None:
            first, *rest = self.samples.key(record)
            query = {} if body and method == "upsert" else dict(zip(self._rest(), rest, strict=True))
            path = path.partition("{")[0] + quote(first, safe="") + path.partition("}")[2]
            path += f"?{urlencode(query)}" if query else ""
        sent = None if body is None else json_of(body)
        if sent and method == "upsert":
            sent.pop(self.samples.declared.key[0].name)
        return self.v1.good(operation.method, path, sent, status or operation.status, **how)

    def refused(self, method: str, record: Any, status: int, body: Any = None, **how: Any) -> None:
        """Call an operation that must be refused."""
        try:
            self.ask(method, record, body, status, **how)
        except AssertionError as error:
            raise AssertionError(f"{method} is not refused with {status}: {error}") from None

    def list(self, record: Any, **query: str) -> Any:
        """List the records with the same restricting key fields as this one."""
        names = {item.name for item in self.samples.declared.key} & self._parameters("list")
        confined = {name: str(getattr(record, name)) for name in names}
        path = self._routes["list"].path.removeprefix(T)
        return self.v1.good("GET", f"{path}?{urlencode({**confined, **query})}")

    def _rest(self) -> list[str]:
        return [item.name for item in self.samples.declared.key[1:]]

    def _parameters(self, method: str) -> set[str]:
        return set(self._routes[method].function.__annotations__)


def json_of(body: Any) -> Any:
    """Encode a struct as a client sends it, including its secrets."""
    return to_builtins(given(body), enc_hook=lambda secret: secret.reveal())


@pytest.fixture(params=ROUTED)
def client(server: V1Client, request: pytest.FixtureRequest) -> Client:
    return Client(server, request.param)


def to_json(record: Any) -> Any:
    """Return a row as JSON."""
    return msgspec.json.decode(msgspec.json.encode(record, enc_hook=mask_secret))


def test_most_record_stores_have_routes() -> None:
    assert {"agents", "mcp_servers", "general_feedback"} <= set(ROUTED)


def test_all_operations_of_a_record(client: Client) -> None:
    samples, v1 = client.samples, client.v1
    new = samples.new(1)
    made = client.ask("create", None, new)
    content = v1.run(getattr(v1.tenant, name_of(client)).get(*samples.key(new)))
    assert made == to_json(content)
    assert client.ask("get", new) == made
    assert client.list(new)["items"] == [made]
    assert client.ask("create", None, new) == made, "repeating it has no effect"
    client.refused("get", samples.new(2), 404)
    changed = client.ask("update", new, samples.change(2))
    for field in samples.plain_editable():
        assert changed[field.name] == to_json(getattr(samples.change(2), field.name))
    assert client.ask("upsert", new, new)[samples.plain_editable()[0].name] == made[samples.plain_editable()[0].name]
    client.ask("delete", new)
    for method in ("get", "delete"):
        client.refused(method, new, 404)
    assert client.list(new)["items"] == []
    if client.is_soft:
        assert to_json(client.ask("restore", new))["created_at"] == made["created_at"]
        assert len(client.list(new)["items"]) == 1
        client.refused("restore", samples.new(2), 404)


def name_of(client: Client) -> str:
    return next(name for name, kind in record_stores().items() if kind is client.samples.kind)


def test_a_version_is_an_etag(client: Client) -> None:
    if not client.has_version:
        return
    new = client.samples.new(1)
    client.ask("create", None, new)
    client.ask("update", new, client.samples.change(2), headers={"If-Match": '"1"'})
    for method, body in (("update", client.samples.change(3)), ("delete", None)):
        client.refused(method, new, 412, body, headers={"If-Match": '"1"'})
    client.ask("delete", new, headers={"If-Match": '"2"'})


def test_records_are_paged_and_filtered(client: Client) -> None:
    new = [client.samples.new(number, **restricting_key(client)) for number in range(1, 6)]
    for item in new:
        client.ask("create", None, item)
    whole = client.list(new[0])["items"]
    assert len(whole) == 5
    page = client.list(new[0], limit="3")
    rest = client.list(new[0], limit="3", cursor=page["next"])
    assert page["items"] + rest["items"] == whole
    assert rest["next"] is None
    wrong = client.v1.bad("GET", f"{client._routes['list'].path.removeprefix(T)}?cursor=nonsense")
    assert wrong["field"] == "cursor"
    unknown = quote('[{"column": "no_such", "op": "eq", "value": 1}]')
    client.v1.bad("GET", f"{client._routes['list'].path.removeprefix(T)}?where={unknown}")


def restricting_key(client: Client) -> dict[str, Any]:
    """Return values for the key fields that restrict a list."""
    confined = {item.name for item in client.samples.declared.key} & client._parameters("list")
    return dict.fromkeys(confined, "same")


def test_unknown_fields_and_wrong_types_are_refused(client: Client) -> None:
    path = client._routes["create"].path.removeprefix(T)
    sent = json_of(client.samples.new(1))
    client.v1.bad("POST", path, {**sent, "no_such_field": 1})
    for name in sent:
        client.v1.bad("POST", path, {**sent, name: {"x": [1]} if not isinstance(sent[name], dict) else 7})
    assert client.list(client.samples.new(1))["items"] == []


def test_tenants_are_isolated(client: Client) -> None:
    client.ask("create", None, client.samples.new(1))
    other = Client(client.v1, name_of(client))
    other.refused("get", client.samples.new(1), 404)
    assert other.list(client.samples.new(1))["items"] == []
