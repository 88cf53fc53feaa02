"""Benchmark of snapshots of a file tree: the first one, the next ones after edits, a restore, and a restore in place.

The tree contains packages of this environment, in the order of their names, up to about 5,000 files and 100 MB. Between two
snapshots some files are extended, added or removed, the same for all contenders. The contenders are tar with zstd, git, restic
and borg, called with usual options. The floor is a walk that calls stat on every file.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from .case import Case, Job, Result
from .workload import SEED

GROUP, MANY_GROUP = "workspace", "workspace-many"
FILES, BYTES, LARGEST = 5_000, 100_000_000, 8_000_000
SNAPSHOTS = 10
MANY = 100_000
RESTORES = 3
NEEDED = {"restic": "restic", "borg": "borgbackup", "git": "git", "zstd": "zstd"}
"""Programs and the Debian packages that contain them."""
_PAGES = ("page_count", "freelist_count", "page_size")


class Contender(Protocol):
    """A program or library that takes snapshots of a tree."""

    def take(self, number: int) -> None: ...
    def restore(self, place: Path) -> None: ...
    def prepare(self) -> None: ...
    def back(self, number: int) -> None: ...
    def rewind(self, number: int) -> None: ...


def cases() -> list[Case]:
    """Return all contenders on the same tree, and Holdfast on a large tree."""
    return [*(Case(GROUP, name, engine="none") for name in CONTENDERS), Case(MANY_GROUP, "Holdfast", kept=True)]


def run(job: Job) -> Result:
    """Create the tree, take the snapshots and restore them."""
    place = Path(job.place)
    if job.group == MANY_GROUP:
        return _many(place, fresh=job.fresh)
    tree, store = place / "tree", place / "store"
    make_tree(tree)
    store.mkdir()
    contender = CONTENDERS[job.contender](tree, store)
    edits, walks, took, sizes, changes = Edits(tree), [], [], [_size(store)], 0
    for number in range(SNAPSHOTS):
        if number:
            changes += edits.make(number)
        os.sync()
        walks.append(_timed(lambda: walk(tree)))
        took.append(_timed(lambda number=number: contender.take(number)))  # type: ignore[misc]
        sizes.append(_size(store))
    first, later = sizes[1] - sizes[0], sizes[-1] - sizes[1]
    result = {
        "first_ms": took[0] * 1e3,
        "next_ms": statistics.median(took[1:]) * 1e3,
        "first_bytes": first,
        "next_bytes": later / (SNAPSHOTS - 1),
        "walk_ratio": statistics.median(a / b for a, b in zip(took[1:], walks[1:], strict=True)),
        "changes_ratio": later / changes,
    }
    return {name: round(value, 4) for name, value in {**result, **_restoring(contender, tree, place)}.items()}


def _restoring(contender: Contender, tree: Path, place: Path) -> Result:
    """Measure restoring the last snapshot into a new directory, and switching between the last two in place."""
    took = []
    for number in range(RESTORES):
        os.sync()
        target = place / f"out {number}"
        took.append(_timed(lambda target=target: contender.restore(target)))  # type: ignore[misc]
        _check_same(tree, target)
        if number < RESTORES - 1:
            shutil.rmtree(target)
    collected = {"restore_ms": statistics.median(took) * 1e3}
    contender.prepare()
    for name, return_to in (("back_ms", contender.back), ("rewind_ms", contender.rewind)):
        os.sync()  # so that no contender waits for earlier writes
        try:
            took = [_timed(lambda turn=turn: return_to(SNAPSHOTS - 2 + turn % 2)) for turn in range(6)]  # type: ignore[misc]  # noqa: B023
        except NotImplementedError:
            break
        _check_same(tree, target)
        collected[name] = statistics.median(took) * 1e3
    return collected


def _many(place: Path, *, fresh: bool) -> Result:
    """Measure a snapshot of 100,000 unchanged files."""
    tree, store = place / "tree", place / "store"
    if fresh:
        store.mkdir()
        for number in range(MANY):
            path = tree / f"{number % 100}" / f"{number // 100 % 10}" / f"file {number}.txt"
            if number < 1_000:
                path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%d\n" % number)
    contender = Holdfast(tree, store)
    contender.take(0)
    contender.take(1)  # Holdfast reads files once more if they changed just before the snapshot
    ratios = []
    for number in range(2, 9):
        floor = _timed(lambda: walk(tree))
        ratios.append(_timed(lambda number=number: contender.take(number)) / floor)  # type: ignore[misc]
    return {"walk_ratio": round(statistics.median(ratios), 3)}


def walk(tree: Path) -> int:
    """Read every directory and stat every file, as the floor of a snapshot; return the number of files."""
    count, waiting = 0, [str(tree)]
    while waiting:
        with os.scandir(waiting.pop()) as collected:
            for item in collected:
                if item.is_dir(follow_symlinks=False):
                    waiting.append(item.path)
                else:
                    item.stat(follow_symlinks=False)
                    count += 1
    return count


def make_tree(root: Path) -> None:
    """Copy packages of this environment in the order of their names, without generated files."""
    source = Path(sysconfig.get_paths()["purelib"])
    count = size = 0
    for package in sorted(path for path in source.iterdir() if path.is_dir() and not path.name.endswith(".dist-info")):
        for folder, folders, files in os.walk(package):
            folders[:] = sorted(set(folders) - {"__pycache__"})
            for name in sorted(files):
                path = Path(folder, name)
                length = path.lstat().st_size
                if count >= FILES or length > LARGEST or size + length > 1.3 * BYTES:
                    continue
                target = root / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target, follow_symlinks=False)
                count, size = count + 1, size + length


class Edits:
    """The edits between two snapshots: 15 files are extended, 3 added and 2 removed."""

    def __init__(self, tree: Path) -> None:
        self._random = random.Random(SEED)
        self._files = sorted(tree.rglob("*.py"))

    def make(self, number: int) -> int:
        """Make the edits; return the size of the changed files, each compressed separately."""
        import zstandard

        draw, packer = self._random, zstandard.ZstdCompressor(level=3)
        changed = draw.sample(self._files, 15)
        for path in changed:
            with path.open("a") as file:
                file.write(f"# edit {number} {draw.random()}\n")
        for item in range(3):
            path = draw.choice(self._files).with_name(f"new_{number}_{item}.py")
            path.write_text("# new\n" + "".join(draw.choice("abcdefgh \n") for _ in range(3_000)))
            changed.append(path)
        for path in draw.sample(sorted(set(self._files) - set(changed)), 2):
            path.unlink()
            self._files.remove(path)
            if not any(path.parent.iterdir()):  # git does not store empty directories
                path.parent.rmdir()
        return sum(len(packer.compress(path.read_bytes())) for path in changed)


class Holdfast:
    """Holdfast on a SQLite file."""

    def __init__(self, tree: Path, store: Path) -> None:
        import holdfast

        self.tree, self._taken = tree, dict[int, str]()
        self._acme = holdfast.Holdfast(str(store / "agents.db")).tenant("acme")
        self._run = self._acme.runs.start(self._acme.sessions.create().id).id

    def take(self, number: int) -> None:
        captured = self._acme.workspaces.capture(self._run, self.tree, step=number, ignore_defaults=False)
        self._taken[number] = captured.snapshot.id

    def restore(self, place: Path) -> None:
        self._acme.workspaces.restore(self._taken[SNAPSHOTS - 1], place)

    def back(self, number: int) -> None:
        self._acme.workspaces.restore(self._taken[number], self.tree, replace=True)

    def rewind(self, number: int) -> None:
        """Rewind the tree, the run and its conversation, or redo that."""
        if number == SNAPSHOTS - 1:
            self._acme.workspaces.redo(self._run, self.tree)
        else:
            self._acme.workspaces.rewind(self._run, number + 1, self.tree)

    def prepare(self) -> None:
        """Record a step of the run for each snapshot."""
        claimed = self._acme.leases.claim("bench", run_id=self._run)
        assert claimed is not None
        for number, snapshot in self._taken.items():
            state, epoch = {"number": number}, claimed.epoch
            self._acme.runs.step(self._run, epoch=epoch, iteration=number + 1, state=state, snapshot=snapshot)
        self._acme.leases.release(self._run, epoch=claimed.epoch)


class Program:
    """A contender that is a command-line program."""

    environment: dict[str, str]

    def __init__(self, tree: Path, store: Path) -> None:
        self.tree, self.store = tree, store
        self.environment = {}
        self.begin()

    def begin(self) -> None:
        """Prepare the store for the first snapshot."""

    def call(self, *command: str | Path, at: Path | None = None) -> None:
        """Run a command; raise ``CalledProcessError`` if it fails."""
        line = [str(part) for part in command]
        environment = {**os.environ, **self.environment}
        subprocess.run(line, cwd=at or self.tree, env=environment, check=True, capture_output=True)

    def shell(self, line: str) -> None:
        """Run a shell pipeline; raise ``CalledProcessError`` if it fails."""
        subprocess.run(["bash", "-o", "pipefail", "-c", line], env={**os.environ, **self.environment}, check=True)

    def prepare(self) -> None:
        """Prepare the store for restoring in place."""

    def back(self, number: int) -> None:
        raise NotImplementedError

    def rewind(self, number: int) -> None:
        """Rewind more than the files, which only Holdfast supports."""
        raise NotImplementedError


class Tar(Program):
    """tar with zstd, one archive per snapshot."""

    def take(self, number: int) -> None:
        archive = self.store / f"{number}.tar.zst"
        self.shell(f"tar -C '{self.tree}' -cf - . | zstd -q -3 -T1 -o '{archive}' && sync '{archive}'")

    def restore(self, place: Path) -> None:
        place.mkdir()
        self.shell(f"zstd -q -dc '{self.store}/{SNAPSHOTS - 1}.tar.zst' | tar -C '{place}' -xf -")


class Git(Program):
    """git, one commit per snapshot."""

    def begin(self) -> None:
        person = {
            f"GIT_{role}_{what}": "bench@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        work = {"GIT_DIR": str(self.store / "git"), "GIT_WORK_TREE": str(self.tree), "GIT_CONFIG_GLOBAL": os.devnull}
        self.environment = {**person, **work}
        self.call("git", "init", "-q")
        self.call("git", "config", "gc.auto", "0")

    def take(self, number: int) -> None:
        self.call("git", "add", "-A", "-f", ".")
        self.call("git", "commit", "-q", "-m", f"{number}")
        self.call("git", "tag", f"s{number}")

    def restore(self, place: Path) -> None:
        place.mkdir()
        self.shell(f"git archive s{SNAPSHOTS - 1} | tar -C '{place}' -xf -")

    def back(self, number: int) -> None:
        self.call("git", "reset", "-q", "--hard", f"s{number}")
        self.call("git", "clean", "-fdxq")


class Restic(Program):
    """restic, one backup per snapshot, always encrypted."""

    def begin(self) -> None:
        where = {"RESTIC_REPOSITORY": str(self.store / "restic"), "RESTIC_CACHE_DIR": str(self.store.parent / "cache")}
        self.environment = {**where, "RESTIC_PASSWORD": "bench"}
        self.call("restic", "init", "--repository-version", "2")

    def take(self, number: int) -> None:
        self.call("restic", "-q", "backup", ".", "--tag", f"{number}")

    def restore(self, place: Path) -> None:
        self.call("restic", "-q", "restore", "latest", "--target", place)


class Borg(Program):
    """borg, one archive per snapshot, not encrypted."""

    def begin(self) -> None:
        self.environment = {
            "BORG_BASE_DIR": str(self.store.parent / "borg"),
            "BORG_REPO": str(self.store / "repository"),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }
        self.call("borg", "init", "-e", "none")

    def take(self, number: int) -> None:
        self.call("borg", "create", "-C", "zstd,3", f"::{number}", ".")

    def restore(self, place: Path) -> None:
        place.mkdir()
        self.call("borg", "extract", f"::{SNAPSHOTS - 1}", at=place)


class Copy(Program):
    """The floor of a restore: a walk as the snapshot, and a plain copy. It stores nothing."""

    def take(self, number: int) -> None:
        walk(self.tree)

    def restore(self, place: Path) -> None:
        shutil.copytree(self.tree, place, symlinks=True)


CONTENDERS: dict[str, Callable[[Path, Path], Any]] = {
    "Holdfast": Holdfast,
    "tar and zstd": Tar,
    "git": Git,
    "restic": Restic,
    "borg": Borg,
    "walk, copy": Copy,
}


def install() -> None:
    """Install the missing programs with apt-get, if possible."""
    missing = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if missing:
        subprocess.run(["apt-get", "install", "-y", "-q", *missing], check=False, stdout=subprocess.DEVNULL)


def _check_same(tree: Path, other: Path) -> None:
    completed = subprocess.run(
        ["diff", "-rq", "--no-dereference", tree, other], capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise AssertionError(f"the restored tree differs: {completed.stdout[:200]}")


def _size(folder: Path) -> int:
    """Return the size of a folder. Of a database, count the used pages without the write-ahead log; skip caches."""
    collected = 0
    for at, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(".cache")]
        for name in files:
            path = os.path.join(at, name)
            if not name.endswith((".db-wal", ".db-shm")):
                collected += _pages(path) if name.endswith(".db") else os.lstat(path).st_size
    return collected


def _pages(path: str) -> int:
    """Return the size of the used pages of a database."""
    import apsw  # Holdfast's SQLite library: two in one process release each other's locks

    connection = apsw.Connection(path)
    try:
        count, free, size = (next(connection.execute(f"PRAGMA {name}"))[0] for name in _PAGES)
    finally:
        connection.close()
    return int((count - free) * size)


def _timed(call: Callable[[], object]) -> float:
    before = perf_counter()
    call()
    return perf_counter() - before
