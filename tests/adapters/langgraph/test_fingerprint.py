"""Objects that a graph saves again are recognized unless they were changed in place; readers never share an object."""

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
from holdfast.adapters.langgraph.object_cache import RECOGNISED_READS, CachedThread, ObjectCache, SerializedObject
from tests.adapters.langgraph.graphs import chat_graph, say, text, thread
from tests.adapters.langgraph.test_object_cache import elsewhere, put, value_of

COUNT = 12


def answer(number: int) -> AIMessage:
    """Return an answer as from a model, with content in its dictionaries and lists."""
    return AIMessage(
        f"{number} " * 50,
        id=str(number),
        response_metadata={"model": "m", "usage": {"in": number, "out": [1, 2.5, True, None]}},
        usage_metadata={"input_tokens": number, "output_tokens": 2, "total_tokens": number + 2},
        tool_calls=[{"name": "f", "args": {"a": {"b": [number]}}, "id": f"c{number}"}],
    )


def cached_thread(count: int = COUNT) -> CachedThread:
    """Return a thread with questions and answers at the places from 1 on."""
    cached = ObjectCache().under("t", "stamp")
    for number in range(1, count + 1):
        message = answer(number) if number % 2 else HumanMessage(f"{number} " * 50, id=str(number))
        cached.learn(SerializedObject(message, Fingerprint(message)), number)
    return cached


def all_places(count: int = COUNT) -> list[int]:
    return list(range(1, count + 1))


def known(found: CachedThread, values: list[Any]) -> list[int | None]:
    """Return the places of the elements of a list when it is saved; ``None`` for one that would be serialized."""
    pieces = Encoder(StrictSerializer(), found)
    pieces.node(values)
    noted = _noted(pieces.pieces)
    return list(
        chain.from_iterable(range(piece[0], piece[1] + 1) if isinstance(piece, tuple) else [piece] for piece in noted)
    )


def _noted(pieces: Any) -> list[Any]:
    return [None if isinstance(piece, bytes) else piece for piece in pieces]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "content": lambda message: setattr(message, "content", "another"),
    "content as blocks": lambda message: setattr(message, "content", [{"type": "text", "text": "x" * 100}]),
    "deep in a dictionary": lambda message: message.response_metadata["usage"]["out"].append(3),
    "one deep inside to its equal": lambda message: message.response_metadata["usage"]["out"].__setitem__(0, True),
    "an argument of a call": lambda message: message.tool_calls[0]["args"]["a"]["b"].clear(),
    "a call more": lambda message: message.tool_calls.append({"name": "g", "args": {}, "id": "9", "type": "tool_call"}),
    "an empty dictionary filled": lambda message: message.additional_kwargs.update(a=1),
    "an empty list filled": lambda message: message.invalid_tool_calls.append(
        {"error": "x", "type": "invalid_tool_call"}
    ),
    "a field of its own": lambda message: setattr(message, "unheard_of", 1),
    "usage": lambda message: message.usage_metadata.update(output_tokens=3),
    "no usage": lambda message: setattr(message, "usage_metadata", None),
}


@pytest.mark.parametrize("at", [0, 4, COUNT - 2])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_only_objects_changed_in_place_are_detected_as_changed(change: Callable[[Any], Any], at: int) -> None:
    cached = cached_thread()
    values = cached.rebuild(all_places())
    assert known(cached, values) == all_places()
    change(values[at])
    assert known(cached, values) == [None if place == at + 1 else place for place in all_places()]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_object_changed_in_place_is_stored(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    saver = HoldfastSaver(str(tmp_path / "a.db"))
    first = put(saver, [answer(number) for number in range(6)])
    values = value_of(saver)
    before = put(saver, values, parent=first)
    change(values[3])
    expected = [message.model_dump() for message in values]
    put(saver, values, parent=before)
    for reader in (saver, elsewhere(saver)):
        assert [message.model_dump() for message in value_of(reader)] == expected


def test_the_elements_of_any_list_are_recognized() -> None:
    cached = cached_thread()
    values = cached.rebuild(all_places())
    assert known(cached, values[5:]) == all_places()[5:], "without the oldest elements"
    assert known(cached, [*values[:3], *values[7:]]) == [*all_places()[:3], *all_places()[7:]]
    assert known(cached, values[::-1]) == all_places()[::-1]
    assert known(cached, [values[2], values[2], values[3]]) == [3, 3, 4]
    another = HumanMessage("new " * 50)
    assert known(cached, [*values[:6], another, *values[6:]]) == [*all_places()[:6], None, *all_places()[6:]]


def test_consecutive_places_are_saved_as_ranges() -> None:
    cached = ObjectCache().under("t", "stamp")
    messages = [HumanMessage(f"{number} " * 50) for number in range(6)]
    for message, place in zip(messages, [4, 5, 6, 9, 2, 3], strict=True):
        cached.learn(SerializedObject(message, Fingerprint(message)), place)
    encoder = Encoder(StrictSerializer(), cached)
    encoder.node(messages)
    assert encoder.pieces == [(4, 6), (9, 9), (2, 3)]


def test_a_growing_list_is_recognized_at_every_step() -> None:
    """Steps of an agent without a read in between."""
    cached = ObjectCache().under("t", "stamp")
    values: list[Any] = []
    for place in range(1, 40):
        values.append(answer(place))
        cached.learn(SerializedObject(values[-1], Fingerprint(values[-1])), place)  # as after a write of a task
        assert known(cached, values) == list(range(1, place + 1))


def parts(value: Any) -> list[Any]:
    """Return an object and all its mutable parts."""
    inside = value.__dict__ if hasattr(value, "__dict__") else value
    values = inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list) else ()
    return [value, *chain.from_iterable(parts(part) for part in values if isinstance(part, (dict, list)))]


