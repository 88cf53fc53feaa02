"""Workspaces to capture, on both engines, in a thread and in an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from holdfast import Limits
from holdfast.trees import stat_cache
from tests.workspaces.worlds import World, make

SMALL = Limits(pack_from_bytes=1_000, snapshots_per_run=100)
"""Limits with which small objects are stored in packs, and snapshots stay."""

TREE: dict[str, bytes | str | None] = {
    "README.md": b"# A tree\n",
    "src/main.py": b"print('hello')\n" * 40,
    "src/empty.py": b"",
    "src/link.py": "main.py",
    "src/dangling": "../nowhere/\udcff",
    "docs/empty folder": None,
    "docs/deep/er/still/page.md": "Ünïcode".encode() * 300,
    "not \udcff utf-8": b"\xff\x00\xfe",
    "large.bin": Random(1).randbytes(1_300_000),
}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database of either engine."""
    if request.param == "sqlite":
        return str(tmp_path / "w.db")
    result: str = request.getfixturevalue("postgres_url")
    return result


@pytest.fixture(params=["blocking", "asynchronous"])
def world(
    request: pytest.FixtureRequest, url: str, tmp_path: Path, record_leg: Callable[[str], None]
) -> Iterator[World]:
    """A world of either engine, called either way, with packs."""
    record_leg(f"{'postgres' if '://' in url else 'sqlite'}, workspaces, {request.param}")
    made = World(url, is_async=request.param == "asynchronous", packs=tmp_path / "packs", limits=SMALL)
    yield made
    made.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[World]:
    """A world for what does not depend on the engine."""
    made = World(str(tmp_path / "w.db"), limits=SMALL)
    yield made
    made.close()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with something of every kind in it."""
    root = tmp_path / "tree"
    root.mkdir()
    make(root, TREE)
    (root / "src" / "main.py").chmod(0o755)
    (root / "README.md").chmod(0o640)
    (root / "docs" / "empty folder").chmod(0o700)
    return root


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures take place a minute after everything was written: so nothing is read again for being new."""
    now_ns = stat_cache.now_ns
    monkeypatch.setattr(stat_cache, "now_ns", lambda: now_ns() + 60 * 10**9)
