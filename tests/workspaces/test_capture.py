"""Capturing directories: the content of a snapshot, its cost, and the reported exceptions."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from holdfast import DEFAULT_IGNORE, Holdfast, Limits
from holdfast.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from holdfast.trees import contents, safe_open
from tests.errors import raises
from tests.workspaces.conftest import SMALL
from tests.workspaces.worlds import World, make, on_disk

MISSING = "00000000-0000-7000-8000-000000000000"


def test_a_snapshot_has_the_whole_tree(world: World, tree: Path) -> None:
    captured = world.capture(tree, step=3)
    existing = on_disk(tree)
    assert world.described(captured.snapshot) == existing
    snapshot = captured.snapshot
    assert (snapshot.run_id, snapshot.step, snapshot.kind, snapshot.parent_id) == (world.run_id, 3, "step", None)
    assert (snapshot.entry_count, snapshot.depth) == (len(existing), 0)
    assert snapshot.tree_bytes == sum(len(entry[3]) for entry in existing.values() if entry[0] == "file")
    assert 0 < snapshot.size_bytes < snapshot.tree_bytes
    assert (captured.changed, captured.removed, captured.skipped, captured.unsettled) == (len(existing), 0, [], [])
    assert world.do(world.acme.snapshots.get(snapshot.id)) == snapshot
    assert world.do(world.acme.snapshots.find(world.run_id, step=3)) == snapshot


def test_the_next_snapshot_stores_only_changes(world: World, tree: Path, later: None) -> None:
    first = world.capture(tree)
    before = on_disk(tree)
    (tree / "README.md").write_bytes(b"# Another text\n")
    (tree / "src" / "main.py").chmod(0o644)
    (tree / "src" / "link.py").unlink()
    (tree / "docs" / "empty folder").rmdir()
    make(tree, {"docs/new.md": b"new", "src/link.py": "elsewhere"})
    second = world.capture(tree)
    assert world.described(second.snapshot) == on_disk(tree)
    assert world.described(first.snapshot) == before, "the first snapshot is unchanged"
    assert (second.snapshot.depth, second.snapshot.parent_id) == (1, first.snapshot.id)
    assert (second.changed, second.removed) == (6, 1), (
        "two files, a link, a new file, and two directories by their time"
    )
    assert second.snapshot.size_bytes < first.snapshot.size_bytes / 2


def test_a_snapshot_of_an_unchanged_tree_is_one_row(world: World, tree: Path, later: None) -> None:
    first = world.capture(tree, step=1)
    objects = world.do(world.acme.objects.usage())
    second = world.capture(tree, step=2)
    assert (second.changed, second.removed, second.snapshot.size_bytes) == (0, 0, 0)
    assert second.snapshot.layer_id == first.snapshot.layer_id
    assert world.do(world.acme.objects.usage()) == objects
    assert world.described(second.snapshot) == on_disk(tree)


def test_only_changed_files_are_read(small: World, tree: Path, later: None, monkeypatch: pytest.MonkeyPatch) -> None:
    small.capture(tree)
    (tree / "README.md").write_bytes(b"changed")
    read: list[int] = []
    content = safe_open.content
    monkeypatch.setattr(safe_open, "content", lambda file: [read.append(file.stat[1]), content(file)][1])
    small.capture(tree)
    assert read == [7]


def test_a_directory_that_becomes_a_file_and_back(small: World, tree: Path) -> None:
    first = small.capture(tree)
    shutil.rmtree(tree / "docs")
    (tree / "docs").write_bytes(b"a file now")
    second = small.capture(tree)
    described = on_disk(tree)
    (tree / "docs").unlink()
    make(tree, {"docs/deep": b"a file where a directory was"})
    third = small.capture(tree)
    assert small.described(second.snapshot) == described
    assert small.described(third.snapshot) == on_disk(tree)
    assert "docs/deep/er/still/page.md" in small.described(first.snapshot)


def test_large_and_sparse_files(small: World, tmp_path: Path, later: None) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    random = Random(3)
    big = random.randbytes(3 * contents.CHUNK + 77)
    (root / "big").write_bytes(big)
    with open(root / "sparse", "wb") as file:
        file.truncate(64 * contents.CHUNK)
        file.seek(20 * contents.CHUNK + 5)
        file.write(b"in the middle")
    with open(root / "nothing", "wb") as file:
        file.truncate(2**40)
    (root / "zeros").write_bytes(bytes(2 * contents.CHUNK + 1))
    first = small.capture(root)
    tree = small.acme.snapshots.tree(first.snapshot.id)
    assert small.acme.snapshots.usage().stored_bytes < len(big) * 1.01 + 5_000, "zeros are not stored"
    assert [piece.length for piece in tree.entries["nothing"].pieces] == [2**40]
    assert len(tree.entries["sparse"].pieces) == 3
    assert tree.entries["zeros"].size == sum(piece.length for piece in tree.entries["zeros"].pieces)
    changed = bytearray(big)
    changed[contents.CHUNK + 5] ^= 1
    (root / "big").write_bytes(changed + b"appended")
    second = small.capture(root)
    assert small.acme.snapshots.read(second.snapshot.id, "big") == bytes(changed + b"appended")
    assert small.acme.snapshots.read(first.snapshot.id, "big") == big
    assert second.snapshot.size_bytes < 1.3 * contents.CHUNK, "one chunk, and the end"
    with raises(LimitExceeded, limit="content_bytes"):
        small.acme.snapshots.read(first.snapshot.id, "nothing")


def test_the_same_content_is_stored_once(small: World, tmp_path: Path) -> None:
    root, random = tmp_path / "tree", Random(5)
    bodies = [random.randbytes(size) for size in (50_000, 400_000, 2 * contents.CHUNK)]
    make(root, {f"{copy}/{number}": body for copy in "abc" for number, body in enumerate(bodies)})
    first = small.capture(root)
    assert first.snapshot.size_bytes < sum(map(len, bodies)) * 1.02
    make(root, {f"moved/{number}": body for number, body in enumerate(bodies)})
    shutil.rmtree(root / "a")
    second = small.capture(root)
    assert second.snapshot.size_bytes < 2_000, "moved content is stored already"
    assert small.described(second.snapshot) == on_disk(root)


def test_another_run_uses_the_cached_directory(small: World, tree: Path, later: None) -> None:
    first = small.capture(tree)
    other = small.acme.runs.start(small.session.id).id
    second = small.capture(tree, run_id=other)
    assert (second.snapshot.size_bytes, second.snapshot.layer_id) == (0, first.snapshot.layer_id)
    small.acme.snapshots.delete([first.snapshot.id], reason="of no use")
    small.acme.objects.prune(grace_s=0)
    small.acme.objects.prune(grace_s=0)
    assert small.described(second.snapshot) == on_disk(tree)


def test_tenants_share_nothing(small: World, tree: Path) -> None:
    first = small.capture(tree)
    other = small.holdfast.tenant("zenith")
    run = other.runs.start(other.sessions.create().id)
    second = other.workspaces.capture(run.id, tree)
    assert second.snapshot.size_bytes == first.snapshot.size_bytes
    assert second.snapshot.layer_id != first.snapshot.layer_id
    with pytest.raises(NotFound):
        other.snapshots.tree(first.snapshot.id)
    with raises(NotFound, noun="run"):
        other.workspaces.capture(small.run_id, tree)
    with raises(NotFound, noun="snapshot"):
        other.workspaces.capture_upper(run.id, tree, base=first.snapshot.id)


def test_special_files_are_reported(world: World, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(tree):  # the name of a socket must be short
        bound.bind("socket")
    captured = world.capture(tree)
    assert sorted((skipped.path, skipped.reason) for skipped in captured.skipped) == [
        ("pipe", "a pipe"),
        ("socket", "a socket"),
    ]
    assert world.described(captured.snapshot) == on_disk(tree)


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A directory, without the rights of root, which may read everything."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        is_root = os.geteuid() == 0
        make(Path(made), {"open": b"seen", "closed": b"not seen", "folder/inside": b"not seen"})
        for name in ("closed", "folder"):
            os.chmod(os.path.join(made, name), 0)
        if is_root:
            os.seteuid(65_534)
        try:
            yield Path(made)
        finally:
            if is_root:
                os.seteuid(0)
            os.chmod(os.path.join(made, "folder"), 0o700)


def test_unreadable_files_are_reported(as_nobody: Path) -> None:
    world = World(":memory:")
    captured = world.capture(as_nobody)
    assert sorted((skipped.path, skipped.reason) for skipped in captured.skipped) == [
        ("closed", "permission denied"),
        ("folder", "permission denied"),
    ]
    assert world.described(captured.snapshot).keys() == {"open", "folder"}
    world.close()


def test_generated_files_are_ignored_unless_requested(small: World, tree: Path) -> None:
    make(tree, {"src/__pycache__/main.pyc": b"x", "node_modules/a/b.js": b"x", "src/x.pyc": b"x", ".git/HEAD": b"x"})
    captured = small.capture(tree)
    existing = small.described(captured.snapshot)
    assert ".git/HEAD" in existing
    assert not {"src/__pycache__", "node_modules", "src/x.pyc"} & existing.keys()
    assert small.acme.snapshots.tree(captured.snapshot.id).ignore == list(DEFAULT_IGNORE)
    everything = small.capture(tree, ignore_defaults=False)
    assert small.described(everything.snapshot) == on_disk(tree)
    assert small.acme.snapshots.tree(everything.snapshot.id).ignore == []


def test_patterns_of_the_caller_and_of_a_file_in_the_root(small: World, tree: Path, later: None) -> None:
    make(
        tree, {".holdfastignore": b"\xef\xbb\xbf*.md\n!README.md\n# a comment\n", "secret.key": b"k", "src/a.log": b"l"}
    )
    first = small.capture(tree, ignore=["/secret.*", "*.log"])
    assert not {"docs/deep/er/still/page.md", "secret.key", "src/a.log"} & small.described(first.snapshot).keys()
    assert "README.md" in small.described(first.snapshot)
    second = small.capture(tree, ignore=["/secret.*"])
    assert (second.changed, second.removed) == (1, 0), "a path no longer ignored is new"
    (tree / ".holdfastignore").write_bytes(b"*.py\n")
    third = small.capture(tree, ignore=["/secret.*"])
    existing = small.described(third.snapshot)
    assert "src/main.py" not in existing
    assert "docs/deep/er/still/page.md" in existing
    assert third.snapshot.depth == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"path": ""}, InvalidInput),
        ({"path": "a\0b"}, InvalidInput),
        ({"path": 7}, InvalidInput),
        ({"path": "/does/not/exist"}, NotFound),
        ({"path": "README.md"}, InvalidInput),
        ({"run_id": "nonsense"}, InvalidInput),
        ({"run_id": MISSING}, NotFound),
        ({"step": -1}, InvalidInput),
        ({"step": True}, InvalidInput),
        ({"kind": "other"}, InvalidInput),
        ({"ignore": "*.py"}, InvalidInput),
        ({"ignore": [7]}, InvalidInput),
        ({"id": "nonsense"}, InvalidInput),
    ],
)
def test_invalid_arguments_are_refused_and_nothing_is_stored(
    small: World, tree: Path, arguments: dict[str, Any], error: type[Exception]
) -> None:
    options: Any = arguments.pop("path", tree)
    with pytest.raises(error):
        small.capture(tree / options if options == "README.md" else options, **arguments)
    assert small.acme.snapshots.list() == []
    assert small.acme.objects.usage().count == 0


def test_a_tree_over_a_limit_is_refused(tmp_path: Path, tree: Path) -> None:
    for limits, name in ((Limits(tree_entries=5), "tree_entries"), (Limits(tree_depth=3), "tree_depth")):
        world = World(":memory:", limits=limits)
        with raises(LimitExceeded, limit=name):
            world.capture(tree)
        assert world.acme.snapshots.list() == []
        world.close()
    world = World(":memory:", limits=Limits(object_bytes=2_000))
    with raises(LimitExceeded, limit="object_bytes"):
        world.capture(tree)
    assert world.acme.objects.usage().count == 0
    world.close()


def test_the_same_id_is_the_same_snapshot(world: World, tree: Path) -> None:
    first = world.capture(tree, step=1, id="01900000-0000-7000-8000-000000000001")
    make(tree, {"new": b"since then"})
    again = world.capture(tree, step=1, id="01900000-0000-7000-8000-000000000001")
    assert again.snapshot == first.snapshot
    assert len(world.do(world.acme.snapshots.list())) == 1


def test_the_same_id_for_another_run_is_a_conflict(small: World, tree: Path) -> None:
    from holdfast.stores.workspace.snapshot_rows import NewSnapshot
    from holdfast.sync_runner import step

    first = small.capture(tree, step=1).snapshot
    new = NewSnapshot(small.run_id, 2, "step", None, first.layer_id, 1, 1, first.id)
    with pytest.raises(Conflict):
        step(small.acme.snapshots._async._record(new))


def test_a_snapshot_is_part_of_the_callers_transaction(tmp_path: Path, tree: Path) -> None:
    world = World(str(tmp_path / "w.db"), limits=SMALL)
    connection = apsw.Connection(str(tmp_path / "w.db"))
    connection.execute("BEGIN")
    joined = world.acme.join(connection)
    captured = joined.workspaces.capture(world.run_id, tree)
    assert len(joined.snapshots.list()) == 1
    connection.execute("ROLLBACK")
    connection.close()
    assert world.acme.snapshots.list() == []
    assert not (tmp_path / "w.db.packs").exists(), "no file is written inside of a caller's transaction"
    again = world.capture(tree)
    assert again.snapshot.layer_id != captured.snapshot.layer_id
    assert world.described(again.snapshot) == on_disk(tree)
    world.close()


def test_after_many_differences_a_tree_is_stored_whole(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    make(root, {f"{number}": b"%d" % number for number in range(20)})
    world = World(":memory:", limits=Limits(snapshot_depth=3))
    taken = []
    for number in range(10):
        make(root, {f"{number}": b"another %d" % number})
        taken.append((world.capture(root).snapshot, on_disk(root)))
    assert [snapshot.depth for snapshot, _ in taken] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    world.acme.snapshots.delete([snapshot.id for snapshot, _ in taken[:8]], reason="old")
    assert world.acme.snapshots.usage().layers == 2, "the layers below the whole tree are not needed any more"
    world.acme.objects.prune(grace_s=0)
    world.acme.objects.prune(grace_s=0)
    for snapshot, existing in taken[8:]:
        assert world.described(snapshot) == existing
    world.close()


def test_a_very_different_tree_is_stored_whole(small: World, tmp_path: Path) -> None:
    make(tmp_path / "one", {f"{number}": b"one %d" % number for number in range(30)})
    make(tmp_path / "two", {f"two {number}": b"two %d" % number for number in range(30)})
    small.capture(tmp_path / "one")
    second = small.capture(tmp_path / "two")
    assert second.snapshot.depth == 0
    assert small.described(second.snapshot) == on_disk(tmp_path / "two")


def test_packs_are_stored_beside_a_sqlite_file(tmp_path: Path, tree: Path) -> None:
    path = tmp_path / "agents.db"
    with Holdfast(str(path), limits=SMALL) as holdfast:
        acme = holdfast.tenant("acme")
        run = acme.runs.start(acme.sessions.create().id)
        assert not (tmp_path / "agents.db.packs").exists(), "created when it is needed"
        assert acme.objects.prune().packs == 0
        taken = acme.workspaces.capture(run.id, tree).snapshot
        assert acme.objects.usage().packs == 1
        acme.objects.prune(grace_s=0)
        assert acme.snapshots.read(taken.id, "large.bin") == (tree / "large.bin").read_bytes()
        acme.snapshots.delete([taken.id], reason="test")
        acme.objects.prune(grace_s=0)
    assert [path for path in (tmp_path / "agents.db.packs").rglob("*") if path.is_file()] == []


def test_only_the_end_of_an_appended_file_is_stored(small: World, tmp_path: Path, later: None) -> None:
    root, random = tmp_path / "tree", Random(9)
    lines = random.randbytes(100_000)
    make(root, {"log": lines, "other": b"x"})
    taken = [(small.capture(root).snapshot, on_disk(root))]
    for _ in range(contents.MAX_PIECES + 2):
        lines += random.randbytes(50)
        (root / "log").write_bytes(lines)
        taken.append((small.capture(root).snapshot, on_disk(root)))
    for snapshot, existing in taken:
        assert small.described(snapshot) == existing
    sizes = [snapshot.size_bytes for snapshot, _ in taken]
    assert [size > 100_000 for size in sizes] == [True, *[False] * 7, True, *[False] * 2], (
        "after so many pieces, the whole"
    )
    assert max(size for size in sizes if size < 100_000) < 600
    (root / "log").write_bytes(b"!" + lines[1:] + b"more")
    last = small.capture(root).snapshot
    assert small.described(last) == on_disk(root)
    assert last.size_bytes > 100_000, "it was not only appended to"


def test_a_file_that_became_readable_is_captured(as_nobody: Path, later: None) -> None:
    world = World(":memory:")
    for _ in range(2):
        captured = world.capture(as_nobody)
        assert [skipped.path for skipped in captured.skipped] == ["closed", "folder"], "it is reported each time"
    euid = os.geteuid()
    os.seteuid(os.getuid())
    os.chmod(as_nobody / "closed", 0o644)
    os.chmod(as_nobody / "folder", 0o755)
    os.chmod(as_nobody / "folder" / "inside", 0o644)
    os.seteuid(euid)
    captured = world.capture(as_nobody)
    assert captured.skipped == []
    assert world.described(captured.snapshot) == on_disk(as_nobody)
    world.close()


def test_unchanged_directories_are_not_listed(
    small: World, tree: Path, later: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.capture(tree)
    small.capture(tree)
    listed: list[int] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda handle: [listed.append(handle), scandir(handle)][1])
    assert small.capture(tree).changed == 0
    assert listed == []
    (tree / "src" / "new").write_bytes(b"x")
    assert small.capture(tree).changed == 2
    assert len(listed) == 1, "only the directory with a new name"


def test_a_moved_directory_replaced_by_a_link_is_empty(small: World, tree: Path, later: None) -> None:
    """Everything that was in it can still be reached by its old path, as it was."""
    small.capture(tree)
    (tree / "docs").rename(tree / "moved")
    (tree / "docs").symlink_to("moved")
    (tree / "src").rename(tree.parent / "outside")
    (tree / "src").symlink_to("../outside")
    captured = small.capture(tree)
    assert small.described(captured.snapshot) == on_disk(tree)
    (tree / "docs").unlink()
    (tree / "moved").rename(tree / "docs")
    assert small.described(small.capture(tree).snapshot) == on_disk(tree)
