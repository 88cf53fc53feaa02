"""Any state is restored from its skeleton and pieces, and objects that are saved again are recognized."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from holdfast.adapters.langgraph import StrictSerializer
from holdfast.adapters.langgraph.checkpoint_state import dump_checkpoint, load_checkpoint
from holdfast.adapters.langgraph.codec import Decoder, Encoder, dump_value, load_value
from holdfast.adapters.langgraph.fingerprint import Fingerprint
from holdfast.adapters.langgraph.object_cache import CachedThread, ObjectCache, SerializedObject
from holdfast.errors import Corrupt
from tests.errors import raises

SERDE = StrictSerializer()
SMALL = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8) | st.binary(max_size=5)
LARGE = st.integers(0, 5).map(lambda n: f"{n} is a long text " * 9)
MESSAGES = st.builds(HumanMessage, LARGE, id=st.text("abc", max_size=2)) | st.builds(AIMessage, LARGE)
LEAVES = SMALL | LARGE | MESSAGES
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=4)
        | st.builds(_DeltaSnapshot, inner)
    ),
    max_leaves=25,
)
VERSIONS = st.dictionaries(
    st.sampled_from("abcdef"), st.integers(1, 300) | st.floats(0, 1) | st.text("01.", min_size=1)
)


@given(VALUES)
def test_a_value_is_restored(value: Any) -> None:
    encoder = Encoder(SERDE, None)
    state = dump_value(value, encoder)
    pieces = [piece for piece in encoder.pieces if isinstance(piece, bytes)]
    assert len(pieces) == len(encoder.pieces)
    back = load_value(state, pieces, SERDE)
    assert back == value
    assert SERDE.dumps_typed(back) == SERDE.dumps_typed(value)


@given(
    values=st.dictionaries(st.sampled_from("abcdxyz"), VALUES, max_size=4),
    versions=VERSIONS,
    seen=st.dictionaries(st.text(max_size=4), VERSIONS, max_size=3),
    updated=st.none() | st.lists(st.sampled_from("abcxyz")),
    ts=st.sampled_from(
        ["2026-01-01T00:00:00.123456+00:00", "2026-01-01T00:00:00+00:00", "2026-01-01T02:00:00+02:00", "?"]
    ),
    id=st.sampled_from(["i", str(uuid6(clock_seq=1)), str(uuid4()), "ffffffff-ffff-6fff-ffff-ffffffffffff"]),
    extra=st.booleans(),
)
def test_a_checkpoint_is_restored(
    values: dict[str, Any], versions: Any, seen: Any, updated: Any, ts: str, id: str, extra: bool
) -> None:
    checkpoint: dict[str, Any] = {
        "v": 4, "id": id, "ts": ts, "channel_values": values, "channel_versions": versions, "versions_seen": seen,
    }  # fmt: skip
    checkpoint |= {"pending_sends": [1]} if extra else {"updated_channels": updated}
    encoder = Encoder(SERDE, None)
    state = dump_checkpoint(checkpoint, encoder)
    decoder = Decoder(SERDE, encoder.pieces, range(len(encoder.pieces)))  # type: ignore[arg-type]
    assert load_checkpoint(id, state, decoder) == checkpoint


def test_versions_and_the_timestamp_take_one_or_two_bytes_in_a_thread_of_any_length() -> None:
    versions = {name: 1_000_000 - at for at, name in enumerate("abcdef")}
    checkpoint: dict[str, Any] = {
        "v": 4, "id": str(uuid6(clock_seq=1)), "ts": datetime.now(UTC).isoformat(), "channel_values": {},
        "channel_versions": versions, "versions_seen": {"n": versions}, "updated_channels": [],
    }  # fmt: skip
    encoder = Encoder(SERDE, None)
    assert len(dump_checkpoint(checkpoint, encoder)) < 30


def test_many_small_elements_share_pieces() -> None:
    encoder = Encoder(SERDE, None)
    values = list(range(1_000))
    state = dump_value(values, encoder)
    assert len(encoder.pieces) == 15
    assert load_value(state, encoder.pieces, SERDE) == values  # type: ignore[arg-type]
    longer = Encoder(SERDE, None)
    dump_value([*values, *range(30)], longer)
    assert longer.pieces[:15] == encoder.pieces, "the earlier elements are the same pieces"


def test_a_large_dictionary_is_split_into_pieces() -> None:
    files = {f"src/module_{n}.py": f"print({n})\n" * 40 for n in range(100)}
    encoder = Encoder(SERDE, None)
    state = dump_value({"files": files}, encoder)
    assert len(state) < 10
    assert len(encoder.pieces) == 101
    assert load_value(state, encoder.pieces, SERDE) == {"files": files}  # type: ignore[arg-type]
    changed = Encoder(SERDE, None)
    dump_value({"files": {**files, "src/module_7.py": "new\n" * 40}}, changed)
    assert len(set(changed.pieces) - set(encoder.pieces)) == 1


def cached(value: Any, place: int = 1) -> CachedThread:
    thread = ObjectCache().under("t", "stamp")
    thread.learn(SerializedObject(value, Fingerprint(value)), place)
    return thread


def place_of(thread: CachedThread, value: Any) -> int | None:
    return thread.places_of([value])[0]


def test_an_object_is_recognized_until_it_is_changed() -> None:
    message = HumanMessage("x" * 100, id="1", additional_kwargs={"a": {"b": [1]}})
    thread = cached(message)
    assert place_of(thread, message) == 1
    assert Encoder(SERDE, thread).node([message]) == [3, [1]]
    assert place_of(thread, HumanMessage("x" * 100, id="1", additional_kwargs={"a": {"b": [1]}})) is None
    message.additional_kwargs["a"]["b"].append(2)
    assert place_of(thread, message) is None
    message.additional_kwargs["a"]["b"].pop()
    assert place_of(thread, message) == 1
    message.content = "y"
    assert place_of(thread, message) is None


def test_a_rebuilt_object_shares_no_part_with_the_cache() -> None:
    message = AIMessage(
        "x" * 100, additional_kwargs={"a": {"b": [1]}}, tool_calls=[{"name": "f", "args": {}, "id": "1"}]
    )
    thread = cached(message)
    one, other = thread.rebuild([1])[0], thread.rebuild([1])[0]
    assert one == other == message
    one.additional_kwargs["a"]["b"].append(2)
    one.tool_calls.clear()
    assert other == message == thread.rebuild([1])[0]
    assert [place_of(thread, value) for value in (one, other, message)] == [None, 1, 1]


def many(count: int = 3) -> CachedThread:
    thread = ObjectCache().under("t", "stamp")
    for place in range(count):
        message = AIMessage(f"{place} " * 50, id=str(place))
        thread.learn(SerializedObject(message, Fingerprint(message)), place)
    return thread


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_an_object_that_is_still_referenced_is_not_returned_again(kept: int) -> None:
    thread = many()
    mine = thread.rebuild([0, 1, 2])[kept]
    theirs = thread.rebuild([0, 1, 2])
    assert theirs[kept] is not mine
    mine.content = "mine"
    assert theirs[kept].content != "mine"
    assert thread.places_of([*theirs, mine]) == [0, 1, 2, None]


@pytest.mark.parametrize("part", ["additional_kwargs", "response_metadata", "tool_calls", "invalid_tool_calls"])
def test_an_object_with_a_referenced_part_is_not_returned_again(part: str) -> None:
    thread = many()
    mine = getattr(thread.rebuild([0, 1, 2])[1], part)
    theirs = thread.rebuild([0, 1, 2])
    _change(mine)
    assert not getattr(theirs[1], part)
    assert thread.rebuild([1])[0] == theirs[1]


def _change(part: Any) -> None:
    if isinstance(part, dict):
        part["changed"] = True
    else:
        part.append("changed")


@pytest.mark.parametrize(
    "change",
    [
        lambda message: setattr(message, "content", "changed"),
        lambda message: message.tool_calls.append({"name": "f", "args": {}, "id": "1"}),
        lambda message: message.additional_kwargs.update(changed=True),
        lambda message: setattr(message, "name", message.name),
        lambda message: setattr(message, "unheard_of", 1),
    ],
    ids=["field", "list", "dictionary", "which fields are set", "a field of its own"],
)
def test_a_changed_and_released_object_is_rebuilt_with_its_original_content(change: Any) -> None:
    thread = many()
    whole = [message.model_dump() for message in thread.rebuild([0, 1, 2])]
    fields = set(thread.rebuild([1])[0].model_fields_set)
    change(thread.rebuild([0, 1, 2])[1])
    again = thread.rebuild([0, 1, 2])
    assert [message.model_dump() for message in again] == whole
    assert again[1].model_fields_set == fields
    assert again[1].model_extra == again[0].model_extra


def test_a_place_read_twice_gives_two_objects() -> None:
    one, other = many().rebuild([1, 1])
    assert one is not other
    assert one == other


def test_readers_in_many_threads_never_share_an_object() -> None:
    thread = many(50)
    shared: list[int] = []

    def read(number: int) -> None:
        for turn in range(20):
            for message in thread.rebuild(range(50)):
                if message.name is not None:
                    shared.append(number)
                message.name = f"{number} {turn}"

    workers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)
    assert shared == []


def test_objects_of_earlier_reads_are_released() -> None:
    thread = cached(HumanMessage("x"))
    first = thread.rebuild([1])[0]
    thread.begin_read()
    assert place_of(thread, first) == 1
    thread.begin_read()
    assert place_of(thread, first) is None


def test_an_object_changed_during_serialization_is_not_cached() -> None:
    """With durability "async", a step is saved while the next one runs, which may set the id of a message."""
    message = HumanMessage("x" * 100)

    class Slow(StrictSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            written = super().dumps_typed(obj)
            message.id = "given meanwhile"
            return written

    encoder = Encoder(Slow(), None)
    encoder.node([message])
    assert encoder.serialized == []
    assert len(encoder.pieces) == 1


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_piece_is_detected(missing: int) -> None:
    encoder = Encoder(SERDE, None)
    state = dump_value(["x" * 100, "y" * 100], encoder)
    with raises(Corrupt):
        load_value(state, encoder.pieces[:missing], SERDE)  # type: ignore[arg-type]
