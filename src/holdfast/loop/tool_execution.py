"""How a model is asked and a tool is called: what all ways of driving a loop share."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.errors import InvalidInput

from .tools import Answer, Call, Tool, answer_of, failure_of, no_such_tool, timed_out

T = TypeVar("T")


def make_call(tools: dict[str, Tool], call: Call) -> Answer:
    """Make one call and wait for it. Never raises what the tool raised: that is an answer too."""
    tool = tools.get(call.name)
    if tool is None:
        return no_such_tool(call.name, tools)
    if tool.timeout_s is None:
        return _answer(tool, call)
    try:
        return in_thread(lambda: _answer(tool, call)).result(tool.timeout_s)
    except TimeoutError:
        return timed_out(tool)


def _answer(tool: Tool, call: Call) -> Answer:
    try:
        return answer_of(finished(tool.make(call)))
    except Exception as error:
        return failure_of(error)


async def make_call_async(tools: dict[str, Tool], call: Call) -> Answer:
    """The same without blocking: an asynchronous tool in this event loop, another in a thread."""
    tool = tools.get(call.name)
    if tool is None:
        return no_such_tool(call.name, tools)
    answer = _answer_async(tool, call) if tool.is_async else asyncio.wrap_future(in_thread(lambda: _answer(tool, call)))
    try:
        return await asyncio.wait_for(answer, tool.timeout_s)
    except TimeoutError:
        return timed_out(tool)


async def _answer_async(tool: Tool, call: Call) -> Answer:
    try:
        return answer_of(await tool.make(call))
    except Exception as error:
        return failure_of(error)


def finished(value: Any) -> Any:
    """A value, or what an awaitable comes to.

    Raises:
        InvalidInput: this thread has an event loop already.
    """
    if not inspect.isawaitable(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaited(value))
    if inspect.iscoroutine(value):
        value.close()
    raise InvalidInput("this loop is driven inside an event loop: await adrive(...) instead")


async def _awaited(value: Any) -> Any:
    return await value


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Do something in a thread of its own, as whoever acts here.

    Nobody waits for such a thread when the process ends: what it does may take for ever, and is not written down anyway once
    the run was given up.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = context.run(work)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="holdfast-loop", daemon=True).start()
    return future
