"""Agents and their core blocks at their edges: what changes a version, what changes nothing, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, Limits, TenantHandle
from holdfast.clock import FixedClock, from_us
from holdfast.core.paging import encode_cursor
from holdfast.errors import AlreadyExists, Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.stores.registry.agents import check_version
from holdfast.stores.registry.blocks import Block, NewBlock
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS

CLOCK = FixedClock()
LIMITS = Limits(name_bytes=64, tags=3, tools=3, system_bytes=40, text_bytes=40, blocks=3, block_bytes=60, list_rows=5)
STATE = {"agent_type": "open", "description": "", "model": "", "system": "", "tool_ids": [], "tags": [], "metadata": {}}


@pytest.fixture(scope="module")
def opened() -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=CLOCK, limits=LIMITS) as hf:
        yield hf


@pytest.fixture
def acme(opened: Holdfast, request: pytest.FixtureRequest) -> TenantHandle:
    """A tenant of the test's own."""
    return opened.tenant(request.node.name[:200])


@pytest.fixture
def ada(acme: TenantHandle) -> TenantHandle:
    """The same, with one agent."""
    acme.agents.create("Ada", id="ada")
    return acme


# Agents


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Bea"}, {"agent_type": "predefined"}, {"description": "d"}, {"model": "m"}, {"system": "s"},
        {"tool_ids": ["t"]}, {"tags": ["x"]}, {"metadata": {"a": 1}}, {"metadata": {"a": {"b": None}}},
    ],
    ids=repr,
)  # fmt: skip
def test_every_field_that_changes_raises_the_version_once_and_the_same_again_does_not(
    ada: TenantHandle, change: dict[str, Any]
) -> None:
    before = ada.agents.get("ada")
    CLOCK.advance(1)
    after = ada.agents.update("ada", **change)
    assert (after.version, after.updated_at, after.created_at) == (2, from_us(CLOCK.now_us()), before.created_at)
    assert {field: getattr(after, field) for field in change} == change
    untouched = set(STATE) - set(change)
    assert {field: getattr(after, field) for field in untouched} == {field: STATE[field] for field in untouched}
    CLOCK.advance(1)
    assert ada.agents.update("ada", **change) == after
    assert ada.agents.get("ada") == after


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": 1}, {"n": 1.0}),
        ({"n": 1}, {"n": True}),
        ({"n": 0}, {"n": False}),
        ({}, {"n": None}),
        ({"n": []}, {"n": {}}),
    ],
    ids=repr,
)
def test_metadata_that_python_takes_for_equal_is_a_change(acme: TenantHandle, one: Any, other: Any) -> None:
    acme.agents.create("A", id="a", metadata=one)
    assert acme.agents.upsert("a", name="A", metadata=one).version == 1
    assert acme.agents.upsert("a", name="A", metadata=other).version == 2
    with pytest.raises(AlreadyExists, match="another agent with the id 'a'"):
        acme.agents.create("A", id="a", metadata=one)


def test_the_order_of_keys_is_no_change_and_the_order_of_tools_is(acme: TenantHandle) -> None:
    acme.agents.create("A", id="a", metadata={"x": 1, "y": 2}, tool_ids=["s", "t"])
    assert acme.agents.update("a", metadata={"y": 2, "x": 1}).version == 1
    assert acme.agents.update("a", tool_ids=["t", "s"]).version == 2


@pytest.mark.parametrize("metadata", [[], "", 0, False, (), [1], "x", {1: 2}], ids=repr)
def test_metadata_is_a_dictionary_or_nothing_at_all(acme: TenantHandle, metadata: Any) -> None:
    for call in (
        lambda: acme.agents.create("A", id="a", metadata=metadata),
        lambda: acme.agents.upsert("a", name="A", metadata=metadata),
    ):
        with pytest.raises(InvalidInput, match="metadata must be a dictionary"):
            call()
    assert acme.agents.list() == []
    assert acme.agents.create("A", id="a", metadata=None).metadata == {}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": ""}, InvalidInput), ({"agent_type": ""}, InvalidInput), ({"name": 7}, InvalidInput),
        ({"model": "x" * 65}, LimitExceeded), ({"system": "é" * 21}, LimitExceeded), ({"tags": {"x"}}, InvalidInput),
        ({"tags": ["x"] * 4}, LimitExceeded), ({"tool_ids": "x"}, InvalidInput), ({"tool_ids": [None]}, InvalidInput),
        ({"metadata": {"a": float("nan")}}, InvalidInput), ({"version": 1.0}, InvalidInput),
        ({"version": True}, InvalidInput), ({"version": 0}, Conflict), ({"version": 2}, Conflict),
    ],
    ids=repr,
)  # fmt: skip
def test_a_change_that_is_refused_changes_nothing(ada: TenantHandle, change: Any, error: type[Exception]) -> None:
    before = ada.agents.get("ada")
    with pytest.raises(error):
        ada.agents.update("ada", **{"description": "new", **change})
    assert ada.agents.get("ada") == before


