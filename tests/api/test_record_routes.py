"""Every record store over HTTP, by its types: a store added later needs no line here, only its routes."""

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
from tests.api.v1 import Here, open_here
from tests.contract.cases.record_samples import Samples, given, record_stores

T = "/v1/tenants/{tenant}"


def routes(store: str) -> dict[str, Operation]:
    """The operations of a record store, by the method that each was made from."""
    made = [(each, getattr(each.function, "made_from", ("", None))) for each in OPERATIONS]
    return {method.__name__: each for each, (name, method) in made if name == store}


ROUTED = [name for name in record_stores() if "create" in routes(name)]


@pytest.fixture(scope="module")
def server() -> Iterator[Here]:
    yield from open_here()


class Client:
    """One record store of a tenant of its own, over HTTP."""

    def __init__(self, here: Here, store: str) -> None:
        self.here, self.samples, self._routes = here.another(), Samples(record_stores()[store]), routes(store)
        self.is_soft, self.has_version = self.samples.is_soft, self.samples.has_version

    def ask(self, method: str, record: Any = None, body: Any = None, status: int | None = None, **how: Any) -> Any:
        """Call the operation of a method; the record's key stands in the path and in the query."""
        operation = self._routes[method]
        path = operation.path.removeprefix(T)
        if record is not None:
            first, *rest = self.samples.key(record)
            query = {} if body and method == "upsert" else dict(zip(self._rest(), rest, strict=True))
            path = path.partition("{")[0] + quote(first, safe="") + path.partition("}")[2]
            path += f"?{urlencode(query)}" if query else ""
        sent = None if body is None else sent_as(body)
        if sent and method == "upsert":
            sent.pop(self.samples.declared.key[0].name)
        return self.here.good(operation.method, path, sent, status or operation.status, **how)

    def refused(self, method: str, record: Any, status: int, body: Any = None, **how: Any) -> None:
        """The same, for what must be refused."""
        try:
            self.ask(method, record, body, status, **how)
        except AssertionError as error:
            raise AssertionError(f"{method} is not refused with {status}: {error}") from None

    def list(self, record: Any, **query: str) -> Any:
        """The records, in the same part of the key as this one, if lists are confined to one."""
        names = {each.name for each in self.samples.declared.key} & self._parameters("list")
        confined = {name: str(getattr(record, name)) for name in names}
        path = self._routes["list"].path.removeprefix(T)
        return self.here.good("GET", f"{path}?{urlencode({**confined, **query})}")

    def _rest(self) -> list[str]:
        return [each.name for each in self.samples.declared.key[1:]]

    def _parameters(self, method: str) -> set[str]:
        return set(self._routes[method].function.__annotations__)


def sent_as(body: Any) -> Any:
    """A Struct as a client sends it, with its secrets."""
    return to_builtins(given(body), enc_hook=lambda secret: secret.reveal())


@pytest.fixture(params=ROUTED)
def client(server: Here, request: pytest.FixtureRequest) -> Client:
    return Client(server, request.param)


def shown(record: Any) -> Any:
    """A row as JSON."""
    return msgspec.json.decode(msgspec.json.encode(record, enc_hook=mask_secret))


def test_most_record_stores_have_routes() -> None:
    assert {"agents", "tool_servers", "general_feedback"} <= set(ROUTED)


def test_a_record_goes_through_all_its_operations(client: Client) -> None:
    samples, here = client.samples, client.here
    new = samples.new(1)
    made = client.ask("create", None, new)
    stored = here.run(getattr(here.tenant, name_of(client)).get(*samples.key(new)))
    assert made == shown(stored)
    assert client.ask("get", new) == made
    assert client.list(new)["items"] == [made]
    assert client.ask("create", None, new) == made, "the same again"
    client.refused("get", samples.new(2), 404)
    changed = client.ask("update", new, samples.change(2))
    for field in samples.plain_editable():
        assert changed[field.name] == shown(getattr(samples.change(2), field.name))
    assert client.ask("upsert", new, new)[samples.plain_editable()[0].name] == made[samples.plain_editable()[0].name]
    client.ask("delete", new)
    for method in ("get", "delete"):
        client.refused(method, new, 404)
    assert client.list(new)["items"] == []
    if client.is_soft:
        assert shown(client.ask("restore", new))["created_at"] == made["created_at"]
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


def test_records_come_in_pages_and_filtered(client: Client) -> None:
    new = [client.samples.new(number, **fixed(client)) for number in range(1, 6)]
    for each in new:
        client.ask("create", None, each)
    whole = client.list(new[0])["items"]
    assert len(whole) == 5
    page = client.list(new[0], limit="3")
    rest = client.list(new[0], limit="3", cursor=page["next"])
    assert page["items"] + rest["items"] == whole
    assert rest["next"] is None
    wrong = client.here.bad("GET", f"{client._routes['list'].path.removeprefix(T)}?cursor=nonsense")
    assert "cursor" in wrong["detail"]
    unknown = quote('[{"column": "no_such", "op": "eq", "value": 1}]')
    client.here.bad("GET", f"{client._routes['list'].path.removeprefix(T)}?where={unknown}")


def fixed(client: Client) -> dict[str, Any]:
    """Values for the parts of the key that a list is confined to."""
    confined = {each.name for each in client.samples.declared.key} & client._parameters("list")
    return dict.fromkeys(confined, "same")


def test_unknown_fields_and_wrong_types_are_refused(client: Client) -> None:
    path = client._routes["create"].path.removeprefix(T)
    sent = sent_as(client.samples.new(1))
    client.here.bad("POST", path, {**sent, "no_such_field": 1})
    for name in sent:
        client.here.bad("POST", path, {**sent, name: {"x": [1]} if not isinstance(sent[name], dict) else 7})
    assert client.list(client.samples.new(1))["items"] == []


def test_tenants_are_apart(client: Client) -> None:
    client.ask("create", None, client.samples.new(1))
    other = Client(client.here, name_of(client))
    other.refused("get", client.samples.new(1), 404)
    assert other.list(client.samples.new(1))["items"] == []
