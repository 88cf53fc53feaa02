"""Exported archives can be read by any tar program, are reproducible, and are imported as the same tree."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from random import Random

import pytest
import zstandard

from holdfast.errors import InvalidInput, NotFound
from tests.errors import raises
from tests.workspaces.fingerprints import fingerprint, grow, put
from tests.workspaces.worlds import World


def export_tree(world: World, root: Path, file: Path, **how: object) -> str:
    """The id of a snapshot of a directory that was written to a file."""
    snapshot = world.capture(root, ignore_defaults=False, **how).snapshot
    world.do(world.acme.workspaces.export(snapshot.id, file))
    return snapshot.id


def import_and_restore(world: World, file: Path, out: Path, **how: object) -> None:
    """An archive, by way of a snapshot, in a directory."""
    taken = world.do(world.acme.workspaces.import_archive(world.run_id, file, **how))
    assert taken.snapshot.kind == "imported"
    world.do(world.acme.workspaces.restore(taken.snapshot.id, out))


def test_an_exported_tree_is_imported_unchanged(world: World, tree: Path, tmp_path: Path) -> None:
    put(tree, ".holdfastignore", b"*.log\n")
    put(tree, "src/large", Random(3).randbytes(3_000_000), at_ns=123_456_789_987_654_321)
    put(tree, "long/" + "/".join(["name" * 20] * 5), b"deep")
    put(tree, "old", b"1", at_ns=-1_500_000_000)
    (tree / "src" / "bytes").symlink_to("\udcff")
    before = fingerprint(tree)
    export_tree(world, tree, tmp_path / "a.tar.zst")
    import_and_restore(world, tmp_path / "a.tar.zst", tmp_path / "out")
    assert fingerprint(tmp_path / "out") == before


def test_the_same_tree_makes_the_same_archive(small: World, tmp_path: Path) -> None:
    for number, seed in ((1, 5), (2, 5), (3, 6)):
        root = tmp_path / f"tree {number}"
        grow(root, Random(seed), 20)
        for path in [root, *root.rglob("*")]:
            os.utime(path, ns=(10**18, 10**18), follow_symlinks=False)
        if number == 2:  # made in another order, by way of another snapshot
            shutil.copytree(root, tmp_path / "copy", symlinks=True)
            small.capture(tmp_path / "copy")
        export_tree(small, root, tmp_path / f"{number}.tar.zst")
    first, second, third = ((tmp_path / f"{number}.tar.zst").read_bytes() for number in (1, 2, 3))
    assert first == second
    assert first != third


def test_other_tar_programs_can_read_an_export(small: World, tree: Path, tmp_path: Path) -> None:
    export_tree(small, tree, tmp_path / "a.tar.zst")
    plain = zstandard.ZstdDecompressor().decompressobj().decompress((tmp_path / "a.tar.zst").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(plain), errors="surrogateescape") as archive:
        assert {member.name for member in archive} == {os.fsdecode(path) for path in fingerprint(tree)}
        assert {(member.uid, member.gid, member.uname, member.gname) for member in archive} == {(0, 0, "", "")}
    out = tmp_path / "by tar"
    out.mkdir()
    subprocess.run(["tar", "-xpf", "-", "-C", str(out)], input=plain, check=True, timeout=60)
    assert fingerprint(out, times=False) == fingerprint(tree, times=False)


def test_archives_of_the_tar_program_can_be_imported(small: World, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    put(root, "a/file", b"1" * 5_000, mode=0o755)
    put(root, "n" * 120, b"a long name")
    (root / "a" / "link").symlink_to("file")
    os.link(root / "a" / "file", root / "second")
    for kind in ("gnu", "pax"):
        command = ["tar", f"--format={kind}", "-cf", "-", "-C", str(root), "."]
        made = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
        file = tmp_path / f"{kind}.tar.zst"
        file.write_bytes(zstandard.ZstdCompressor().compress(made))
        import_and_restore(small, file, tmp_path / kind)
        assert fingerprint(tmp_path / kind, times=False) == fingerprint(root, times=False)


def test_links_out_of_the_tree_need_outside_links(small: World, tree: Path, tmp_path: Path) -> None:
    (tree / "src" / "out").symlink_to("../../elsewhere")
    export_tree(small, tree, tmp_path / "a.tar.zst")
    with raises(InvalidInput, field="src/out"):
        import_and_restore(small, tmp_path / "a.tar.zst", tmp_path / "out")
    import_and_restore(small, tmp_path / "a.tar.zst", tmp_path / "out", outside_links=True)
    assert fingerprint(tmp_path / "out") == fingerprint(tree)


def test_an_import_can_be_repeated(small: World, tree: Path, tmp_path: Path) -> None:
    export_tree(small, tree, tmp_path / "a.tar.zst")
    id = "00000000-0000-7000-8000-00000000000a"
    taken = [
        small.acme.workspaces.import_archive(small.run_id, tmp_path / "a.tar.zst", outside_links=True, id=id, step=3)
        for _ in range(2)
    ]
    assert taken[0].snapshot == taken[1].snapshot
    assert (taken[0].snapshot.id, taken[0].snapshot.step) == (id, 3)


def test_unusable_files_are_refused(small: World, tree: Path, tmp_path: Path) -> None:
    snapshot = small.capture(tree).snapshot
    with raises(NotFound, noun="directory"):
        small.acme.workspaces.export(snapshot.id, tmp_path / "missing" / "a.tar.zst")
    with pytest.raises(NotFound):
        small.acme.workspaces.import_archive(small.run_id, tmp_path / "missing")
    with raises(InvalidInput, field="path"):
        small.acme.workspaces.import_archive(small.run_id, tree)
    with pytest.raises(NotFound):
        small.acme.workspaces.import_archive("00000000-0000-7000-8000-000000000000", tree / "README.md")


def test_an_export_that_fails_leaves_the_old_file(small: World, tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.tar.zst"
    snapshot = export_tree(small, tree, file)
    before = file.read_bytes()

    def fails(count: int) -> None:
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        small.acme.workspaces.export(snapshot, file, replace=True, on_progress=fails)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.glob("a.*")] == ["a.tar.zst"]


def test_an_export_overwrites_only_with_replace_and_is_private(small: World, tree: Path, tmp_path: Path) -> None:
    file, victim = tmp_path / "a.tar.zst", tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "a.tar.zst.part").symlink_to(victim)
    snapshot = export_tree(small, tree, file)
    assert file.stat().st_mode & 0o777 == 0o600
    written = file.read_bytes()
    file.write_bytes(b"of another process")
    with raises(InvalidInput, field="path"):
        small.acme.workspaces.export(snapshot, file)
    assert file.read_bytes() == b"of another process"
    file.unlink()
    file.symlink_to(victim)
    small.acme.workspaces.export(snapshot, file, replace=True)
    assert (file.is_symlink(), file.read_bytes(), victim.read_bytes()) == (False, written, b"precious")


def test_a_file_created_during_an_export_stays(small: World, tree: Path, tmp_path: Path) -> None:
    snapshot = small.capture(tree).snapshot.id
    file = tmp_path / "a.tar.zst"
    with raises(InvalidInput, field="path"):
        small.acme.workspaces.export(snapshot, file, on_progress=lambda count: file.touch())
    assert file.read_bytes() == b""
    assert [path.name for path in tmp_path.glob("a.*")] == ["a.tar.zst"]