def test_limits_allow_exactly_their_number(acme: TenantHandle) -> None:
    names = ["a", "b", "c"]
    made = acme.agents.create("x" * 64, id="y" * 64, tags=names, tool_ids=names, system="é" * 20, description="x" * 40)
    assert acme.agents.get("y" * 64) == made
    for length, call in ((65, acme.agents.get), (65, acme.agents.find), (65, acme.agents.delete)):
        with pytest.raises(LimitExceeded, match="agent id: 65 is over the limit name_bytes = 64"):
            call("y" * length)


def test_a_list_without_a_limit_ends_where_pages_begin(acme: TenantHandle) -> None:
    for number in range(5):
        acme.agents.create("A", id=str(number))
    assert len(acme.agents.list()) == 5
    acme.agents.create("A", id="5")
    with pytest.raises(LimitExceeded, match="list_rows = 5 agents: page them with limit="):
        acme.agents.list()
    first = acme.agents.list(limit=4)
    assert [each.id for each in acme.agents.list(limit=4, cursor=first.next)] == ["4", "5"]
    assert acme.agents.list(limit=6).next is None


@pytest.mark.parametrize(
    "cursor", [*GARBAGE_CURSORS, encode_cursor("flows", "a"), encode_cursor("agents", 1)], ids=lambda c: repr(c)[:12]
)
def test_a_cursor_of_another_list_is_refused(acme: TenantHandle, cursor: Any) -> None:
    with pytest.raises(InvalidFilter):
        acme.agents.list(limit=1, cursor=cursor)


def test_a_tag_finds_whoever_has_it_now_in_pages_too(acme: TenantHandle) -> None:
    for number, tags in enumerate((["x"], ["x", "\x00"], ["\x00"], [])):
        acme.agents.create("A", id=str(number), tags=tags)
    page = acme.agents.list(tag="x", limit=1)
    assert [each.id for each in page] == ["0"]
    assert [each.id for each in acme.agents.list(tag="x", limit=1, cursor=page.next)] == ["1"]
    assert [each.id for each in acme.agents.list(tag="\x00")] == ["1", "2"]
    acme.agents.update("1", tags=[])
    acme.agents.upsert("3", name="A", tags=["x"])
    acme.agents.delete("0")
    assert [each.id for each in acme.agents.list(tag="x")] == ["3"]
    assert acme.agents.list(tag="X") == []
    with pytest.raises(InvalidInput, match="tag must not be empty"):
        acme.agents.list(tag="")


def test_agents_are_listed_as_their_ids_are_stored(acme: TenantHandle) -> None:
    chosen = [each for each in TEXTS if each][:5]
    for id in chosen:
        acme.agents.create("A", id=id)
    assert sorted(each.id for each in acme.agents.list()) == sorted(chosen)


def test_other_tenants_and_what_was_deleted_are_not_there(opened: Holdfast, ada: TenantHandle) -> None:
    zenith = opened.tenant("zenith")
    for call in (zenith.agents.get, zenith.agents.delete, zenith.agents.update, zenith.blocks.list):
        with pytest.raises(NotFound, match="there is no agent 'ada' here"):
            call("ada")
    ada.agents.delete("ada", version=1)
    with pytest.raises(NotFound):
        ada.agents.delete("ada")
    assert ada.agents.create("Ada", id="ada").version == 1


@pytest.mark.parametrize(("there", "expected", "error"), [(3, 3, None), (3, None, None), (0, 0, None), (3, 2, Conflict),
                                                          (1, True, InvalidInput), (1, "1", InvalidInput)])  # fmt: skip
def test_a_version_is_that_one_or_any(there: int, expected: Any, error: type[Exception] | None) -> None:
    if error is None:
        check_version(there, expected, "it")
        return
    with pytest.raises(error):
        check_version(there, expected, "it")


# Blocks


def labels(blocks: Any) -> list[tuple[str, str, int]]:
    return [(each.label, each.value, each.version) for each in blocks]


@pytest.mark.parametrize("wrong", ["", "ab", b"", {}, 7, None, [NewBlock(label="a"), "b"]], ids=repr)
def test_what_is_no_list_of_blocks_removes_none(ada: TenantHandle, wrong: Any) -> None:
    ada.blocks.set("ada", "persona", "kind")
    with pytest.raises(InvalidInput, match="blocks must be a list of NewBlock"):
        ada.blocks.save("ada", wrong)
    with pytest.raises(InvalidInput, match="blocks must be a list of"):
        ada.blocks.save("ada", [], expected=wrong if wrong is not None else [1])
    assert labels(ada.blocks.list("ada")) == [("persona", "kind", 1)]


def test_a_save_orders_keeps_changes_and_removes(ada: TenantHandle) -> None:
    ada.blocks.save("ada", [NewBlock(label=each, value=each) for each in "abc"])
    ada.blocks.save("ada", [NewBlock(label="c", value="C"), NewBlock(label="a", value="a")])
    assert labels(ada.blocks.list("ada")) == [("c", "C", 2), ("a", "a", 1)]
    assert ada.blocks.save("ada", ()) == []
    assert ada.blocks.list("ada") == []


