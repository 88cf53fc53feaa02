"""Objects that a graph hands over again are recognised, unless they were changed in place; readers never share one."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from holdfast.adapters.langgraph import HoldfastSaver, StrictSerializer
from holdfast.adapters.langgraph.codec import Encoder
from holdfast.adapters.langgraph.fingerprint import Fingerprint, is_unchanged
from holdfast.adapters.langgraph.object_cache import RECOGNISED_READS, CachedThread, Learnt, ObjectCache
from tests.adapters.langgraph.graphs import chat_graph, say, text, thread
from tests.adapters.langgraph.test_object_cache import elsewhere, put, value_of

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


def told(count: int = COUNT) -> CachedThread:
    """A thread with questions and answers at the places from 1 on."""
    found = ObjectCache().under("t", "stamp")
    for number in range(1, count + 1):
        message = answer(number) if number % 2 else HumanMessage(f"{number} " * 50, id=str(number))
        found.learn(Learnt(message, Fingerprint(message)), number)
    return found


def all_places(count: int = COUNT) -> list[int]:
    return list(range(1, count + 1))


def known(found: CachedThread, values: list[Any]) -> list[int | None]:
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
    values = found.rebuild(all_places())
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
    values = found.rebuild(all_places())
    assert known(found, values[5:]) == all_places()[5:], "the oldest were left out"
    assert known(found, [*values[:3], *values[7:]]) == [*all_places()[:3], *all_places()[7:]]
    assert known(found, values[::-1]) == all_places()[::-1]
    assert known(found, [values[2], values[2], values[3]]) == [3, 3, 4]
    another = HumanMessage("new " * 50)
    assert known(found, [*values[:6], another, *values[6:]]) == [*all_places()[:6], None, *all_places()[6:]]


def test_places_that_follow_each_other_are_saved_as_ranges() -> None:
    found = ObjectCache().under("t", "stamp")
    messages = [HumanMessage(f"{number} " * 50) for number in range(6)]
    for message, place in zip(messages, [4, 5, 6, 9, 2, 3], strict=True):
        found.learn(Learnt(message, Fingerprint(message)), place)
    encoder = Encoder(StrictSerializer(), found)
    encoder.node(messages)
    assert encoder.pieces == [(4, 6), (9, 9), (2, 3)]


def test_a_list_that_grows_is_known_at_every_step() -> None:
    """A step of an agent after the other, without anybody reading meanwhile: as a list grows, it stays one."""
    found = ObjectCache().under("t", "stamp")
    values: list[Any] = []
    for place in range(1, 40):
        values.append(answer(place))
        found.learn(Learnt(values[-1], Fingerprint(values[-1])), place)  # as what a task wrote
        assert known(found, values) == list(range(1, place + 1))


def parts(value: Any) -> list[Any]:
    """An object and everything in it that can be changed."""
    inside = value.__dict__ if hasattr(value, "__dict__") else value
    values = inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list) else ()
    return [value, *chain.from_iterable(parts(each) for each in values if isinstance(each, (dict, list)))]


def test_every_reader_gets_objects_that_nobody_else_has() -> None:
    found = told()
    readers = [found.rebuild(all_places()) for _ in range(3)]
    assert readers[0] == readers[1] == readers[2]
    everything = [id(part) for values in readers for value in values for part in parts(value)]
    assert len(everything) == len(set(everything)) > 3 * COUNT


def test_objects_of_the_last_reads_are_recognised_and_no_others_are_kept() -> None:
    found = told()
    reads = []
    for _ in range(RECOGNISED_READS + 2):
        found.begin_read()
        reads.append(found.rebuild(all_places()))
    for values in reads[-RECOGNISED_READS:]:
        assert found.places_of(values) == all_places()
    for values in reads[:-RECOGNISED_READS]:
        assert found.places_of(values) == [None] * COUNT
    assert sum(map(len, found._reads)) == RECOGNISED_READS * COUNT


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
    was = Fingerprint(message)
    assert is_unchanged(message, was)
    message.additional_kwargs["a"]["b"][0] = new
    assert not is_unchanged(message, was)


def test_a_copy_of_what_json_knows_is_one_all_the_way_down() -> None:
    message = answer(1)
    was = Fingerprint(message)
    for each in (was.rebuild(), was.rebuild()):
        assert each == message
        assert type(each.response_metadata["usage"]["out"][2]) is bool
        each.response_metadata["usage"]["out"].clear()
        each.additional_kwargs["a"] = each.invalid_tool_calls.append(1)
    assert is_unchanged(message, was)
    assert was.rebuild() == message