def test_readers_never_share_an_object() -> None:
    cached = cached_thread()
    readers = [cached.rebuild(all_places()) for _ in range(3)]
    assert readers[0] == readers[1] == readers[2]
    everything = [id(part) for values in readers for value in values for part in parts(value)]
    assert len(everything) == len(set(everything)) > 3 * COUNT


def test_only_objects_of_the_last_reads_are_kept_and_recognized() -> None:
    cached = cached_thread()
    reads = []
    for _ in range(RECOGNISED_READS + 2):
        cached.begin_read()
        reads.append(cached.rebuild(all_places()))
    for values in reads[-RECOGNISED_READS:]:
        assert cached.places_of(values) == all_places()
    for values in reads[:-RECOGNISED_READS]:
        assert cached.places_of(values) == [None] * COUNT
    assert sum(map(len, cached._reads)) == RECOGNISED_READS * COUNT


def test_an_object_changed_before_its_fingerprint_was_taken_is_detected(tmp_path: Path) -> None:
    """The fingerprints of decoded objects are taken when they are first saved."""
    first = put(HoldfastSaver(str(tmp_path / "a.db")), [answer(number) for number in range(6)])
    reader = HoldfastSaver(str(tmp_path / "a.db"))
    values = value_of(reader)
    values[2].response_metadata["usage"]["out"].append("changed")
    values[4].content = "changed"
    put(reader, [*values, HumanMessage("new " * 50)], parent=first)
    for saver in (reader, elsewhere(reader)):
        restored = value_of(saver)
        assert restored[2].response_metadata["usage"]["out"][-1] == "changed"
        assert restored[4].content == "changed"
        assert [message.id for message in restored[:6]] == [str(number) for number in range(6)]


def test_a_change_by_one_reader_is_invisible_to_others(tmp_path: Path) -> None:
    put(HoldfastSaver(str(tmp_path / "a.db")), [answer(number) for number in range(6)])
    reader = HoldfastSaver(str(tmp_path / "a.db"))
    whole = [message.model_dump() for message in value_of(reader)]
    for _ in range(4):
        values = value_of(reader)
        assert [message.model_dump() for message in values] == whole
        for change in CHANGES.values():
            change(values[3])


def test_two_alternating_savers_see_each_others_checkpoints(tmp_path: Path) -> None:
    savers = [HoldfastSaver(str(tmp_path / "a.db")) for _ in range(2)]
    kept = []
    for turn in range(1, 9):
        result = chat_graph(savers[turn % 2]).invoke(say(turn), thread(), durability="sync")
        kept.append(result["messages"])
        expected = [text(number) for number in range(1, 2 * turn + 1)]
        assert [message.content for message in result["messages"]] == expected
        assert [
            message.content for message in chat_graph(savers[turn % 2 - 1]).get_state(thread()).values["messages"]
        ] == expected
    assert [len(contents) for contents in kept] == list(range(2, 18, 2)), "earlier results are unchanged"


class Level(StrEnum):
    """A value that equals a string but is serialized differently."""

    HIGH = "high"


@pytest.mark.parametrize(
    ("old", "new"),
    [("high", Level.HIGH), ({1}, frozenset({1})), (0.0, -0.0), (1, 1.0), (b"x", "x"), (2**70, 2.0**70)],
    ids=repr,
)
def test_an_equal_value_of_another_type_counts_as_changed(old: Any, new: Any) -> None:
    message = AIMessage("x" * 100, additional_kwargs={"a": {"b": [old]}})
    was = Fingerprint(message)
    assert is_unchanged(message, was)
    message.additional_kwargs["a"]["b"][0] = new
    assert not is_unchanged(message, was)


def test_a_copy_of_a_json_value_is_deep() -> None:
    message = answer(1)
    was = Fingerprint(message)
    for copy in (was.rebuild(), was.rebuild()):
        assert copy == message
        assert type(copy.response_metadata["usage"]["out"][2]) is bool
        copy.response_metadata["usage"]["out"].clear()
        copy.additional_kwargs["a"] = copy.invalid_tool_calls.append(1)
    assert is_unchanged(message, was)
    assert was.rebuild() == message
