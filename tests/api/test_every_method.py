"""Whatever a store can do can be done over HTTP, or there is a reason why not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import pytest

from holdfast import AsyncHoldfast
from holdfast.api.operations import Operation
from holdfast.api.resources import OPERATIONS
from holdfast.store_lists import store_names

_HERE = "reads or writes a directory of the machine it is called on, which is not the caller's"
_ASKED = "the server itself asks, for every key that comes"
_STARTED = "what a process is started with, and which of several leads, is no caller's business"
_GET = "GET of the same thing answers 404 where this returns None"
_SECRET = "configurations hold credentials; the operations that exist leave them out of their answers"

WHY_NOT = {
    "tenants.maintain": "the server does it by itself, in the background",
    "sessions.buffered": "keeps what is not saved yet in the memory of one process",
    "messages.last": "GET .../messages/last does it, through messages.list, which loads no more than an answer may have",
    **{f"{name}.find": _GET for name in ("agents", "blocks", "general_feedback", "tool_servers")},
    **{f"a2a_push_configs.{name}": _SECRET for name in ("create", "get", "find", "update", "delete", "count")},
    "snapshots.tree": "a whole tree is not one answer: GET .../tree gives pages, through snapshots.entries",
    "workspaces.capture": _HERE,
    "workspaces.capture_upper": _HERE,
    "workspaces.restore": _HERE,
    "workspaces.finish_rewinds": _HERE,
    "rewinds.begin": "POST .../rewind does it, through workspaces.rewind",
    "rewinds.redo": "POST .../redo does it, through workspaces.redo",
    "server_settings.set_snapshots_per_run": _STARTED,
    "server_settings.lead": _STARTED,
    "server_settings.resign": _STARTED,
    "api_keys.touch": _ASKED,
    "api_keys.verify": _ASKED,
}
"""Methods that no route calls, each with the reason."""


def stores() -> dict[str, type]:
    """The stores of a tenant's handle and of the Holdfast itself, by the names they have there."""

    async def main() -> dict[str, type]:
        async with AsyncHoldfast(":memory:") as holdfast:
            of_all = {name: getattr(holdfast, name) for name in store_names(type(holdfast))}
            tenant = holdfast.tenant("acme")
            of_one = {name: getattr(tenant, name) for name in store_names(type(tenant))}
            return {name: type(store) for name, store in {**of_all, **of_one}.items()}

    return asyncio.run(main())


def methods(store: type) -> list[str]:
    return [name for name, each in inspect.getmembers(store, inspect.isfunction) if not name.startswith("_")]


def words(code: CodeType) -> Iterator[str]:
    """Every name that a function mentions, in itself and in what is defined within it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from words(each)


def mentioned(function: Any) -> set[str]:
    """Every name that a function of a resource mentions, with those of the functions of its module that it calls."""
    found = set(words(function.__code__))
    for name in sorted(found):
        below = function.__globals__.get(name)
        if isinstance(below, FunctionType) and below.__module__ == function.__module__:
            found |= set(words(below.__code__))
    return found


def reached(operations: list[Operation], known: dict[str, type]) -> set[str]:
    """The methods that these operations call: what they were made from, or what they mention together with its store."""
    found: set[str] = set()
    for each in operations:
        made_from = getattr(each.function, "made_from", None)
        if made_from is not None:
            store, method = made_from
            found.add(f"{store}.{method.__name__}")
            continue
        said = mentioned(each.function)
        found |= {f"{name}.{one}" for name in said & set(known) for one in methods(known[name]) if one in said}
    return found


STORES = stores()
ALL = {f"{name}.{each}" for name, store in STORES.items() for each in methods(store)}
REACHED = reached(OPERATIONS, STORES)


def test_there_are_stores_and_methods_to_look_at() -> None:
    assert {"sessions", "checkpoints", "objects", "a2a_tasks", "tenants", "run_queue", "erasures"} <= set(STORES)
    assert len(STORES) >= 30
    assert len(ALL) >= 200


def test_every_method_is_reached_by_a_route_or_has_a_reason() -> None:
    assert sorted(ALL - REACHED - set(WHY_NOT)) == []


def test_the_reasons_are_about_methods_that_are_there_and_not_reached() -> None:
    assert sorted(set(WHY_NOT) - ALL) == []
    assert sorted(set(WHY_NOT) & REACHED) == []
    assert all(WHY_NOT.values())


def test_what_operations_are_made_from_is_what_the_handle_has() -> None:
    for each in OPERATIONS:
        made_from = getattr(each.function, "made_from", None)
        if made_from is not None:
            store, method = made_from
            assert getattr(STORES[store], method.__name__) is method, each.function.__name__


def test_a_method_without_a_route_is_noticed() -> None:
    without = [each for each in OPERATIONS if each.function.__name__ not in ("verify_objects", "delete_session")]
    missing = ALL - reached(without, STORES) - set(WHY_NOT)
    assert missing == {"objects.verify", "sessions.delete"}


@pytest.mark.parametrize("name", ["tenants.create", "sessions.update", "messages.append_many", "workspaces.rewind"])
def test_a_method_that_is_called_by_hand_is_found(name: str) -> None:
    by_hand = [each for each in OPERATIONS if not hasattr(each.function, "made_from")]
    assert name in reached(by_hand, STORES)
