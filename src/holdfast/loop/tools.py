"""Tools: functions that the model may call.

::

    @tool(safety="idempotent")
    def weather(city: str) -> str:
        "The weather in a city."

``safety`` decides about a call that was begun when its process died: ``idempotent`` is made again, ``at_most_once`` never (the
model is told that the outcome is unknown), ``ask`` waits for a person. The default is ``at_most_once``, the safest of the three.
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
"""Maximum characters of an error that are stored and sent to the model."""


class Call(Struct, frozen=True):
    """The call that is being made. It is passed to a tool's parameter of this type.

    ``key`` is the same for every attempt and unique to the call: pass it to services that take an idempotency key. ``tenant`` is
    the handle that the run is driven with. ``is_lost`` returns whether another process has taken the run over, or it was
    cancelled: then no result of this call will be stored, and a long call may as well stop.
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
    """Raised by a tool that has done nothing yet and must be called again later."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"call me again in {seconds} seconds")
        self.seconds = float(seconds)


class ToolError(Exception):
    """Raised by a tool that failed; its message is sent to the model unchanged."""


class Later(Struct, frozen=True):
    """Returned by a tool: its result, and the seconds that the run should pause before it continues."""

    result: Any
    pause_s: float


class ChildRun(Struct, frozen=True):
    """Returned by a tool: let an agent answer the call, in a child run, whose last text becomes the result.

    Without a ``session_id`` it gets a session of its own, with the ``task`` as its first message.
    """

    agent: str
    task: Any
    session_id: str | None = None
    metadata: Mapping[str, Any] | None = None


class Completed(Struct, frozen=True):
    """A call returned a result."""

    result: Any
    pause_s: float | None = None


class Failed(Struct, frozen=True):
    """A call failed with an error, which is sent to the model."""

    error: str


class TimedOut(Struct, frozen=True):
    """A call did not return in time. Its outcome is unknown."""

    error: str


class Snoozed(Struct, frozen=True):
    """A call must be made again later."""

    seconds: float


class Delegated(Struct, frozen=True):
    """A call is answered by a child run."""

    child: ChildRun


CallAnswer = Completed | Failed | TimedOut | Snoozed | Delegated


class Tool:
    """A function and its description for the model and the ledger. Calling it calls the function."""

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
            raise InvalidInput(f"a tool must be a function, not {function!r}", field="function")
        if safety not in get_args(Safety):
            raise InvalidInput(f"safety must be one of {', '.join(get_args(Safety))}, not {safety!r}", field="safety")
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s > 0):
            raise InvalidInput(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}", field="timeout_s")
        self.function = function
        self.name = name or str(getattr(function, "__name__", "tool"))
        self.description = inspect.cleandoc(description or getattr(function, "__doc__", None) or "")
        self.safety: Safety = safety
        self.parallel, self.hold, self.timeout_s = parallel, hold, timeout_s
        self.is_async = inspect.iscoroutinefunction(function)
        self._call_name, self._arguments = _arguments(function, self.name, schema)
        self.schema: dict[str, Any] = _schema(self._arguments) if schema is None else dict(schema)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **named)

    def definition(self) -> dict[str, Any]:
        """Return the definition for the model: name, description and the JSON schema of the input."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema}

    def make(self, call: Call) -> Any:
        """Call the function with the input of the call; for an asynchronous function, return its awaitable.

        Raises:
            ToolError: the input does not fit the parameters.
        """
        arguments = {} if call.input is None else call.input
        if not isinstance(arguments, dict):
            raise ToolError(f"the input of {self.name} must be an object, not {type(arguments).__name__}")
        if self._arguments is not None:
            try:
                converted = msgspec.convert(arguments, self._arguments)
            except msgspec.ValidationError as error:
                raise ToolError(f"the input of {self.name} does not fit: {error}") from None
            arguments = {field: getattr(converted, field) for field in self._arguments.__struct_fields__}
        return self.function(**arguments, **({self._call_name: call} if self._call_name else {}))


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

    The schema of the input is derived from the annotations, and the input is validated before the call; with your own
    ``schema`` the input is passed unchanged. ``parallel=False``: the call never runs beside others of the same reply.
    ``hold=True``: every call waits until a person allows it. After ``timeout_s`` the loop stops waiting: the outcome of the
    call is unknown, and the model is told so.

    Raises:
        InvalidInput: ``safety`` or ``timeout_s`` is invalid, or the annotations cannot be expressed as JSON schema.
    """
    return Tool(function, **options) if function is not None else lambda function: Tool(function, **options)


def subagent(agent: str, *, name: str | None = None, description: str = "", hold: bool = False) -> Tool:
    """Return a tool that delegates a task to another agent, in a child run, whose last text becomes the result."""

    def delegate(task: str) -> ChildRun:
        return ChildRun(agent, task)

    text = description or f"Hand a task to the agent {agent} and wait for its answer."
    return Tool(delegate, name=name or agent, description=text, safety="idempotent", hold=hold)


def answer_of(value: Any) -> CallAnswer:
    """Return the answer for a function's return value. A result that is not JSON is a failure."""
    if isinstance(value, ChildRun):
        return Delegated(value)
    result, pause_s = (value.result, float(value.pause_s)) if isinstance(value, Later) else (value, None)
    try:
        plain = msgspec.to_builtins(result)
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return Failed(f"the tool returned a value that is not JSON: {error}")
    return Completed(plain, pause_s)


