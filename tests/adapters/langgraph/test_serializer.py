"""Deserialization creates only allowed types, regardless of the environment."""

from __future__ import annotations

import dataclasses
import ipaddress
import operator
import pathlib
import re
import subprocess
import sys
from collections import deque
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack
import pytest
from langchain_core.agents import AgentAction, AgentFinish, AgentStep
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send
from pydantic import BaseModel
from typing_extensions import TypedDict

from holdfast.adapters.langgraph import HoldfastSaver, StrictSerializer
from holdfast.errors import Corrupt, InvalidInput
from tests.adapters.langgraph.graphs import Trace, asking, one_node, run, thread
from tests.errors import raises

KINDS = (0, 1, 2, 3, 4, 5)
"""The msgpack extension codes of objects."""


class Colour(Enum):
    RED = "red"


class Point(BaseModel):
    x: int


@dataclasses.dataclass
class Pair:
    one: Any
    two: Any


FINE: list[Any] = [
    None, True, 7, -1.5, "text", b"bytes", bytearray(b"x"), [1, [2]], {"a": {1: "b"}}, {1, 2}, frozenset({3}), deque([1]),
    datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1), time(1, 2, 3), timedelta(days=1), UUID(int=7), Decimal("1.50"),
    ipaddress.ip_address("::1"), pathlib.Path("a/b"), re.compile("a+", re.I), ZoneInfo("UTC"),
    HumanMessage("hi", id="1", name="ada", more=[1]), SystemMessage("be kind"), RemoveMessage(id="x"),
    AIMessage([{"type": "text", "text": "x"}], tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c"}],
              usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    ToolMessage("r", tool_call_id="c", artifact={"a": [1]}), Document("page", metadata={"n": 1}),
    AgentAction("tool", {"a": 1}, "log"), AgentFinish({"output": 1}, "log"),
    AgentStep(action=AgentAction("tool", "x", "log"), observation=[1]), Send("node", {"a": 1}), Interrupt(value={"q": 1}, id="i"),
]  # fmt: skip


@pytest.mark.parametrize("value", FINE, ids=lambda value: type(value).__name__)
def test_allowed_types_are_serialized_and_deserialized(value: Any) -> None:
    serde = StrictSerializer()
    back = serde.loads_typed(serde.dumps_typed(value))
    assert back == value
    assert type(back) is type(value)
    assert serde.dumps_typed(back) == serde.dumps_typed(value)


@pytest.mark.parametrize("value", FINE, ids=lambda value: type(value).__name__)
def test_the_bytes_equal_those_of_langgraphs_own_serializer(value: Any) -> None:
    assert StrictSerializer().dumps_typed(value) == JsonPlusSerializer().dumps_typed(value)


@pytest.mark.parametrize("value", [Colour.RED, Point(x=1), Pair(1, 2)], ids=lambda value: type(value).__name__)
def test_a_type_that_is_not_allowed_is_refused_by_name_when_it_is_saved(value: Any) -> None:
    name = type(value).__name__
    with raises(InvalidInput, field="allow") as caught:
        StrictSerializer().dumps_typed({"deep": [value]})
    assert f"allow=[{name}]" in str(caught.value)
    allowing = StrictSerializer([type(value)])
    assert allowing.loads_typed(allowing.dumps_typed({"deep": [value]})) == {"deep": [value]}
    by_name = StrictSerializer().with_msgpack_allowlist([(type(value).__module__, name)])
    assert by_name.loads_typed(allowing.dumps_typed(value)) == value
    with raises(InvalidInput, field="allow") as caught:
        StrictSerializer().loads_typed(JsonPlusSerializer().dumps_typed([value]))
    assert name in str(caught.value)


