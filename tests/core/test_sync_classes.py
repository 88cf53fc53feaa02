"""The synchronous classes have exactly the methods and signatures of the asynchronous ones, without ``await``."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from textwrap import dedent, indent
from typing import Any, get_args, get_origin

import pytest

import holdfast
from holdfast import AsyncHoldfast, AsyncTenantHandle, Holdfast, TenantHandle
from holdfast.core.blocking import Blocking
from holdfast.core.store import Store
from holdfast.errors import NotFound
from holdfast.store_lists import store_names
from holdfast.sync_runner import step


def subclasses(kind: type) -> Iterator[type]:
    for module in walk_packages(holdfast.__path__, "holdfast."):
        if ".stores." in module.name or ".core." in module.name:
            import_module(module.name)
    for item in kind.__subclasses__():
        yield item
        yield from subclasses(item)


def public(kind: type) -> dict[str, Any]:
    """Return the public methods; declarations of tables are not methods."""
    result = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {name: value for name, value in result.items() if inspect.isroutine(value) or isinstance(value, property)}


def pair_of(blocking: type) -> type:
    """Return the asynchronous class that a synchronous one wraps."""
    bases = getattr(blocking, "__orig_bases__", ())
    made_of = [get_args(base)[0] for base in bases if getattr(base, "__origin__", None) is Blocking]
    # A class that inherits its methods wraps the class of the same name in its module.
    result = made_of[0] if made_of else getattr(import_module(blocking.__module__), f"Async{blocking.__name__}")
    kind: type = get_origin(result) or result
    return kind


SYNC = sorted(
    {kind for kind in subclasses(Blocking) if kind.__module__.startswith("holdfast.")}, key=lambda kind: kind.__name__
)
METHODS = [pytest.param(kind, name, id=f"{kind.__name__}.{name}") for kind in SYNC for name in public(pair_of(kind))]


def test_every_store_has_a_synchronous_class() -> None:
    stores = {
        kind
        for kind in subclasses(Store)
        if kind.__name__.startswith("Async") and kind.__module__.startswith("holdfast.")
    }
    assert {pair_of(kind) for kind in SYNC} == stores
    assert {kind.__name__ for kind in SYNC} >= {"Sessions", "Messages", "Tenants"}


@pytest.mark.parametrize("kind", SYNC)
def test_a_synchronous_class_has_exactly_the_methods_of_its_pair(kind: type) -> None:
    assert f"Async{kind.__name__}" == pair_of(kind).__name__
    assert public(kind).keys() == public(pair_of(kind)).keys()


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_a_method_has_the_same_signature_and_docstring(kind: type, name: str) -> None:
    mine, theirs = public(kind)[name], public(pair_of(kind))[name]
    assert inspect.signature(mine) == inspect.signature(theirs)
    assert mine.__doc__ == theirs.__doc__
    assert mine.__doc__, f"{name} has no docstring"
    assert mine.__name__ == name
    assert not inspect.iscoroutinefunction(mine)
    assert "connection" not in inspect.signature(mine).parameters


@pytest.mark.parametrize(("sync", "asynchronous"), [(Holdfast, AsyncHoldfast), (TenantHandle, AsyncTenantHandle)])
def test_synchronous_handles_match_the_asynchronous_ones(sync: type, asynchronous: type) -> None:
    only_async, only_sync = {"open", "as_sync"}, {"as_async"}
    assert public(sync).keys() - only_sync == public(asynchronous).keys() - only_async
    assert inspect.signature(sync) == inspect.signature(asynchronous)
    for name in public(sync).keys() - only_sync:
        if inspect.isfunction(public(sync)[name]):
            mine, theirs = inspect.signature(public(sync)[name]), inspect.signature(public(asynchronous)[name])
            assert mine.parameters.keys() == theirs.parameters.keys(), name


def test_handles_offer_the_same_stores() -> None:
    names = store_names(TenantHandle)
    assert names == store_names(AsyncTenantHandle) != []
    with Holdfast(":memory:") as hf:
        handle, asynchronous = hf.tenant("acme"), AsyncHoldfast(":memory:").tenant("acme")
        for name in names:
            store = getattr(handle, name)
            assert pair_of(type(store)) is type(getattr(asynchronous, name))
            assert getattr(handle, name) is store, "a store is created once"


def test_a_synchronous_call_has_a_normal_traceback() -> None:
    with Holdfast(":memory:") as hf, pytest.raises(NotFound) as caught:
        hf.tenant("acme").sessions.get("00000000-0000-7000-8000-000000000000")
    frames = [(entry.path.name, entry.name) for entry in caught.traceback]  # type: ignore[union-attr]
    assert ("sessions.py", "get") in frames


async def _answer() -> int:
    return 42


async def _fails() -> None:
    raise ValueError("on the way")


class _Suspends:
    def __await__(self) -> Iterator[None]:
        yield


closed: list[str] = []


async def _suspends() -> None:
    try:
        await _Suspends()
    finally:
        closed.append("closed")


def test_step_runs_a_coroutine_to_its_end() -> None:
    assert step(_answer()) == 42
    with pytest.raises(ValueError, match="on the way"):
        step(_fails())


def test_a_blocking_call_that_suspends_is_an_error_and_is_cleaned_up() -> None:
    closed.clear()
    with pytest.raises(RuntimeError, match="a blocking call suspended"):
        step(_suspends())
    assert closed == ["closed"]


SNIPPET = """
from holdfast import *

