"""Hostile archives and trees write nothing outside of the root, and are refused within their limits."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, Limits
from holdfast.core.objects import Packed, digest_of, unpack
from holdfast.errors import HoldfastError, InvalidInput, LimitExceeded
from holdfast.trees import current_state, restore, validation
from holdfast.trees.archives import ArchiveReader
from holdfast.trees.entries import ContentPiece, Tree
from holdfast.trees.ignore_rules import IgnoreRules
from holdfast.types import TreeEntry
from tests.errors import raises
from tests.workspaces.fingerprints import SECOND_NS, Fingerprint, fingerprint, put, surroundings
from tests.workspaces.hostile_archives import (
    BYTES,
    ESCAPES,
    LOOT,
    archive,
    folder,
    harmless,
    hostile,
    link,
    member,
    packed,
    raw,
)

LIMITS = Limits()
ARCHIVES, TREES_MADE = 1_000, 4_000
"""Mutations, 5,000 in all."""


def import_bytes(
    content: bytes, limits: Limits = LIMITS, *, outside_links: bool = False
) -> tuple[Mapping[str, TreeEntry], dict[bytes, bytes]]:
    """Import an archive; return its entries, and their objects."""
    unpacking = ArchiveReader(io.BytesIO(content), limits, outside_links=outside_links)
    parts: list[Packed] = [packed for part in unpacking.parts() for packed in part]
    return unpacking.result().entries, {
        packed.digest: unpack(packed.digest, packed.codec, packed.body) for packed in parts
    }


def write_tree(
    root: Path, entries: Mapping[str, TreeEntry], bodies: Mapping[bytes, bytes], limits: Limits = LIMITS
) -> None:
    """Restore a tree with all validation."""
    validation.check(entries, limits, known={})
    existing = current_state.read_directory(str(root), Tree(entries), now=IgnoreRules([]), limits=limits).entries
    plan = restore.plan(entries, existing, validation.check(entries, limits, known=existing))
    steps = restore.restore(str(root), plan, entries)
    try:
        next(steps)
        while True:
            steps.send(bodies)
    except StopIteration:
        pass


class Around:
    """A root with canaries around it, which are checked after each test."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "around" / "root"
        self.root.mkdir(parents=True)
        put(self.root.parent, "canary", b"untouched", at_ns=SECOND_NS)
        put(self.root.parent, "outside/canary", b"untouched", at_ns=SECOND_NS)
        os.utime(self.root.parent / "outside", ns=(1, 1))
        self.before: Fingerprint = surroundings(self.root)

    def is_untouched(self) -> bool:
        return surroundings(self.root) == self.before

    def clear(self) -> None:
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.fixture
def around(tmp_path: Path) -> Around:
    return Around(tmp_path)


def test_at_least_sixty_hostile_archives_are_tested() -> None:
    assert len(ESCAPES) + len(BYTES) >= 60


@pytest.mark.parametrize("name", [*ESCAPES, *BYTES])
def test_a_hostile_archive_is_refused_and_leaves_nothing(name: str, around: Around) -> None:
    content = archive(*ESCAPES[name]) if name in ESCAPES else BYTES[name]()
    with pytest.raises(InvalidInput) as caught:
        write_tree(around.root, *import_bytes(content))
    assert str(caught.value)
    assert around.is_untouched()
    assert fingerprint(around.root) == {}
    assert not Path("/tmp/loot").exists()


