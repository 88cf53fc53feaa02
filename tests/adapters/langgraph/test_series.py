"""A list of messages is recognised and handed out as a whole, and still every single object is looked at."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from holdfast.adapters.langgraph import HoldfastSaver, StrictSerializer
from holdfast.adapters.langgraph.codec import Encoder
from holdfast.adapters.langgraph.memory import KEPT, Learnt, Memory, Thread
from holdfast.adapters.langgraph.series import Series
from holdfast.adapters.langgraph.snapshots import Snapshot, is_still
from tests.adapters.langgraph.graphs import chat_graph, say, text, thread
from tests.adapters.langgraph.test_memory import elsewhere, put, value_of

COUNT = 12


def answer(number: int) -> AIMessage:
    """An answer as models give them: with something in its dictionaries and lists."""
    return AIMessage(
        f"{number} " * 50,
        id=str(number),
        response_metadata={"model": "m", "usage": {"in": number, "out": [1, 2.5, True, None]}},
        usage_metadata={"input_tokens": number, "output_tokens": 2, "total_tokens": number + 2},
        tool_calls=[{"name": "f", "args": {"a": {"b": [number]}}, "id": f"c{number}"}],
    )


def told(count: int = COUNT) -> Thread:
    """A thread with questions and answers at the places from 1 on."""
    found = Memory().under("t", "stamp")
    for number in range(1, count + 1):
        message = answer(number) if number % 2 else HumanMessage(f"{number} " * 50, id=str(number))
        found.learn(Learnt(message, Snapshot(message)), number)
    return found


def all_places(count: int = COUNT) -> list[int]:
    return list(range(1, count + 1))


def flat(ranges: Any) -> list[int]:
    return list(chain.from_iterable(ranges))


def known(found: Thread, values: list[Any]) -> list[int | None]:
    """The places of the elements of a list as they would be saved; ``None`` for one that would be written down."""
    pieces = Encoder(StrictSerializer(), found)
    pieces.node(values)
    noted = _noted(pieces.pieces)
    return list(
        chain.from_iterable(range(each[0], each[1] + 1) if isinstance(each, tuple) else [each] for each in noted)
    )


def _noted(pieces: Any) -> list[Any]:
    return [None if isinstance(each, bytes) else each for each in pieces]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "content": lambda each: setattr(each, "content", "another"),
    "content as blocks": lambda each: setattr(each, "content", [{"type": "text", "text": "x" * 100}]),
    "deep in a dictionary": lambda each: each.response_metadata["usage"]["out"].append(3),
    "one deep inside to its equal": lambda each: each.response_metadata["usage"]["out"].__setitem__(0, True),
    "an argument of a call": lambda each: each.tool_calls[0]["args"]["a"]["b"].clear(),
    "a call more": lambda each: each.tool_calls.append({"name": "g", "args": {}, "id": "9", "type": "tool_call"}),
    "an empty dictionary filled": lambda each: each.additional_kwargs.update(a=1),
    "an empty list filled": lambda each: each.invalid_tool_calls.append({"error": "x", "type": "invalid_tool_call"}),
    "a field of its own": lambda each: setattr(each, "unheard_of", 1),
    "usage": lambda each: each.usage_metadata.update(output_tokens=3),
    "no usage": lambda each: setattr(each, "usage_metadata", None),
}


@pytest.mark.parametrize("at", [0, 4, COUNT - 2])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_is_changed_in_place_is_noticed_and_nothing_else(change: Callable[[Any], Any], at: int) -> None:
    found = told()
    values = found.hand_out_all(all_places())
    assert known(found, values) == all_places()
    change(values[at])
    assert known(found, values) == [None if place == at + 1 else place for place in all_places()]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_changed_in_place_is_stored_and_read_anywhere(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    saver = HoldfastSaver(str(tmp_path / "a.db"))
    first = put(saver, [answer(number) for number in range(6)])
    values = value_of(saver)
    before = put(saver, values, parent=first)
    change(values[3])
    wanted = [each.model_dump() for each in values]
    put(saver, values, parent=before)
    for reader in (saver, elsewhere(saver)):
        assert [each.model_dump() for each in value_of(reader)] == wanted


def test_a_list_is_known_however_it_was_put_together() -> None:
    found = told()
    values = found.hand_out_all(all_places())
    assert known(found, values[5:]) == all_places()[5:], "the oldest were left out"
    assert known(found, [*values[:3], *values[7:]]) == [*all_places()[:3], *all_places()[7:]]
    assert known(found, values[::-1]) == all_places()[::-1]
    assert known(found, [values[2], values[2], values[3]]) == [3, 3, 4]
    another = HumanMessage("new " * 50)
    assert known(found, [*values[:6], another, *values[6:]]) == [*all_places()[:6], None, *all_places()[6:]]


def test_places_that_follow_each_other_are_told_as_ranges() -> None:
    series = Series()
    messages = [HumanMessage(str(number)) for number in range(6)]
    for message, place in zip(messages, [4, 5, 6, 9, 2, 3], strict=True):
        series.append(message, place, Snapshot(message))
    assert series.known(messages, 0) == [range(4, 7), range(9, 10), range(2, 4)]
    assert series.known(messages[1:4], 1) == [range(5, 7), range(9, 10)]
    assert series.known(messages[4:], 4) == [range(2, 4)]
    series.move(3, 7, Snapshot(messages[3]))
    assert series.known(messages, 0) == [range(4, 8), range(2, 4)]
    series.cut(5)
    assert flat(series.known(messages, 0)) == [4, 5, 6, 7, 2]
    assert series.index_of(messages[5]) is None


def test_what_comes_one_after_the_other_becomes_one_list() -> None:
    """A step of an agent after the other, without anybody reading meanwhile: as a list grows, it stays one."""
    found = Memory().under("t", "stamp")
    values: list[Any] = []
    for place in range(1, 40):
        values.append(answer(place))
        found.learn(Learnt(values[-1], Snapshot(values[-1])), place)  # as what a task wrote
        assert known(found, values) == list(range(1, place + 1))
    assert found.known_run(values, 0) == [range(1, 40)]


def test_objects_with_something_inside_are_handed_out_again() -> None:
    found = told()
    first = found.hand_out_all(all_places())
    identities, whole = list(map(id, first)), [each.model_dump() for each in first]
    del first
    again = found.hand_out_all(all_places())
    assert list(map(id, again)) == identities
    assert [each.model_dump() for each in again] == whole


@pytest.mark.parametrize(
    "part",
    [
        lambda each: each,
        lambda each: each.response_metadata,
        lambda each: each.response_metadata["usage"],
        lambda each: each.response_metadata["usage"]["out"],
        lambda each: each.tool_calls[0]["args"]["a"]["b"],
        lambda each: each.additional_kwargs,
    ],
    ids=["itself", "a field", "in a field", "deep in a field", "an argument", "an empty one"],
)
def test_only_what_somebody_has_a_part_of_is_made_anew(part: Callable[[Any], Any]) -> None:
    found = told()
    first = found.hand_out_all(all_places())
    identities, whole = list(map(id, first)), [each.model_dump() for each in first]
    mine = part(first[4])
    del first
    again = found.hand_out_all(all_places())
    reused = [one == other for one, other in zip(identities, map(id, again), strict=True)]
    assert reused.count(False) == 1 or isinstance(mine, AIMessage)
    if isinstance(mine, list):
        mine.append("mine")
    elif isinstance(mine, dict):
        mine["mine"] = True
    else:
        mine.content = "mine"
    assert [each.model_dump() for each in again] == whole
    assert known(found, again) == all_places()


def test_who_still_has_what_was_read_last_gets_what_was_read_before() -> None:
    found = told()
    whole = [each.model_dump() for each in found.hand_out_all(all_places())]
    kept: list[Any] = []
    seen: list[tuple[int, ...]] = []
    for _ in range(6):
        found.turn()
        kept = found.hand_out_all(all_places())
        seen.append(tuple(map(id, kept)))
        assert [each.model_dump() for each in kept] == whole
    assert len(set(seen)) == 2
    assert all(one != other for one, other in pairwise(seen))


def test_what_is_read_is_longer_than_what_was_let_go_of() -> None:
    found = told()
    assert len(found.hand_out_all(all_places(5))) == 5
    values = found.hand_out_all(all_places())
    assert [each.id for each in values] == [str(place) for place in all_places()]
    assert known(found, values) == all_places()
    del values
    shorter = found.hand_out_all(all_places(3))
    assert [each.id for each in shorter] == ["1", "2", "3"]


def test_only_a_few_readings_are_kept() -> None:
    found = told()
    before = sys.getrefcount(found._snapshots[1].kind)
    for _ in range(4 * KEPT):
        found.turn()
        found.hand_out_all(all_places())
    assert len(found._readings) == KEPT
    assert sum(len(each.lists) for each in found._readings) <= KEPT
    assert sys.getrefcount(found._snapshots[1].kind) - before <= (KEPT + 1) * 2 * COUNT


def test_what_was_read_and_changed_before_anybody_looked_is_noticed(tmp_path: Path) -> None:
    """What a new reader is handed is only looked at when it comes back."""
    first = put(HoldfastSaver(str(tmp_path / "a.db")), [answer(number) for number in range(6)])
    reader = HoldfastSaver(str(tmp_path / "a.db"))
    values = value_of(reader)
    values[2].response_metadata["usage"]["out"].append("changed")
    values[4].content = "changed"
    put(reader, [*values, HumanMessage("new " * 50)], parent=first)
    for each in (reader, elsewhere(reader)):
        found = value_of(each)
        assert found[2].response_metadata["usage"]["out"][-1] == "changed"
        assert found[4].content == "changed"
        assert [message.id for message in found[:6]] == [str(number) for number in range(6)]


def test_what_readers_change_reaches_nobody_else(tmp_path: Path) -> None:
    put(HoldfastSaver(str(tmp_path / "a.db")), [answer(number) for number in range(6)])
    reader = HoldfastSaver(str(tmp_path / "a.db"))
    whole = [each.model_dump() for each in value_of(reader)]
    for _ in range(4):
        values = value_of(reader)
        assert [each.model_dump() for each in values] == whole
        for change in CHANGES.values():
            change(values[3])


def test_two_savers_that_take_turns_see_all_of_it(tmp_path: Path) -> None:
    savers = [HoldfastSaver(str(tmp_path / "a.db")) for _ in range(2)]
    kept = []
    for turn in range(1, 9):
        result = chat_graph(savers[turn % 2]).invoke(say(turn), thread(), durability="sync")
        kept.append(result["messages"])
        wanted = [text(number) for number in range(1, 2 * turn + 1)]
        assert [each.content for each in result["messages"]] == wanted
        assert [
            each.content for each in chat_graph(savers[turn % 2 - 1]).get_state(thread()).values["messages"]
        ] == wanted
    assert [len(each) for each in kept] == list(range(2, 18, 2)), "and nobody's earlier answer has been changed"


class Level(StrEnum):
    """Something that is equal to a text, and written in another way."""

    HIGH = "high"


@pytest.mark.parametrize(
    ("old", "new"),
    [("high", Level.HIGH), ({1}, frozenset({1})), (0.0, -0.0), (1, 1.0), (b"x", "x"), (2**70, 2.0**70)],
    ids=repr,
)
def test_what_is_equal_and_of_another_type_is_another(old: Any, new: Any) -> None:
    message = AIMessage("x" * 100, additional_kwargs={"a": {"b": [old]}})
    was = Snapshot(message)
    assert is_still(message, was)
    message.additional_kwargs["a"]["b"][0] = new
    assert not is_still(message, was)


def test_a_copy_of_what_json_knows_is_one_all_the_way_down() -> None:
    message = answer(1)
    was = Snapshot(message)
    for each in (was.rebuilt(), was.rebuilt()):
        assert each == message
        assert type(each.response_metadata["usage"]["out"][2]) is bool
        each.response_metadata["usage"]["out"].clear()
        each.additional_kwargs["a"] = each.invalid_tool_calls.append(1)
    assert is_still(message, was)
    assert was.rebuilt() == message
