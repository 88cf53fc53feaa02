"""Any tree, changed in any way: every snapshot stays as it was captured."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Limits
from holdfast.trees import contents, stat_cache
from tests.workspaces.worlds import World, make, on_disk, wait_for_tick

NAMES = st.binary(min_size=1, max_size=6).map(
    lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"0").decode("utf-8", "surrogateescape")
)
SAFE = NAMES.filter(lambda name: name not in (".", "..", ".holdfastignore") and not name.endswith((".pyc", ".pyo")))
PATHS = st.lists(SAFE, min_size=1, max_size=3).map("/".join)
BODIES = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 255).map(lambda byte: bytes([byte]) * 300_000),
    st.integers(1, 9).map(lambda number: (b"%d" % number) * (contents.CHUNK + number)),
    st.just(bytes(2 * contents.CHUNK)),
)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PATHS, BODIES),
        st.tuples(st.just("link"), PATHS, SAFE),
        st.tuples(st.just("folder"), PATHS, st.none()),
        st.tuples(st.just("mode"), PATHS, st.sampled_from((0o600, 0o755, 0o4711))),
        st.tuples(st.just("remove"), PATHS, st.none()),
        st.tuples(st.just("time"), PATHS, st.integers(0, 2**60)),
        st.tuples(st.just("move"), PATHS, SAFE),
        st.tuples(st.just("move and link"), PATHS, SAFE),
    ),
    max_size=8,
)


def change(root: Path, what: str, path: str, value: object) -> None:
    """Change something in the tree, if that is possible."""
    at = root / path
    try:
        if what == "remove":
            shutil.rmtree(at) if at.is_dir() and not at.is_symlink() else at.unlink()
        elif what == "mode":
            at.chmod(value, follow_symlinks=True) if not at.is_symlink() else None  # type: ignore[arg-type]
        elif what.startswith("move"):
            at.rename(root / str(value))
            at.symlink_to(root / str(value)) if what == "move and link" else None
        elif what == "time":
            os.utime(at, ns=(value, value), follow_symlinks=False)  # type: ignore[arg-type]
        elif not any((root / folder).is_symlink() for folder in [path, *map(str, Path(path).parents)]):
            make(root, {path: None if what == "folder" else value})  # type: ignore[dict-item]
    except OSError:
        pass


Steps = list[list[tuple[str, str, object]]]
few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
histories = given(
    steps=st.lists(CHANGES, min_size=1, max_size=5), depth=st.integers(0, 3), gone=st.sets(st.integers(0, 4))
)


@few
@histories
def test_every_snapshot_stays_unchanged(tmp_path: Path, steps: Steps, depth: int, gone: set[int]) -> None:
    check(tmp_path, steps, depth, gone)


@pytest.mark.soak
@settings(few, max_examples=3_000)
@histories
def test_every_snapshot_of_many_more_stays_unchanged(tmp_path: Path, steps: Steps, depth: int, gone: set[int]) -> None:
    check(tmp_path, steps, depth, gone)


def check(tmp_path: Path, steps: Steps, depth: int, removed: set[int]) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    world = World(":memory:", limits=Limits(snapshot_depth=depth))
    try:
        taken = []
        for changes in steps:
            wait_for_tick()
            for what, path, value in changes:
                change(root, what, path, value)
            wait_for_tick()
            with mock.patch.object(stat_cache, "GRAIN_NS", 0):  # so that recent states are used
                captured = world.capture(root)
            assert (captured.skipped, captured.unsettled) == ([], [])
            taken.append((captured.snapshot, on_disk(root)))
        kept = [pair for number, pair in enumerate(taken) if number not in removed]
        world.acme.snapshots.delete([pair[0].id for pair in taken if pair not in kept], reason="test")
        for _ in range(2):
            world.acme.objects.prune(grace_s=0)
        for snapshot, existing in kept:
            assert world.described(snapshot) == existing
            assert snapshot.entry_count == len(existing)
            assert snapshot.tree_bytes == sum(len(entry[3]) for entry in existing.values() if entry[0] == "file")
        world.acme.snapshots.delete([snapshot.id for snapshot, _ in kept], reason="test")
        for _ in range(2):
            world.acme.objects.prune(grace_s=0)
        assert world.acme.objects.usage().stored_bytes == 0
    finally:
        world.close()
        shutil.rmtree(root)
