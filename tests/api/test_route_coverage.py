"""Every store method can be called over HTTP, unless there is a reason why not."""

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
    "sessions.buffered": "keeps unsaved messages in the memory of one process",
    "messages.last": "GET .../messages/last does it, through messages.list, which loads no more than an answer may have",
    **{
        f"{name}.find": _GET
        for name in (
            "agent_overrides",
            "blocks",
            "builtin_tools",
            "context_files",
            "declared",
            "general_feedback",
            "profiles",
        )
    },
    **{f"agents.{name}": "the operations of agent-shares do it" for name in ("share", "revoke_share", "list_shares")},
    "builtin_tools.list_enabled": "GET .../builtin-tools with a filter does it",
    **{f"a2a_push_configs.{name}": _SECRET for name in ("create", "get", "find", "update", "delete", "count")},
    "agent_messages.last": "GET .../messages/last does it, through agent_messages.list, for the same reason",
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
"""Methods without a route, each with the reason."""


def stores() -> dict[str, type]:
    """Return the stores of a tenant's handle and of the Holdfast, by attribute name."""

    async def main() -> dict[str, type]:
        async with AsyncHoldfast(":memory:") as holdfast:
            of_all = {name: getattr(holdfast, name) for name in store_names(type(holdfast))}
            tenant = holdfast.tenant("acme")
            of_one = {name: getattr(tenant, name) for name in store_names(type(tenant))}
            return {name: type(store) for name, store in {**of_all, **of_one}.items()}

    return asyncio.run(main())


def methods(store: type) -> list[str]:
    return [name for name, item in inspect.getmembers(store, inspect.isfunction) if not name.startswith("_")]


def names_in(code: CodeType) -> Iterator[str]:
    """Return every name that a function uses, including nested functions."""
    yield from code.co_names
    for co_const in code.co_consts:
        if isinstance(co_const, CodeType):
            yield from names_in(co_const)


def names_used(function: Any) -> set[str]:
    """Return every name that a resource function uses, including the functions of its module that it calls."""
    result = set(names_in(function.__code__))
    for name in sorted(result):
        below = function.__globals__.get(name)
        if isinstance(below, FunctionType) and below.__module__ == function.__module__:
            result |= set(names_in(below.__code__))
    return result


def reached_methods(operations: list[Operation], known: dict[str, type]) -> set[str]:
    """Return the methods that these operations call: derived from them, or named together with their store."""
    result: set[str] = set()
    for operation in operations:
        made_from = getattr(operation.function, "made_from", None)
        if made_from is not None:
            store, method = made_from
            result.add(f"{store}.{method.__name__}")
            continue
        text = names_used(operation.function)
        result |= {f"{name}.{one}" for name in text & set(known) for one in methods(known[name]) if one in text}
    return result


STORES = stores()
ALL = {f"{name}.{method}" for name, store in STORES.items() for method in methods(store)}
REACHED = reached_methods(OPERATIONS, STORES)


def test_there_are_stores_and_methods_to_check() -> None:
    assert {"sessions", "checkpoints", "objects", "a2a_tasks", "tenants", "run_queue", "erasures"} <= set(STORES)
    assert len(STORES) >= 30
    assert len(ALL) >= 200


def test_every_method_has_a_route_or_a_reason() -> None:
    assert sorted(ALL - REACHED - set(WHY_NOT)) == []


def test_the_reasons_name_existing_methods_without_routes() -> None:
    assert sorted(set(WHY_NOT) - ALL) == []
    assert sorted(set(WHY_NOT) & REACHED) == []
    assert all(WHY_NOT.values())


def test_derived_operations_name_methods_of_the_handle() -> None:
    for operation in OPERATIONS:
        made_from = getattr(operation.function, "made_from", None)
        if made_from is not None:
            store, method = made_from
            assert getattr(STORES[store], method.__name__) is method, operation.function.__name__


def test_a_method_without_a_route_is_detected() -> None:
    without = [
        operation for operation in OPERATIONS if operation.function.__name__ not in ("verify_objects", "delete_session")
    ]
    missing = ALL - reached_methods(without, STORES) - set(WHY_NOT)
    assert missing == {"objects.verify", "sessions.delete"}


@pytest.mark.parametrize("name", ["tenants.create", "sessions.update", "messages.append_many", "workspaces.rewind"])
def test_a_method_called_by_a_handwritten_operation_is_detected(name: str) -> None:
    by_hand = [operation for operation in OPERATIONS if not hasattr(operation.function, "made_from")]
    assert name in reached_methods(by_hand, STORES)