def test_the_store_refuses_hostile_archives_and_records_nothing(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        run = acme.runs.start(acme.sessions.create().id).id
        file = tmp_path / "archive.tar.zst"
        for name, content in hostile():
            file.write_bytes(content)
            with pytest.raises(InvalidInput):
                acme.workspaces.import_archive(run, file)
            assert [*acme.snapshots.list()] == [], name
        file.write_bytes(packed(harmless()))
        assert acme.workspaces.import_archive(run, file).snapshot.kind == "imported"


def test_a_harmless_archive_is_restored(around: Around) -> None:
    entries, bodies = import_bytes(packed(harmless()))
    write_tree(around.root, entries, bodies)
    assert around.is_untouched()
    assert (around.root / "d" / "link").read_bytes() == LOOT * 40
    assert (around.root / "second").read_bytes() == (around.root / "larger").read_bytes()
    assert os.stat(around.root / "second").st_nlink == 1, "no link was created"
    named = os.stat(os.fsencode(around.root) + b"/\xc3\xa4\xc3\xb6\xc3\xbc \xff")
    assert (named.st_mtime_ns, named.st_size) == (1_234_567_890_123_456_789, 5)


def test_missing_parent_directories_are_created(around: Around) -> None:
    write_tree(around.root, *import_bytes(archive(member("a/b/c", LOOT), folder("./a"), folder("."))))
    assert (around.root / "a" / "b" / "c").read_bytes() == LOOT
    assert sorted(fingerprint(around.root)) == [b"a", b"a/b", b"a/b/c"]


def test_outside_links_are_accepted_if_allowed_and_never_followed(around: Around) -> None:
    content = archive(link("out", "../outside"), link("etc", "/etc"), member("file", LOOT))
    entries, bodies = import_bytes(content, outside_links=True)
    write_tree(around.root, entries, bodies)
    write_tree(around.root, {**entries, "more": replace(entries["file"], path="more")}, bodies)
    assert around.is_untouched()
    assert os.readlink(around.root / "etc") == "/etc"


def test_links_within_the_tree_are_accepted(around: Around) -> None:
    content = archive(
        folder("a/b"),
        link("a/b/up", "../.."),
        link("a/b/round", "up/a/b/up/a"),
        link("dangling", "no/where"),
        link("l", "l2"),
    )
    entries, _ = import_bytes(content)
    assert {path for path, entry in entries.items() if entry.kind == "symlink"} == {
        "a/b/up",
        "a/b/round",
        "dangling",
        "l",
    }


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (Limits(tree_entries=2), "tree_entries"),
        (Limits(tree_bytes=100), "tree_bytes"),
        (Limits(tree_path_bytes=5), "tree_path_bytes"),
        (Limits(tree_names_bytes=20), "tree_names_bytes"),
        (Limits(tree_depth=0), "tree_depth"),
    ],
)
def test_each_limit_has_a_name(limits: Limits, named: str) -> None:
    with raises(LimitExceeded, limit=named):
        import_bytes(packed(harmless()), limits)


