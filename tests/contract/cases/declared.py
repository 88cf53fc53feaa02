"""Applying declared resources. ``records.py`` tests the promises of all record stores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from msgspec import structs

from holdfast.core.crypto import MASK, Secret
from holdfast.errors import Conflict, InvalidInput, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.agents.agents import AgentChange, NewAgent
from holdfast.stores.config.models import ModelChange, NewModel
from holdfast.stores.config.providers import NewProvider
from holdfast.stores.declared.differences import FieldChange
from holdfast.stores.declared.plan import AppliedChange, ResourceToApply
from holdfast.stores.tools.mcp_servers import NewMcpServer
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises

KINDS = ("Agent", "MCPServer", "ModelConfig")
TABLES = ("providers", "models", "mcp_servers", "agents", "declared")


def model(name: str, key: str = "key", model_name: str = "gpt") -> ResourceToApply:
    rows: list[Any] = [
        NewProvider(name=name, api_key=Secret(key)),
        NewModel(provider=name, name=model_name, is_default=True),
    ]
    return ResourceToApply(kind="ModelConfig", namespace="ns", name=name, spec={"model": model_name}, rows=rows)


def server(name: str, url: str = "https://example.com") -> ResourceToApply:
    rows = [NewMcpServer(name=name, kind="MCPServer", transport="sse", url=url)]
    return ResourceToApply(kind="MCPServer", namespace="ns", name=name, spec={"url": url}, rows=rows)


def agent(name: str, system: str = "Be helpful.") -> ResourceToApply:
    rows = [NewAgent(id=name, display_name=name, system=system)]
    return ResourceToApply(kind="Agent", namespace="ns", name=name, spec={"system": system}, rows=rows)


def some() -> list[ResourceToApply]:
    return [model("m1"), model("m2"), server("s1"), agent("a1"), agent("a2")]


async def everything(acme: AsyncTenantHandle) -> dict[str, list[Any]]:
    """Return all rows, with their versions and times: equal states mean that nothing was written."""
    return {name: list(await getattr(acme, name).list()) for name in TABLES}


def actions(changes: Sequence[AppliedChange]) -> dict[str, str]:
    return {change.ref: change.action for change in changes}


def only(changes: Sequence[AppliedChange], action: str) -> AppliedChange:
    (change,) = [change for change in changes if change.action != "unchanged"]
    assert change.action == action, change
    return change


@contract()
async def resources_become_rows_and_a_second_apply_changes_nothing(world: World) -> None:
    acme = world.tenant()
    with acme.acting(user="ada"):
        first = await acme.declared.apply(some(), source="files")
    assert actions(first) == {item.ref: "created" for item in some()}
    assert [row.applied_by for row in await acme.declared.list()] == ["ada"] * 5
    (default,) = [row for row in await acme.models.list() if row.name == "gpt" and row.is_default][:1]
    assert (await acme.providers.get(default.provider)).api_key == Secret("key")
    before = await everything(acme)
    world.clock.advance(60)
    logged = await acme.activity.count()
    for given in (some(), some()[::-1], [some()[2]]):
        again = await acme.declared.apply(given, source="files")
        assert actions(again) == {item.ref: "unchanged" for item in given}
    assert actions(await acme.declared.apply(some(), source="files", prune=KINDS)) == actions(again) | {
        item.ref: "unchanged" for item in some()
    }
    assert await everything(acme) == before
    assert await acme.activity.count() == logged


@contract()
async def the_order_of_the_resources_does_not_matter(world: World) -> None:
    random = Random(7)
    states = []
    for number in range(4):
        acme = world.tenant(f"order {number}")
        given = some()
        random.shuffle(given)
        await acme.declared.apply(given, source="files")
        changed = [model("m1", model_name="other"), agent("a1", "Be brief."), server("s2")]
        random.shuffle(changed)
        await acme.declared.apply(changed, source="files", prune=KINDS)
        rows = await everything(acme)
        providers = {row.id: row.name for row in rows["providers"]}
        states.append(
            (
                [row.name for row in rows["providers"]],
                [(providers[row.provider], row.name) for row in rows["models"]],
                [(row.name, row.url) for row in rows["mcp_servers"]],
                [(row.id, row.system) for row in rows["agents"]],
                [row.ref for row in rows["declared"]],
            )
        )
    assert states == [states[0]] * 4
    assert states[0][1] == [("m1", "other")], "the row of the former name is gone"


@contract()
async def pruning_deletes_what_the_source_made_and_nothing_else(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent(id="by hand"))
    await acme.agents.create(NewAgent(id="a2", display_name="older than its resource"))
    await acme.providers.create(NewProvider(name="by hand"))
    await acme.declared.apply([agent("elsewhere"), server("elsewhere")], source="other files")
    first = await acme.declared.apply(some(), source="files")
    assert actions(first)["Agent/ns/a2"] == "adopted"
    assert actions(await acme.declared.apply([some()[0]], source="files")) == {"ModelConfig/ns/m1": "unchanged"}
    await acme.sessions.create(agent="a1")

    assert (await acme.declared.apply([some()[0]], source="files", prune=["Agent"], keep=["Agent/ns/a1"]))[1:] == [
        AppliedChange(ref="Agent/ns/a2", action="pruned", kept=["agents a2"])
    ]
    pruned = await acme.declared.apply([some()[0]], source="files", prune=KINDS)
    assert actions(pruned) == {
        "ModelConfig/ns/m1": "unchanged",
        "Agent/ns/a1": "pruned",
        "MCPServer/ns/s1": "pruned",
        "ModelConfig/ns/m2": "pruned",
    }
    (of_agent,) = [change for change in pruned if change.ref == "Agent/ns/a1"]
    assert of_agent.dependents["sessions"] == 1
    (of_model,) = [change for change in pruned if change.ref == "ModelConfig/ns/m2"]
    assert of_model.dependents == {}, "its own model does not count"
    assert {row.id for row in await acme.agents.list()} == {"by hand", "a2", "elsewhere"}
    assert {row.name for row in await acme.providers.list()} == {"by hand", "m1"}
    assert {row.name for row in await acme.mcp_servers.list()} == {"elsewhere"}
    assert await acme.sessions.count() == 1
    assert (await acme.agents.get("a2")).system == "Be helpful."


@contract()
async def a_dry_run_shows_the_same_and_writes_nothing(world: World) -> None:
    acme = world.tenant()
    await acme.declared.apply(some(), source="files")
    before = await everything(acme)
    given = [model("m1", "new key"), agent("a1", "Be brief."), server("s3")]
    planned = await acme.declared.apply(given, source="files", prune=KINDS, dry_run=True)
    assert await everything(acme) == before
    assert await acme.declared.apply(given, source="files", prune=KINDS) == planned
    assert actions(planned)["MCPServer/ns/s3"] == "created"


@contract()
async def a_difference_names_the_fields_and_no_secret(world: World) -> None:
    acme = world.tenant()
    given = structs.replace(agent("a1"), secrets=Secret({"env/TOKEN": "t-1"}), metadata={"labels": {"a": "b"}})
    await acme.declared.apply([given, model("m1")], source="files")
    changed = structs.replace(agent("a1", "Be brief."), secrets=Secret({"env/TOKEN": "t-2"}))
    change = only(await acme.declared.apply([changed, model("m1")], source="files"), "changed")
    assert list(change.fields) == [
        FieldChange("metadata.labels", {"a": "b"}, None),
        FieldChange("spec.system", "Be helpful.", "Be brief."),
        FieldChange("spec.env.TOKEN", MASK, MASK),
    ]
    assert (await acme.declared.reveal("Agent/ns/a1"))["secrets"] == {"env/TOKEN": "t-2"}
    change = only(await acme.declared.apply([changed, model("m1", "another")], source="files"), "changed")
    assert list(change.fields) == [FieldChange("providers.api_key", MASK, MASK)]


@contract()
async def rows_that_were_changed_or_deleted_by_hand_are_brought_back(world: World) -> None:
    acme = world.tenant()
    await acme.declared.apply(some(), source="files")
    await acme.agents.update("a1", change=AgentChange(system="changed by hand"))
    change = only(await acme.declared.apply(some(), source="files"), "changed")
    assert list(change.fields) == [FieldChange("agents.system", "changed by hand", "Be helpful.")]
    (provider,) = [row for row in await acme.providers.list() if row.name == "m1"]
    await acme.providers.delete(provider.id)
    await acme.agents.delete("a2")
    again = await acme.declared.apply(some(), source="files")
    assert {ref for ref, action in actions(again).items() if action == "changed"} == {
        "ModelConfig/ns/m1",
        "Agent/ns/a2",
    }
    assert await acme.models.count() == 2
    assert set(actions(await acme.declared.apply(some(), source="files")).values()) == {"unchanged"}


@contract()
async def fields_that_no_resource_sets_keep_what_they_were_given_by_hand(world: World) -> None:
    acme = world.tenant()
    rows: list[Any] = [NewAgent(id="a1", system="Be helpful.", description="helps", metadata={"type": "BYO"})]
    described = structs.replace(agent("a1"), rows=rows, spec={"description": "helps"})
    await acme.declared.apply([described, model("m1")], source="files")
    own: dict[str, Any] = {"budget_monthly_cents": 100, "tags": ["mine"], "metadata": {"type": "BYO", "mine": 1}}
    await acme.agents.update("a1", change=AgentChange(**own))
    (known,) = await acme.models.list()
    await acme.models.update(known.id, change=ModelChange(input_price_micros=5))
    assert set(actions(await acme.declared.apply([described, model("m1")], source="files")).values()) == {"unchanged"}
    less = structs.replace(described, rows=[structs.replace(rows[0], description="")], spec={})
    only(await acme.declared.apply([less, model("m1")], source="files"), "changed")
    assert (await acme.agents.get("a1")).description == "", "a field that is not given any more is reset"
    only(await acme.declared.apply([agent("a1", "Be brief."), model("m1")], source="files"), "changed")
    row = await acme.agents.get("a1")
    assert (row.system, row.description, row.budget_monthly_cents) == ("Be brief.", "", 100)
    assert (row.tags, row.metadata["mine"]) == (["mine"], 1)
    assert (await acme.models.get(known.id)).input_price_micros == 5
    await acme.agents.delete("a1")
    only(await acme.declared.apply([agent("a1", "Be brief."), model("m1")], source="files"), "changed")
    assert (await acme.agents.get("a1")).tags == ["mine"], "a row that is brought back is the one that was deleted"


@contract()
async def a_resource_of_another_source_is_refused_or_taken_over(world: World) -> None:
    acme = world.tenant()
    await acme.declared.apply(some(), source="files")
    before = await everything(acme)
    with raises(Conflict, reason="source"):
        await acme.declared.apply([server("s9"), agent("a1", "mine")], source="other files")
    assert await everything(acme) == before
    taken = await acme.declared.apply([agent("a1")], source="other files", take_over=True)
    assert actions(taken) == {"Agent/ns/a1": "changed"}
    assert actions(await acme.declared.apply([], source="other files", prune=KINDS)) == {"Agent/ns/a1": "pruned"}
    assert {row.id for row in await acme.agents.list()} == {"a2"}


@contract(limits=Limits(system_bytes=100, batch_rows=4))
async def one_invalid_resource_changes_nothing_at_all(world: World) -> None:
    acme = world.tenant()
    await acme.declared.apply([agent("a1")], source="files")
    before = await everything(acme)
    same_row = structs.replace(agent("other"), rows=[NewAgent(id="a1")])
    bad_url = [NewMcpServer(name="s", transport="sse", url="https://user:password@example.com")]
    wrong: Any
    for wrong, error in (
        (agent("a3", "x" * 101), LimitExceeded),
        (structs.replace(server("s"), rows=bad_url), InvalidInput),
        (same_row, InvalidInput),
        (agent("a1"), InvalidInput),
        (structs.replace(agent("a3"), name=""), InvalidInput),
        (structs.replace(agent("a3"), name=7), InvalidInput),
        (structs.replace(agent("a3"), rows=["a row"]), InvalidInput),
        (structs.replace(agent("a3"), rows=[NewAgent()]), InvalidInput),
        (structs.replace(agent("a3"), secrets={"path": "text"}), InvalidInput),
        (structs.replace(agent("a3"), secrets=Secret("text")), InvalidInput),
        ("a resource", InvalidInput),
    ):
        with raises(error):
            await acme.declared.apply([model("m"), agent("a1", "new"), wrong], source="files", prune=KINDS)
        assert await everything(acme) == before
    with raises(LimitExceeded, limit="batch_rows"):
        await acme.declared.apply([agent(str(number)) for number in range(5)], source="files")
    with raises(InvalidInput):
        await acme.declared.apply([], source="")


@contract()
async def a_resource_that_comes_back_gets_its_rows_back(world: World) -> None:
    acme = world.tenant()
    await acme.declared.apply(some(), source="files")
    before = await acme.mcp_servers.list()
    await acme.declared.apply([], source="files", prune=KINDS)
    assert await everything(acme) == {name: [] for name in TABLES}
    back = await acme.declared.apply(some(), source="files")
    assert set(actions(back).values()) == {"created"}
    assert [row.id for row in await acme.mcp_servers.list()] == [row.id for row in before]
    await acme.declared.apply([], source="files", prune=KINDS)
    assert await acme.agents.count() == 0, "apply made the restored rows, too"


@contract()
async def a_row_is_handed_over_from_one_resource_to_another(world: World) -> None:
    acme = world.tenant()
    await acme.declared.apply([agent("a1")], source="files")
    renamed = structs.replace(agent("a1", "Be brief."), name="renamed")
    changes = await acme.declared.apply([renamed], source="files", prune=KINDS)
    assert actions(changes) == {"Agent/ns/renamed": "created", "Agent/ns/a1": "pruned"}
    assert [row.system for row in await acme.agents.list()] == ["Be brief."]
    await acme.declared.apply([agent("a1")], source="files")
    changes = await acme.declared.apply([renamed], source="files", prune=KINDS)
    assert await acme.agents.count() == 1, "the row of a pruned resource stays if another resource has it"
    assert await acme.declared.apply([], source="files", prune=KINDS)
    assert await acme.agents.count() == 0


@contract()
async def removed_resources_go_with_their_rows(world: World) -> None:
    acme = world.tenant()
    await acme.agents.create(NewAgent(id="a2"))
    await acme.declared.apply(some(), source="files")
    refs = ["Agent/ns/a1", "Agent/ns/a2", "ModelConfig/ns/m1", "Agent/ns/absent"]
    assert actions(await acme.declared.remove(refs)) == dict.fromkeys(refs[:3], "pruned")
    assert [row.id for row in await acme.agents.list()] == ["a2"]
    assert [row.name for row in await acme.providers.list()] == ["m2"]
    assert await acme.declared.namespaces() == ["ns"]
    assert await acme.declared.remove(refs) == []
    for wrong in ("Agent/ns/a1", [7], None):
        with raises(InvalidInput):
            await acme.declared.remove(wrong)  # type: ignore[arg-type]
    not_lists: list[dict[str, Any]] = [{"prune": "Agent"}, {"keep": "Agent/ns/a1"}]
    for arguments in not_lists:
        with raises(InvalidInput):
            await acme.declared.apply([], source="files", **arguments)


@contract()
async def a_declaration_deleted_by_hand_leaves_its_rows(world: World) -> None:
    acme = world.tenant()
    await acme.declared.apply([agent("a1")], source="files")
    await acme.declared.delete("Agent/ns/a1")
    assert await acme.declared.apply([], source="files", prune=KINDS) == []
    assert [row.id for row in await acme.agents.list()] == ["a1"]


@contract("concurrency")
async def concurrent_applies_of_one_source_agree(world: World) -> None:
    acme = world.tenant()
    results = await world.together(*[partial(acme.declared.apply, some(), source="files")] * 6)
    assert not [result for result in results if isinstance(result, Exception)], results
    rows = await everything(acme)
    assert {name: len(found) for name, found in rows.items()} == dict(zip(TABLES, (2, 2, 1, 2, 5), strict=True))
    assert set(actions(await acme.declared.apply(some(), source="files")).values()) == {"unchanged"}
