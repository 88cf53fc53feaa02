"""Tools: functions that the model may have called.

::

    @tool(safety="idempotent")
    def weather(city: str) -> str:
        "The weather in a city."

``safety`` says what becomes of a call that was begun and never came back, because the process died: ``idempotent`` is made again,
``at_most_once`` never (the model is told that nobody knows), ``ask`` waits for a person. Nothing is safer to assume than
``at_most_once``, so that is what a tool is that says nothing.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_type_hints, overload

import msgspec
from msgspec import Struct

from holdfast.errors import InvalidInput
from holdfast.types import Run

Safety = Literal["idempotent", "at_most_once", "ask"]
ERROR_CHARS = 4_000
"""Characters of an error that are kept and told."""


class Call(Struct, frozen=True):
    """A call that is being made. A tool that has a parameter of this type is handed it.

    ``key`` is the same however often the call is tried, and no other call has it: give it to services that take an
    idempotency key. ``tenant`` is the handle that the run is driven with. ``is_lost`` says whether somebody else drives the run
    by now, or it was cancelled: then nothing of this call will be written, and a long one may as well stop.
    """

    id: str
    name: str
    input: Any
    run: Run
    attempt: int
    tenant: Any
    is_lost: Callable[[], bool]

    @property
    def key(self) -> str:
        """The idempotency key of this call."""
        return f"{self.run.id}/{self.id}"


class Snooze(Exception):
    """Raised by a tool that has done nothing yet and wants to be called later."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"call me again in {seconds} seconds")
        self.seconds = float(seconds)


class ToolError(Exception):
    """Raised by a tool that could not do it; the model is told just these words."""


class Later(Struct, frozen=True):
    """Returned by a tool: its result, and the wish that the run sleeps for so many seconds before it goes on."""

    result: Any
    pause_s: float


class ChildRun(Struct, frozen=True):
    """Returned by a tool: have an agent do it, in a run of its own below this one, whose last words are the result.

    Without a ``session_id`` it gets a session of its own, which is told the ``task`` as its first message.
    """

    agent: str
    task: Any
    session_id: str | None = None
    metadata: Mapping[str, Any] | None = None


class Done(Struct, frozen=True):
    """A call came back with a result."""

    result: Any
    pause_s: float | None = None


class Failed(Struct, frozen=True):
    """A call came back with an error, which the model is told."""

    error: str


class Lost(Struct, frozen=True):
    """A call did not come back in time. Nobody knows whether it happened."""

    error: str


class Snoozed(Struct, frozen=True):
    """A call is to be made again, later."""

    seconds: float


class Below(Struct, frozen=True):
    """A call is to be answered by another run."""

    child: ChildRun


Answer = Done | Failed | Lost | Snoozed | Below


class Tool:
    """A function with what the model and the ledger have to know about it. Calling it calls the function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        schema: Mapping[str, Any] | None = None,
        safety: Safety = "at_most_once",
        parallel: bool = True,
        hold: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        if not callable(function):
            raise InvalidInput(f"a tool is made from a function, not from {function!r}")
        if safety not in get_args(Safety):
            raise InvalidInput(f"safety is one of {', '.join(get_args(Safety))}, not {safety!r}")
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s > 0):
            raise InvalidInput(f"timeout_s is a number of seconds over 0, not {timeout_s!r}")
        self.function = function
        self.name = name or str(getattr(function, "__name__", "tool"))
        self.description = inspect.cleandoc(description or getattr(function, "__doc__", None) or "")
        self.safety: Safety = safety
        self.parallel, self.hold, self.timeout_s = parallel, hold, timeout_s
        self.is_async = inspect.iscoroutinefunction(function)
        self._call_name, self._arguments = _arguments(function, self.name, schema)
        self.schema: dict[str, Any] = _schema(self._arguments) if schema is None else dict(schema)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The function itself."""
        return self.function(*args, **named)

    def described(self) -> dict[str, Any]:
        """It as models are told: name, description and the JSON schema of its input."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema}

    def make(self, call: Call) -> Any:
        """Call the function with what the model gave; for an asynchronous one, its awaitable.

        Raises:
            ToolError: the input does not fit.
        """
        given = {} if call.input is None else call.input
        if not isinstance(given, dict):
            raise ToolError(f"the input of {self.name} must be an object, not {type(given).__name__}")
        if self._arguments is not None:
            try:
                checked = msgspec.convert(given, self._arguments)
            except msgspec.ValidationError as error:
                raise ToolError(f"the input of {self.name} does not fit: {error}") from None
            given = {field: getattr(checked, field) for field in self._arguments.__struct_fields__}
        return self.function(**given, **({self._call_name: call} if self._call_name else {}))


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
    safety: Safety = "at_most_once",
    parallel: bool = True,
    hold: bool = False,
    timeout_s: float | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool from a function, synchronous or asynchronous; ``@tool`` or ``@tool(safety=...)``.

    What the model must give is read from the annotations, and checked before the call; with a ``schema`` of your own it is
    handed over as it comes. ``parallel=False`` has it called alone, never beside others of the same reply. ``hold=True``
    has every call wait until a person allows it. After ``timeout_s`` nobody waits for it any more: the outcome is unknown, and
    the model is told so.

    Raises:
        InvalidInput: the safety is none, or the annotations cannot be written as JSON schema.
    """
    return Tool(function, **options) if function is not None else lambda given: Tool(given, **options)