def test_what_is_expected_may_come_in_any_order_but_must_be_all(ada: TenantHandle) -> None:
    there = ada.blocks.save("ada", [NewBlock(label="a"), NewBlock(label="b")])
    for wrong in ([], there[:1], [*there, there[0]]):
        with pytest.raises(Conflict, match="have been changed since"):
            ada.blocks.save("ada", [NewBlock(label="z")], expected=wrong)
    assert labels(ada.blocks.save("ada", [NewBlock(label="z")], expected=[*reversed(there)])) == [("z", "", 1)]
    with pytest.raises(Conflict):
        ada.blocks.save("ada", [], expected=there)


@pytest.mark.parametrize("changes", [{"value": "new"}, {"description": "new"}, {"limit_bytes": 30}], ids=repr)
def test_a_block_changes_with_any_of_its_parts(ada: TenantHandle, changes: dict[str, Any]) -> None:
    first = ada.blocks.set("ada", "a", "old", description="d", limit_bytes=20)
    again = ada.blocks.set("ada", "a", **{"value": "old", **changes})
    assert again.version == 2
    assert (again.value, again.description, again.limit_bytes) == (
        changes.get("value", first.value),
        changes.get("description", first.description),
        changes.get("limit_bytes", first.limit_bytes),
    )
    assert ada.blocks.set("ada", "a", **{"value": "old", **changes}) == again


def test_version_nothing_means_that_it_must_not_be_there(ada: TenantHandle) -> None:
    assert ada.blocks.set("ada", "a", "first", version=0).version == 1
    for version in (0, 2, -1):
        with pytest.raises(Conflict, match="block 'a' of agent 'ada' is at version 1 by now"):
            ada.blocks.set("ada", "a", "second", version=version)
    with pytest.raises(Conflict):
        ada.blocks.delete("ada", "a", version=2)
    ada.blocks.delete("ada", "a", version=1)
    assert ada.blocks.find("ada", "a") is None
    for gone in (ada.blocks.get, ada.blocks.delete):
        with pytest.raises(NotFound, match="agent 'ada' has no block 'a'"):
            gone("ada", "a")


def test_an_empty_block_has_no_separator_before_what_is_appended(ada: TenantHandle) -> None:
    assert ada.blocks.append("ada", "a", "").value == ""
    assert ada.blocks.append("ada", "a", "one").value == "one"
    assert ada.blocks.append("ada", "a", "two", separator="").value == "onetwo"
    assert ada.blocks.append("ada", "a", "\ud800\x00", separator="\x00").value == "onetwo\x00\ud800\x00"
    for wrong in ({"value": None}, {"value": "x", "separator": 7}):
        with pytest.raises(InvalidInput, match="must be text"):
            ada.blocks.append("ada", "a", **wrong)  # type: ignore[arg-type]


def test_a_block_that_was_made_smaller_than_it_is_stays_as_it_was(ada: TenantHandle) -> None:
    made = ada.blocks.set("ada", "a", "é" * 10)
    with pytest.raises(LimitExceeded, match="block 'a': 20 bytes are over its limit_bytes = 19"):
        ada.blocks.set("ada", "a", "é" * 10, limit_bytes=19)
    assert ada.blocks.get("ada", "a") == made
    assert ada.blocks.set("ada", "a", "é" * 10, limit_bytes=20).limit_bytes == 20


def test_as_many_blocks_as_the_limit_and_the_oldest_may_still_change(ada: TenantHandle) -> None:
    for label in "abc":
        ada.blocks.append("ada", label, "x")
    for call in (ada.blocks.append, ada.blocks.set):
        with pytest.raises(LimitExceeded, match="blocks: 4 is over the limit blocks = 3"):
            call("ada", "d", "x")
    assert ada.blocks.append("ada", "a", "y").value == "x\ny"


operations = st.lists(
    st.tuples(st.sampled_from(["set", "append", "delete"]), st.sampled_from("ab"), st.sampled_from(["", "x", "\x00"])),
    max_size=8,
)


@given(done=operations)
@settings(max_examples=25)
def test_blocks_do_what_a_dictionary_would(opened: Holdfast, done: list[tuple[str, str, str]]) -> None:
    acme = opened.tenant("model")
    acme.agents.upsert("ada", name="Ada")
    acme.blocks.save("ada", [])
    model: dict[str, str] = {}
    for what, label, value in done:
        if what == "set":
            model[label] = value
            acme.blocks.set("ada", label, value)
        elif what == "append":
            model[label] = f"{model[label]}\n{value}" if model.get(label) else value
            acme.blocks.append("ada", label, value)
        elif label in model:
            del model[label]
            acme.blocks.delete("ada", label)
    assert {each.label: each.value for each in acme.blocks.list("ada")} == model


def test_a_block_knows_whose_it_is(ada: TenantHandle) -> None:
    made = ada.blocks.set("ada", "\ud800", "\x00")
    assert isinstance(made, Block)
    assert (made.agent, made.label, made.value) == ("ada", "\ud800", "\x00")
    assert ada.blocks.get("ada", "\ud800") == made == ada.blocks.find("ada", "\ud800")
