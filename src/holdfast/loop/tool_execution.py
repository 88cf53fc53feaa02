"""Calls tools and resolves their results; shared by both executors."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.errors import InvalidInput

from .tools import Call, CallAnswer, Tool, answer_of, failure_of, timed_out, unknown_tool

T = TypeVar("T")


def make_call(tools: dict[str, Tool], call: Call) -> CallAnswer:
    """Make one call and wait for it. An error of the tool is returned as an answer, never raised."""
    tool = tools.get(call.name)
    if tool is None:
        return unknown_tool(call.name, tools)
    if tool.timeout_s is None:
        return _answer(tool, call)
    try:
        return run_in_thread(lambda: _answer(tool, call)).result(tool.timeout_s)
    except TimeoutError:
        return timed_out(tool)


def _answer(tool: Tool, call: Call) -> CallAnswer:
    try:
        return answer_of(resolve(tool.make(call)))
    except Exception as error:
        return failure_of(error)


async def make_call_async(tools: dict[str, Tool], call: Call) -> CallAnswer:
    """Make one call without blocking: an asynchronous tool in this event loop, a synchronous one in a thread."""
    tool = tools.get(call.name)
    if tool is None:
        return unknown_tool(call.name, tools)
    answer = (
        _answer_async(tool, call) if tool.is_async else asyncio.wrap_future(run_in_thread(lambda: _answer(tool, call)))
    )
    try:
        return await asyncio.wait_for(answer, tool.timeout_s)
    except TimeoutError:
        return timed_out(tool)


async def _answer_async(tool: Tool, call: Call) -> CallAnswer:
    try:
        return answer_of(await tool.make(call))
    except Exception as error:
        return failure_of(error)


def resolve(value: Any) -> Any:
    """Return a value, or the result of an awaitable.

    Raises:
        InvalidInput: an event loop is already running in this thread.
    """
    if not inspect.isawaitable(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_await(value))
    if inspect.iscoroutine(value):
        value.close()
    raise InvalidInput("drive(...) was called inside an event loop: use `await adrive(...)` instead")


async def _await(value: Any) -> Any:
    return await value


def run_in_thread(work: Callable[[], T]) -> Future[T]:
    """Run a function in its own thread, with the caller's context variables.

    The thread is a daemon, so the process does not wait for it when it ends: the function may never return, and its result is not
    stored once the run was given up.
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