def subagent(agent: str, *, name: str | None = None, description: str = "", hold: bool = False) -> Tool:
    """A tool that hands a task to another agent: it gets a run of its own below this one, and its last words are the result."""

    def hand_over(task: str) -> ChildRun:
        return ChildRun(agent, task)

    said = description or f"Hand a task to the agent {agent} and wait for its answer."
    return Tool(hand_over, name=name or agent, description=said, safety="idempotent", hold=hold)


def answer_of(value: Any) -> Answer:
    """What a function returned, as what becomes of its call. A result that is not JSON is a failure."""
    if isinstance(value, ChildRun):
        return Below(value)
    result, pause_s = (value.result, float(value.pause_s)) if isinstance(value, Later) else (value, None)
    try:
        plain = msgspec.to_builtins(result)
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return Failed(f"the tool returned what is not JSON: {error}")
    return Done(plain, pause_s)


def failure_of(error: Exception) -> Answer:
    """What a function raised, as what becomes of its call."""
    if isinstance(error, Snooze):
        return Snoozed(error.seconds)
    return Failed(shortened(str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"))


def shortened(error: str) -> str:
    """What went wrong, in as many characters as are worth keeping: some errors bring a whole page along."""
    return error if len(error) <= ERROR_CHARS else f"{error[:ERROR_CHARS]} ... ({len(error):,} characters)"


def batches(calls: Sequence[tuple[Tool | None, Call]]) -> Iterator[list[tuple[Tool | None, Call]]]:
    """Calls in the order they were asked for, those together that may be made at once."""
    together: list[tuple[Tool | None, Call]] = []
    for each in calls:
        alone = each[0] is not None and not each[0].parallel
        if together and (alone or (together[0][0] is not None and not together[0][0].parallel)):
            yield together
            together = []
        together.append(each)
    if together:
        yield together


def timed_out(tool: Tool) -> Lost:
    """The answer to a call that took too long."""
    return Lost(f"no answer within {tool.timeout_s:g} s: it is unknown whether it happened")


def no_such_tool(name: str, tools: Mapping[str, Tool]) -> Failed:
    """The answer to a call of a tool that is not there."""
    return Failed(f"there is no tool {name!r}; there are: {', '.join(sorted(tools)) or 'none'}")


def _arguments(
    function: Callable[..., Any], name: str, schema: Mapping[str, Any] | None
) -> tuple[str | None, type[Struct] | None]:
    """The parameter that takes the ``Call``, and a type for all others; none if they are taken as they come."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        if schema is None:
            raise InvalidInput(f"tool {name}: an annotation means nothing here, give schema=: {error}") from None
        said = getattr(function, "__annotations__", {})
        hints = {each: Call if kind == Call.__name__ else Any for each, kind in said.items()}
    takes_call, fields, is_open = None, [], schema is not None
    for each in inspect.signature(function).parameters.values():
        kind = hints.get(each.name, Any)
        if kind is Call:
            takes_call = each.name
        elif each.kind is each.VAR_KEYWORD:
            is_open = True
        elif each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL):
            raise InvalidInput(f"tool {name}: its parameters are given by name, {each.name} cannot be")
        else:
            fields.append((each.name, kind) if each.default is each.empty else (each.name, kind, each.default))
    if is_open:
        return takes_call, None
    return takes_call, _struct(name, fields)


def _struct(name: str, fields: list[Any]) -> type[Struct]:
    try:
        made = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.schema(made)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"tool {name}: its input cannot be told from its annotations, give schema=: {error}"
        ) from None
    return made


def _schema(arguments: type[Struct] | None) -> dict[str, Any]:
    if arguments is None:
        return {"type": "object"}
    whole = msgspec.json.schema(arguments)
    others = whole.pop("$defs", {})
    own = others.pop(whole["$ref"].rpartition("/")[2])
    own.pop("title", None)
    return {**own, "$defs": others} if others else dict(own)