hf = Holdfast(":memory:")
acme = hf.tenant("acme")
reveal_type(acme.sessions.create(key="k"))
reveal_type(acme.sessions.find("k"))
reveal_type(acme.sessions.list(limit=3))
reveal_type(acme.sessions.list().next)
reveal_type(acme.sessions.count())
reveal_type(acme.sessions.delete)
reveal_type(acme.messages.append("id", role="user", content="x"))
reveal_type(acme.messages.append_many("id", [NewMessage(content=1)]))
reveal_type(acme.messages.last("id", 5))
reveal_type(acme.messages.list("id")[0].metadata)
reveal_type(hf.tenants.get("acme"))
acme.sessions.create(colour="red")
acme.sessions.get()
acme.sessions.get(7)
acme.messages.append("id", role="user")
x: str = acme.sessions.count()


async def asynchronous() -> None:
    theirs = AsyncHoldfast(":memory:").tenant("acme")
    reveal_type(await theirs.sessions.create(key="k"))
    reveal_type(await theirs.messages.list("id"))
    await theirs.sessions.get(7)
"""
REVEALED = [
    "holdfast.stores.conversation.sessions.Session",
    "holdfast.stores.conversation.sessions.Session | None",
    "holdfast.core.paging.Page[holdfast.stores.conversation.sessions.Session]",
    "str | None",
    "int",
    "def (session_id: str, *, expected: holdfast.stores.conversation.sessions.Session | None =)",
    "holdfast.stores.conversation.message_log.Message",
    "list[holdfast.stores.conversation.message_log.Message]",
    "typing.Sequence[holdfast.stores.conversation.message_log.Message]",
    "dict[str, Any]",
    "holdfast.stores.lifecycle.tenants.Tenant",
    "holdfast.stores.conversation.sessions.Session",
    "holdfast.core.paging.Page[holdfast.stores.conversation.message_log.Message]",
]
REFUSED = [
    'Unexpected keyword argument "colour"',
    "Too few arguments",
    'has incompatible type "int"; expected "str"',
    'Missing named argument "content"',
    'Incompatible types in assignment (expression has type "int", variable has type "str")',
    'has incompatible type "int"; expected "str"',
]


def test_a_type_checker_sees_the_exact_types(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    root = Path(__file__).parents[2]
    # The cache of the whole project, so that only the snippet itself is checked.
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--cache-dir",
        root / ".mypy_cache",
        snippet,
    ]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=root, check=False)
    lines = [line.split(": ", 2)[1:] for line in result.stdout.splitlines()]
    told = indent(result.stdout + result.stderr, "    ")
    notes = [
        text.removeprefix("Revealed type is ").strip('"')
        for kind, text in lines
        if kind == "note" and "Revealed" in text
    ]
    assert [note.replace("builtins.", "") for note in notes] == REVEALED, told
    errors = [text for kind, text in lines if kind == "error"]
    assert len(errors) == len(REFUSED), told
    for expected, output in zip(REFUSED, errors, strict=True):
        assert expected in output, dedent(told)