def test_a_decompression_bomb_is_stopped_early() -> None:
    bomb = packed(raw(member("bomb", bytes(40 * 1024 * 1024))))
    tracemalloc.start()
    try:
        with raises(LimitExceeded, limit="archive_ratio"):
            import_bytes(bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()
    entries, _ = import_bytes(bomb, Limits(archive_ratio=100_000))
    assert entries["bomb"].size == 40 * 1024 * 1024


def test_missing_parent_directories_count_as_entries() -> None:
    names = [f"{number}/" + "d/" * 150 + "f" for number in range(100)]
    content = archive(*(member(name) for name in names), *(member("x") for _ in range(2)))
    with raises(LimitExceeded, limit="tree_entries"):  # and not the name that is there twice, at the end
        import_bytes(content, Limits(tree_entries=10_000))


def test_expensive_links_are_refused_after_bounded_work() -> None:
    """Forty links, each through all others and each with a target of two thousand steps: 80,000 steps for each of them."""
    around = "/".join(["d/.."] * 600)
    links = [link(f"l{number}", f"{around}/l{number + 1}") for number in range(39)]
    entries, _ = import_bytes(archive(folder("d"), *links), outside_links=True)
    looked_up = 0

    class Counting(dict[str, TreeEntry]):
        def get(self, *args: object) -> object:  # type: ignore[override]
            nonlocal looked_up
            looked_up += 1
            return super().get(*args)  # type: ignore[call-overload]

    with raises(LimitExceeded, limit="link_steps", maximum=validation.LINK_STEPS):
        validation.check_links(Counting(entries))
    assert looked_up <= validation.LINK_STEPS_FREE + validation.LINK_STEPS * len(links)


def test_archives_of_all_tar_formats_are_read() -> None:
    """ustar with a prefix, GNU with long names and binary numbers, pax with global records, and tar from before them."""
    long = "n" * 90 + "/" + "m" * 90 + "/file"
    info, content = member(long, LOOT, mtime=12)
    for style, seen in (
        (tarfile.USTAR_FORMAT, long),
        (tarfile.GNU_FORMAT, long),
        (tarfile.PAX_FORMAT, long),
    ):
        buffer = info.tobuf(style) + content + bytes(-len(content) % 512) + bytes(1024)
        entries, _ = import_bytes(packed(buffer))
        assert (entries[seen].size, entries[seen].mtime_ns) == (len(LOOT), 12 * SECOND_NS)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", pax_headers={"mtime": "7.25", "comment": "all of them"}) as made:
        made.addfile(*[member("a", LOOT)[0], io.BytesIO(LOOT)])
    assert import_bytes(packed(file.getvalue()))[0]["a"].mtime_ns == 7_250_000_000
    old = bytearray(member("before/")[0].tobuf(tarfile.USTAR_FORMAT))
    old[156:157], old[257:265], old[148:156] = b"\0", bytes(8), b" " * 8
    old[148:156] = b"%06o\0 " % sum(old)
    assert import_bytes(packed(bytes(old) + bytes(1024)))[0]["before"].kind == "dir"


def _damage(content: bytes, random: Random) -> bytes:
    """An archive with something wrong: bytes changed, moved, cut or said twice, and mostly a checksum that is right."""
    result = bytearray(content)
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(result))
        what = random.random()
        if what < 0.6:
            result[at] = random.choice((0, 0x2E, 0x2F, 0x35, 0x32, 0xFF, random.randrange(256)))
        elif what < 0.8:
            name = random.choice((b"../x", b"/tmp/loot", b"d/../../x", b"a\0b", b"d/link/x", b"d"))
            block = at // 512 * 512
            result[block : block + 100] = name.ljust(100, b"\0")
        elif what < 0.9:
            block, other = at // 512 * 512, random.randrange(len(result)) // 512 * 512
            result[block : block + 512] = result[other : other + 512]
        else:
            result[at:] = result[at + random.randrange(700) :]
        if not result:
            return b""
    if random.random() < 0.9:
        for block in range(0, len(result) - 511, 512):
            if result[block + 257 : block + 262] == b"ustar":
                result[block + 148 : block + 156] = b" " * 8
                result[block + 148 : block + 156] = b"%06o\0 " % sum(result[block : block + 512])
    return bytes(result)


def _try_damaged(around: Around, seed: int, count: int) -> tuple[int, int]:
    good, random = harmless(), Random(seed)
    refused = accepted = 0
    for number in range(count):
        content = _damage(good, random)
        try:
            entries, bodies = import_bytes(packed(content))
        except HoldfastError:
            refused += 1
            continue
        accepted += 1
        if accepted % 8 == 0:  # the disk is what takes time
            write_tree(around.root, entries, bodies)
            assert around.is_untouched(), f"seed {seed}, number {number}"
            around.clear()
    assert around.is_untouched()
    return refused, accepted


def test_thousands_of_damaged_archives_put_nothing_outside(around: Around) -> None:
    refused, accepted = _try_damaged(around, 1, ARCHIVES)
    assert refused > ARCHIVES / 4
    assert accepted > ARCHIVES / 50
    assert not Path("/tmp/loot").exists()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_a_million_damaged_archives_put_nothing_outside(around: Around, seed: int) -> None:
    _try_damaged(around, 100 + seed, 125_000)


# Hostile trees in the store


def entry(path: str, kind: str = "file", **fields: object) -> TreeEntry:
    body = fields.pop("body", LOOT)
    assert isinstance(body, bytes)
    made = TreeEntry(path, kind, 0o644, SECOND_NS)  # type: ignore[arg-type]
    if kind == "file":
        lies_in = digest_of(body)
        made = replace(made, size=len(body), digest=lies_in, pieces=(ContentPiece(lies_in, 0, len(body)),))
    if kind == "symlink":
        made = replace(made, target="elsewhere")
    return replace(made, **fields)


def tree(*entries: TreeEntry) -> dict[str, TreeEntry]:
    return {entry.path: entry for entry in entries}