@pytest.mark.parametrize("code", KINDS)
@pytest.mark.parametrize("target", [("os", "system"), ("subprocess", "run"), ("builtins", "eval"), ("posix", "system")])
def test_planted_data_runs_no_code(code: int, target: tuple[str, str], tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "ran"
    content: Any = f"touch {mark}"
    content = [content] if code == 1 else {"args": content} if code in (2, 4, 5) else content
    inner = ormsgpack.packb([*target, content, "__call__"])
    planted = ormsgpack.packb({"x": [ormsgpack.Ext(code, inner)]})
    with raises(InvalidInput, field="allow"):
        StrictSerializer().loads_typed(("msgpack", planted))
    assert not mark.exists()


def test_the_module_of_a_type_that_is_not_allowed_is_not_imported() -> None:
    inner = ormsgpack.packb(["antigravity", "geohash", "x"])
    with pytest.raises(InvalidInput):
        StrictSerializer().loads_typed(("msgpack", ormsgpack.packb(ormsgpack.Ext(0, inner))))
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("kind", ["pickle", "json", "anything"])
def test_other_kinds_are_refused(kind: str) -> None:
    with raises(InvalidInput, field="kind") as caught:
        StrictSerializer().loads_typed((kind, b"\x80\x04N."))
    assert kind in str(caught.value)


def test_damaged_bytes_are_reported_as_corrupt() -> None:
    with pytest.raises(Corrupt):
        StrictSerializer().loads_typed(("msgpack", b"\xc1\xff"))


def test_no_environment_variable_disables_the_allowlist() -> None:
    code = (
        "from holdfast.adapters.langgraph import StrictSerializer\n"
        "import ormsgpack\n"
        "planted = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(['os', 'getcwdb', ''])))\n"
        "try: StrictSerializer().loads_typed(('msgpack', planted))\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    surroundings = {"LANGGRAPH_STRICT_MSGPACK": "false", "PYTHONPATH": ":".join(sys.path)}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=surroundings, check=False
    )
    assert process.stdout.strip() == "InvalidInput", process.stderr


def test_a_graph_fails_at_once_with_the_type_that_is_not_allowed(tmp_path: pathlib.Path) -> None:
    def node(state: Trace) -> dict[str, Any]:
        return {"answer": Point(x=1)}

    with HoldfastSaver(str(tmp_path / "a.db")) as saver:
        with raises(InvalidInput, field="allow") as caught:
            one_node(Trace, node, saver).invoke({"seen": []}, thread())
        assert "allow=[Point]" in str(caught.value)
    with HoldfastSaver(str(tmp_path / "a.db"), allow=[Point]) as saver:
        graph = one_node(Trace, node, saver)
        graph.invoke({"seen": []}, thread("u"))
        assert graph.get_state(thread("u")).values["answer"] == Point(x=1)


class Basket(TypedDict, total=False):
    """A state with classes in its schema."""

    point: Point
    pairs: Annotated[list[Pair], operator.add]
    colour: Colour | None
    anything: Any


def test_types_in_the_schemas_of_a_graph_are_allowed(address: str) -> None:
    state = {"point": Point(x=1), "pairs": [Pair(1, Pair(2, 3))], "colour": Colour.RED}
    with HoldfastSaver(address) as saver:
        graph = one_node(Basket, lambda state: {"pairs": [Pair(4, 5)]}, saver)
        graph.invoke(state, thread())
        with raises(InvalidInput, field="allow") as caught:
            graph.invoke({"anything": Unnamed(x=1)}, thread("other"))
        assert "allow=[Unnamed]" in str(caught.value)
        assert not list(saver.list(thread("other")))
    with HoldfastSaver(address) as saver:
        assert one_node(Basket, lambda state: {}, saver).get_state(thread()).values == {
            **state,
            "pairs": [Pair(1, Pair(2, 3)), Pair(4, 5)],
        }
        with raises(InvalidInput, field="allow"):
            saver.get_tuple(thread())
        assert type(saver.serde) is StrictSerializer, "only the clone of the graph allows them"


class Unnamed(BaseModel):
    x: int


@pytest.mark.parametrize("style", ["sync", "async"])
def test_a_local_class_is_refused_by_the_first_call_even_if_a_subgraph_is_interrupted(address: str, style: str) -> None:
    class Local(BaseModel):
        seen: Annotated[list[str], operator.add] = []
        answer: str = ""

    with HoldfastSaver(address) as saver:
        graph = asking(saver, state=Local)
        with raises(InvalidInput, field="class"):
            run(style, graph, {"seen": ["begin"]}, thread())


class Outer:
    """A class that contains a class."""

    class Inner(BaseModel):
        x: int = 1


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    x: T


def local_one() -> Any:
    class Local(BaseModel):
        x: int = 1

    return Local()


@pytest.mark.parametrize("make", [Outer.Inner, local_one, lambda: Box[int](x=1)], ids=["nested", "local", "generic"])
def test_a_class_that_cannot_be_imported_is_refused_when_it_is_saved(make: Any) -> None:
    value = make()
    with raises(InvalidInput, field="class"):
        StrictSerializer([type(value)]).dumps_typed({"deep": [value]})


def test_a_redefined_class_is_still_saved() -> None:
    serde, old = StrictSerializer([Point]), Point(x=1)
    again = type("Point", (Point,), {"__module__": __name__, "__qualname__": "Point"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "Point", again)
        assert type(serde.loads_typed(serde.dumps_typed(old))) is again
