"""Properties of applying: any sequence of sets leads to the rows of the last one, beside those made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, NewAgent, TenantHandle
from holdfast.types import NewMcpServer, NewModel, NewProvider, ResourceToApply

KINDS = ("ModelConfig", "MCPServer", "Agent", "Memory")
NAMES = ("a", "b", "c")
SETS = st.dictionaries(st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES)), st.sampled_from("xy"), max_size=8)
CALLS = st.lists(
    st.tuples(SETS, st.booleans(), st.sampled_from(("one", "two")), st.randoms(use_true_random=False)), max_size=5
)
Given = dict[tuple[str, str], str]


def resource(kind: str, name: str, value: str) -> ResourceToApply:
    rows: dict[str, list[Any]] = {
        "ModelConfig": [
            NewProvider(name=name, display_name=value),
            NewModel(provider=name, name=value, is_default=True),
        ],
        "MCPServer": [NewMcpServer(name=name, kind="MCPServer", transport="sse", url=f"https://{value}")],
        "Agent": [NewAgent(id=name, description=value)],
        "Memory": [],
    }
    return ResourceToApply(kind=kind, namespace="ns", name=name, spec={"value": value}, rows=rows[kind])


def state(acme: TenantHandle) -> dict[str, Any]:
    providers = {row.id: row for row in acme.providers.list()}
    return {
        "ModelConfig": {(row.name, row.display_name) for row in providers.values()},
        "models": {(providers[row.provider].name, row.name) for row in acme.models.list()},
        "MCPServer": {(row.name, row.url.removeprefix("https://")) for row in acme.mcp_servers.list()},
        "Agent": {(row.id, row.description) for row in acme.agents.list()},
        "declared": {(row.source, row.ref, row.spec["value"]) for row in acme.declared.list()},
    }


def expected(declared: dict[tuple[str, str], tuple[str, str]]) -> dict[str, Any]:
    """Return the state for these resources, each with its source and value."""
    values = {kind: {name: value for (item, name), (_, value) in declared.items() if item == kind} for kind in KINDS}
    rows = {kind: {(name, values[kind].get(name)) for name in values[kind]} for kind in KINDS}
    return {
        **{kind: rows[kind] for kind in KINDS if kind != "Memory"},
        "models": rows["ModelConfig"],
        "declared": {(source, f"{kind}/ns/{name}", value) for (kind, name), (source, value) in declared.items()},
    }


@settings(max_examples=40)
@given(CALLS)
def test_the_rows_are_those_of_the_last_sets(calls: Sequence[tuple[Given, bool, str, Any]]) -> None:
    declared: dict[tuple[str, str], tuple[str, str]] = {}
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        for items, prune, source, random in calls:
            given_resources = [resource(kind, name, value) for (kind, name), value in items.items()]
            random.shuffle(given_resources)
            kinds = KINDS if prune else ()
            options = {"source": source, "prune": kinds, "take_over": True}
            planned = acme.declared.apply(given_resources, dry_run=True, **options)
            assert state(acme) == expected(declared), "a dry run writes nothing"
            changes = acme.declared.apply(given_resources, **options)
            assert changes == planned
            assert {change.ref for change in changes if change.action == "unchanged"} == {
                f"{kind}/ns/{name}"
                for (kind, name), value in items.items()
                if declared.get((kind, name)) == (source, value)
            }
            gone = {key for key, (owner, _) in declared.items() if prune and owner == source and key not in items}
            assert {change.ref for change in changes if change.action == "pruned"} == {
                f"{kind}/ns/{name}" for kind, name in gone
            }
            for key in gone:
                del declared[key]
            declared |= {key: (source, value) for key, value in items.items()}
            assert state(acme) == expected(declared)
            again = acme.declared.apply(given_resources[::-1], **options)
            assert {change.action for change in again} <= {"unchanged"}, "applying twice changes nothing"
            assert state(acme) == expected(declared)


@settings(max_examples=20)
@given(st.sets(st.sampled_from(NAMES)), SETS, SETS)
def test_rows_made_by_hand_are_never_deleted(by_hand: set[str], first: Given, second: Given) -> None:
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        for name in sorted(by_hand):
            acme.agents.create(NewAgent(id=name, description="hand"))
        for items in (first, second, {}):
            found = [resource(kind, name, value) for (kind, name), value in items.items()]
            acme.declared.apply(found, source="one", prune=KINDS)
            agents = {row.id for row in acme.agents.list()}
            assert agents == by_hand | {name for kind, name in items if kind == "Agent"}
        assert acme.declared.count() == acme.providers.count() == acme.mcp_servers.count() == 0