TREES: dict[str, dict[str, TreeEntry]] = {
    "a parent step": tree(entry("../loot")),
    "absolute": tree(entry("/tmp/loot")),
    "here": tree(entry(".")),
    "nothing": tree(entry("")),
    "a NUL": tree(entry("a\0b")),
    "a lone surrogate": tree(entry("\ud800")),
    "under another name": {"inside": entry("../loot")},
    "without its directory": tree(entry("a/b")),
    "in a file": tree(entry("a"), entry("a/b")),
    "in a link": tree(entry("a", "symlink", target="/tmp"), entry("a/loot")),
    "a device": tree(entry("null", "device")),
    "set-uid": tree(entry("sh", mode=0o4755)),
    "set-gid": tree(entry("sh", mode=0o2755)),
    "an invalid mode": tree(entry("a", mode=0o100644)),
    "a mode below zero": tree(entry("a", mode=-1)),
    "a time beyond all": tree(entry("a", mtime_ns=2**63)),
    "a size it has not": tree(entry("a", size=10**9)),
    "pieces below zero": tree(entry("a", size=0, pieces=(ContentPiece(b"x", 0, 5), ContentPiece(b"x", 0, -5)))),
    "a piece before its object": tree(entry("a", pieces=(ContentPiece(digest_of(LOOT), -5, len(LOOT)),))),
    "a directory with content": tree(entry("a", "dir", size=5)),
    "a link to nothing": tree(entry("a", "symlink", target="")),
    "a link with a NUL": tree(entry("a", "symlink", target="a\0b")),
    "a link to a surrogate": tree(entry("a", "symlink", target="\ud800")),
}


@pytest.mark.parametrize("name", TREES)
def test_a_hostile_tree_is_refused_before_anything_is_written(name: str, around: Around) -> None:
    *_, refused = TREES[name]
    with raises(InvalidInput, field=refused):
        write_tree(around.root, TREES[name], {digest_of(LOOT): LOOT})
    assert fingerprint(around.root) == {}
    assert around.is_untouched()


def test_thousands_of_damaged_trees_put_nothing_outside(around: Around) -> None:
    names = [
        "a",
        "a/b",
        "..",
        "../x",
        "/tmp/loot",
        "a/../..",
        "b",
        "a\0",
        ".",
        "a/b/c",
        "\udcff",
        "b/",
        "canary",
        "a//b",
    ]
    random, bodies = Random(7), {digest_of(LOOT): LOOT}
    result = 0
    for _ in range(TREES_MADE):
        kinds = [random.choice(("file", "dir", "symlink")) for _ in range(random.randint(1, 5))]
        made = [entry(random.choice(names), kind) for kind in kinds]
        made = [
            replace(entry, target=random.choice(("..", "/tmp", "a", "../outside")))
            if entry.kind == "symlink"
            else entry
            for entry in made
        ]
        try:
            validation.check(tree(*made), LIMITS, known={})
        except InvalidInput:
            continue
        result += 1
        if result % 4 == 0:
            write_tree(around.root, tree(*made), bodies)  # over whatever the last one has left there
            assert around.is_untouched()
    assert result > 100
    assert not Path("/tmp/loot").exists()


def test_links_created_during_a_restore_are_not_followed(around: Around, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every moment at which a directory is opened, another process replaces it by a link that leads out."""
    wanted = tree(entry("d", "dir"), entry("d/e", "dir"), entry("d/e/canary"), entry("d/canary"))
    opened = os.open
    for turn in range(12):
        around.clear()
        seen = 0

        def disturbed(path: object, flags: int, *rest: object, turn: int = turn, **how: object) -> int:
            nonlocal seen
            if path in ("d", "e") and how.get("dir_fd") is not None:
                seen += 1
                if seen == turn + 1:
                    there = around.root / ("d" if path == "d" else "d/e")
                    if there.is_dir() and not there.is_symlink():
                        shutil.rmtree(there)
                        there.symlink_to(around.root.parent / "outside")
            return opened(path, flags, *rest, **how)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", disturbed)
            try:
                write_tree(around.root, wanted, {digest_of(LOOT): LOOT})
            except (HoldfastError, OSError):
                pass
        assert around.is_untouched(), turn
