"""Upper directories of overlay file systems, captured on a snapshot of the lower directory."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import InvalidInput, NotFound
from tests.errors import raises
from tests.workspaces.worlds import World, make, on_disk

LOWER: dict[str, bytes | str | None] = {
    "keep": b"as it was",
    "change": b"before",
    "remove": b"to go",
    "folder/a": b"a",
    "folder/b": b"b",
    "folder/deep/c": b"c",
    "opaque/old": b"hidden",
    "opaque/deep/old": b"hidden",
    "gone/a": b"gone",
    "gone/deep/b": b"gone",
    "becomes a file/inside": b"gone",
    "becomes a folder": b"a file",
    "link": "keep",
    **{f"many/{number}": b"%d" % number for number in range(40)},
}


@pytest.fixture
def lower(tmp_path: Path) -> Path:
    make(tmp_path / "lower", LOWER)
    return tmp_path / "lower"


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    """The upper directory after some work on top of the other, without its whiteouts."""
    root = tmp_path / "upper"
    make(root, {
        "change": b"after",
        "new": b"new",
        "folder/a": b"another a",
        "folder/new/d": b"d",
        "opaque/new": b"seen",
        "becomes a file": b"now",
        "becomes a folder/inside": b"now",
        "link": "elsewhere",
    })  # fmt: skip
    return root


def expected(lower: Path, upper: Path) -> dict[str, object]:
    """What the two come to, once whiteouts and opaque directories have done their work."""
    result: dict[str, object] = {path: entry for path, entry in on_disk(lower).items() if not path.startswith((
        "remove", "gone", "opaque/", "becomes a file/", "folder/b",
    ))}  # fmt: skip
    return dict(sorted({**result, **on_disk(upper)}.items()))


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))


def attribute(path: Path, name: str, value: bytes) -> bool:
    """Set one of the attributes, in whichever way this file system and these rights allow."""
    for start in ("trusted", "user"):
        try:
            os.setxattr(path, f"{start}.overlay.{name}", value)
            return True
        except OSError:
            continue
    return False


def of_overlay(upper: Path) -> None:
    whiteout(upper / "remove")
    whiteout(upper / "gone")
    whiteout(upper / "folder" / "b")
    assert attribute(upper / "opaque", "opaque", b"y")


def of_files(upper: Path) -> None:
    make(
        upper,
        {".wh.remove": b"", ".wh.gone": b"", "folder/.wh.b": b"", "opaque/.wh..wh..opq": b"", ".wh..wh.plnk": b""},
    )


def of_attributes(upper: Path) -> None:
    make(upper, {"remove": b"", "gone": b"", "folder/b": b""})
    for path in ("remove", "gone", "folder/b"):
        assert attribute(upper / path, "whiteout", b"y")
    assert attribute(upper / "opaque", "opaque", b"y")


@pytest.mark.parametrize("mark", [of_overlay, of_files, of_attributes])
def test_an_upper_directory_is_a_snapshot_of_both(small: World, lower: Path, upper: Path, mark: object) -> None:
    check_both(small, lower, upper, mark)


def test_a_capture_of_an_upper_directory_works_on_every_engine(world: World, lower: Path, upper: Path) -> None:
    check_both(world, lower, upper, of_files)


def check_both(world: World, lower: Path, upper: Path, mark: object) -> None:
    base = world.capture(lower).snapshot
    requested = expected(lower, upper)
    mark(upper)  # type: ignore[operator]
    for path in ("opaque", "folder"):  # to write a mark is to write to the directory
        os.utime(upper / path, ns=(requested[path][2], requested[path][2]))  # type: ignore[index]
    captured = world.do(world.acme.workspaces.capture_upper(world.run_id, upper, base=base.id, step=2))
    assert world.described(captured.snapshot) == requested
    assert (captured.snapshot.parent_id, captured.snapshot.step, captured.snapshot.depth) == (base.id, 2, 1)
    assert captured.skipped == []
    assert captured.snapshot.size_bytes < 2_000


def test_an_empty_upper_directory_changes_nothing(small: World, lower: Path, tmp_path: Path) -> None:
    base = small.capture(lower).snapshot
    (tmp_path / "empty").mkdir()
    captured = small.acme.workspaces.capture_upper(small.run_id, tmp_path / "empty", base=base.id)
    assert (captured.changed, captured.removed, captured.snapshot.layer_id) == (0, 0, base.layer_id)


def test_an_opaque_root_hides_everything(small: World, lower: Path, tmp_path: Path) -> None:
    base = small.capture(lower).snapshot
    make(tmp_path / "upper", {".wh..wh..opq": b"", "only": b"this"})
    captured = small.acme.workspaces.capture_upper(small.run_id, tmp_path / "upper", base=base.id)
    assert small.described(captured.snapshot).keys() == {"only"}


def test_the_upper_directory_is_captured_repeatedly(small: World, lower: Path, upper: Path) -> None:
    base = small.capture(lower).snapshot
    of_files(upper)
    first = small.acme.workspaces.capture_upper(small.run_id, upper, base=base.id)
    (upper / ".wh.remove").unlink()
    make(upper, {"remove": b"here again", "folder/.wh.a": b""})
    (upper / "folder" / "a").unlink()
    second = small.acme.workspaces.capture_upper(small.run_id, upper, base=first.snapshot.id)
    existing = small.described(second.snapshot)
    assert existing["remove"][3] == b"here again"
    assert "folder/a" not in existing
    assert "folder/deep/c" in existing


@pytest.mark.parametrize(
    ("name", "option", "at"), [("redirect", "redirect_dir", "folder"), ("metacopy", "metacopy", "change")]
)
def test_an_upper_directory_with_unsupported_mount_options_is_rejected(
    small: World, lower: Path, upper: Path, name: str, option: str, at: str
) -> None:
    base = small.capture(lower).snapshot
    assert attribute(upper / at, name, b"/elsewhere")
    with raises(InvalidInput, field=option):
        small.acme.workspaces.capture_upper(small.run_id, upper, base=base.id)
    assert len(small.acme.snapshots.list()) == 1


def test_a_device_other_than_a_whiteout_is_reported(small: World, lower: Path, upper: Path) -> None:
    try:
        os.mknod(upper / "keep", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        return  # device nodes cannot be created here
    base = small.capture(lower).snapshot
    captured = small.acme.workspaces.capture_upper(small.run_id, upper, base=base.id)
    assert [(skipped.path, skipped.reason) for skipped in captured.skipped] == [("keep", "a device")]
    assert "keep" in small.described(captured.snapshot), "the lower entry is unchanged"


def test_a_missing_base_is_rejected(small: World, upper: Path) -> None:
    with raises(NotFound, noun="snapshot"):
        small.acme.workspaces.capture_upper(small.run_id, upper, base="01900000-0000-7000-8000-000000000001")


@pytest.fixture
def mounted(lower: Path, tmp_path: Path) -> Iterator[Path]:
    """A real overlay file system where one can be mounted, and the upper directory by hand where not."""
    for name in ("real", "work", "merged"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={lower},upperdir={tmp_path}/real,workdir={tmp_path}/work"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(tmp_path / "merged")]
    is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    yield tmp_path / "merged" if is_mounted else tmp_path / "nothing"
    if is_mounted:
        subprocess.run(["umount", "-l", str(tmp_path / "merged")], check=True)


def test_a_real_overlay_file_system(small: World, lower: Path, mounted: Path, tmp_path: Path) -> None:
    if not mounted.exists():
        return  # the marks are tried one by one above
    base = small.capture(lower).snapshot
    (mounted / "remove").unlink()
    (mounted / "change").write_bytes(b"after")
    for path in ("opaque/old", "opaque/deep/old"):
        (mounted / path).unlink()
    (mounted / "opaque" / "deep").rmdir()
    (mounted / "opaque").rmdir()
    make(mounted, {"opaque/new": b"seen", "brand/new": b"x"})
    captured = small.acme.workspaces.capture_upper(small.run_id, tmp_path / "real", base=base.id)
    assert small.described(captured.snapshot) == on_disk(mounted)
