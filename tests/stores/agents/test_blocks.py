"""Core blocks of agents: versions, limits and refused arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, Limits, NewAgent, TenantHandle
from holdfast.clock import FixedClock
from holdfast.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from holdfast.stores.agents.blocks import Block, NewBlock
from tests.errors import raises

CLOCK = FixedClock()
LIMITS = Limits(name_bytes=64, tags=3, tools=3, system_bytes=40, text_bytes=40, blocks=3, block_bytes=60, list_rows=5)


@pytest.fixture(scope="module")
def opened() -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=CLOCK, limits=LIMITS) as hf:
        yield hf


@pytest.fixture
def acme(opened: Holdfast, request: pytest.FixtureRequest) -> TenantHandle:
    """Return a new tenant for each test."""
    return opened.tenant(request.node.name[:200])


@pytest.fixture
def ada(acme: TenantHandle) -> TenantHandle:
    """Return a new tenant with one agent."""
    acme.agents.create(NewAgent("ada", display_name="Ada"))
    return acme


def labels(blocks: Any) -> list[tuple[str, str, int]]:
    return [(block.label, block.value, block.version) for block in blocks]


@pytest.mark.parametrize("wrong", ["", "ab", b"", {}, 7, None, [NewBlock(label="a"), "b"]], ids=repr)
def test_an_invalid_list_of_blocks_changes_nothing(ada: TenantHandle, wrong: Any) -> None:
    ada.blocks.set("ada", "persona", "kind")
    with raises(InvalidInput, field="blocks"):
        ada.blocks.save("ada", wrong)
    with raises(InvalidInput, field="blocks"):
        ada.blocks.save("ada", [], expected=wrong if wrong is not None else [1])
    assert labels(ada.blocks.list("ada")) == [("persona", "kind", 1)]


def test_a_save_orders_updates_and_removes_blocks(ada: TenantHandle) -> None:
    ada.blocks.save("ada", [NewBlock(label=name, value=name) for name in "abc"])
    ada.blocks.save("ada", [NewBlock(label="c", value="C"), NewBlock(label="a", value="a")])
    assert labels(ada.blocks.list("ada")) == [("c", "C", 2), ("a", "a", 1)]
    assert ada.blocks.save("ada", ()) == []
    assert ada.blocks.list("ada") == []


def test_expected_blocks_may_be_in_any_order_but_must_be_complete(ada: TenantHandle) -> None:
    blocks = ada.blocks.save("ada", [NewBlock(label="a"), NewBlock(label="b")])
    for wrong in ([], blocks[:1], [*blocks, blocks[0]]):
        with raises(Conflict, reason="changed"):
            ada.blocks.save("ada", [NewBlock(label="z")], expected=wrong)
    assert labels(ada.blocks.save("ada", [NewBlock(label="z")], expected=[*reversed(blocks)])) == [("z", "", 1)]
    with pytest.raises(Conflict):
        ada.blocks.save("ada", [], expected=blocks)


@pytest.mark.parametrize("changes", [{"value": "new"}, {"description": "new"}, {"limit_bytes": 30}], ids=repr)
def test_a_change_of_any_field_increases_the_version(ada: TenantHandle, changes: dict[str, Any]) -> None:
    first = ada.blocks.set("ada", "a", "old", description="d", limit_bytes=20)
    again = ada.blocks.set("ada", "a", **{"value": "old", **changes})
    assert again.version == 2
    assert (again.value, again.description, again.limit_bytes) == (
        changes.get("value", first.value),
        changes.get("description", first.description),
        changes.get("limit_bytes", first.limit_bytes),
    )
    assert ada.blocks.set("ada", "a", **{"value": "old", **changes}) == again


def test_version_zero_requires_that_the_block_does_not_exist(ada: TenantHandle) -> None:
    assert ada.blocks.set("ada", "a", "first", version=0).version == 1
    for version in (0, 2, -1):
        with raises(Conflict, reason="version"):
            ada.blocks.set("ada", "a", "second", version=version)
    with pytest.raises(Conflict):
        ada.blocks.delete("ada", "a", version=2)
    ada.blocks.delete("ada", "a", version=1)
    assert ada.blocks.find("ada", "a") is None
    for call in (ada.blocks.get, ada.blocks.delete):
        with raises(NotFound, noun="block", key="a"):
            call("ada", "a")


def test_an_append_to_an_empty_block_adds_no_separator(ada: TenantHandle) -> None:
    assert ada.blocks.append("ada", "a", "").value == ""
    assert ada.blocks.append("ada", "a", "one").value == "one"
    assert ada.blocks.append("ada", "a", "two", separator="").value == "onetwo"
    assert ada.blocks.append("ada", "a", "\ud800\x00", separator="\x00").value == "onetwo\x00\ud800\x00"
    for wrong in ({"value": None}, {"value": "x", "separator": 7}):
        with raises(InvalidInput, field="value"):
            ada.blocks.append("ada", "a", **wrong)  # type: ignore[arg-type]


def test_a_limit_below_the_size_of_a_block_is_refused(ada: TenantHandle) -> None:
    created = ada.blocks.set("ada", "a", "é" * 10)
    with raises(LimitExceeded, field="value", limit="limit_bytes", maximum=19):
        ada.blocks.set("ada", "a", "é" * 10, limit_bytes=19)
    assert ada.blocks.get("ada", "a") == created
    assert ada.blocks.set("ada", "a", "é" * 10, limit_bytes=20).limit_bytes == 20


def test_at_the_limit_of_blocks_existing_ones_can_still_change(ada: TenantHandle) -> None:
    for label in "abc":
        ada.blocks.append("ada", label, "x")
    for call in (ada.blocks.append, ada.blocks.set):
        with raises(LimitExceeded, limit="blocks", maximum=3):
            call("ada", "d", "x")
    assert ada.blocks.append("ada", "a", "y").value == "x\ny"


operations = st.lists(
    st.tuples(st.sampled_from(["set", "append", "delete"]), st.sampled_from("ab"), st.sampled_from(["", "x", "\x00"])),
    max_size=8,
)


@given(actions=operations)
@settings(max_examples=25)
def test_blocks_behave_like_a_dictionary(opened: Holdfast, actions: list[tuple[str, str, str]]) -> None:
    acme = opened.tenant("model")
    acme.agents.upsert(NewAgent("ada", display_name="Ada"))
    acme.blocks.save("ada", [])
    model: dict[str, str] = {}
    for what, label, value in actions:
        if what == "set":
            model[label] = value
            acme.blocks.set("ada", label, value)
        elif what == "append":
            model[label] = f"{model[label]}\n{value}" if model.get(label) else value
            acme.blocks.append("ada", label, value)
        elif label in model:
            del model[label]
            acme.blocks.delete("ada", label)
    assert {block.label: block.value for block in acme.blocks.list("ada")} == model


def test_a_block_has_the_id_of_its_agent(ada: TenantHandle) -> None:
    created = ada.blocks.set("ada", "\ud800", "\x00")
    assert isinstance(created, Block)
    assert (created.agent, created.label, created.value) == ("ada", "\ud800", "\x00")
    assert ada.blocks.get("ada", "\ud800") == created == ada.blocks.find("ada", "\ud800")