def failure_of(error: Exception) -> CallAnswer:
    """Return the answer for an error that a function raised."""
    if isinstance(error, Snooze):
        return Snoozed(error.seconds)
    return Failed(truncate_error(str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"))


def truncate_error(error: str) -> str:
    """Return an error's text, cut to ``ERROR_CHARS``: some errors contain a whole page."""
    return error if len(error) <= ERROR_CHARS else f"{error[:ERROR_CHARS]} ... ({len(error):,} characters)"


def parallel_batches(calls: Sequence[tuple[Tool | None, Call]]) -> Iterator[list[tuple[Tool | None, Call]]]:
    """Group the calls, in their order, into batches whose calls may run in parallel."""
    batch: list[tuple[Tool | None, Call]] = []
    for tool, call in calls:
        is_exclusive = tool is not None and not tool.parallel
        if batch and (is_exclusive or (batch[0][0] is not None and not batch[0][0].parallel)):
            yield batch
            batch = []
        batch.append((tool, call))
    if batch:
        yield batch


def timed_out(tool: Tool) -> TimedOut:
    """Return the answer for a call that exceeded the tool's timeout."""
    return TimedOut(f"no answer within {tool.timeout_s:g} s: it is unknown whether the call happened")


def unknown_tool(name: str, tools: Mapping[str, Tool]) -> Failed:
    """Return the answer for a call of a tool that the loop does not have."""
    return Failed(f"tool {name!r} does not exist; the tools are: {', '.join(sorted(tools)) or 'none'}")


def _arguments(
    function: Callable[..., Any], name: str, schema: Mapping[str, Any] | None
) -> tuple[str | None, type[Struct] | None]:
    """Return the name of the parameter for the ``Call``, and a type of the others, or ``None`` if they are not validated."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        if schema is None:
            message = f"tool {name}: an annotation cannot be resolved ({error}): pass schema="
            raise InvalidInput(message, field="schema") from None
        annotations = getattr(function, "__annotations__", {})
        hints = {name: Call if annotation == Call.__name__ else Any for name, annotation in annotations.items()}
    call_name, is_open = None, schema is not None
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if hint is Call:
            call_name = parameter.name
        elif parameter.kind is parameter.VAR_KEYWORD:
            is_open = True
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidInput(
                f"tool {name}: parameter {parameter.name} cannot be passed by name", field=parameter.name
            )
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, parameter.default))
    if is_open:
        return call_name, None
    return call_name, _struct(name, fields)


def _struct(name: str, fields: list[Any]) -> type[Struct]:
    try:
        struct = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.schema(struct)
    except (TypeError, ValueError) as error:
        message = f"tool {name}: no JSON schema can be derived from its annotations ({error}): pass schema="
        raise InvalidInput(message, field="schema") from None
    return struct


def _schema(arguments: type[Struct] | None) -> dict[str, Any]:
    if arguments is None:
        return {"type": "object"}
    schema = msgspec.json.schema(arguments)
    definitions = schema.pop("$defs", {})
    own = definitions.pop(schema["$ref"].rpartition("/")[2])
    own.pop("title", None)
    return {**own, "$defs": definitions} if definitions else dict(own)
