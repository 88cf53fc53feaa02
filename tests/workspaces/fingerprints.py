"""The properties of a directory tree that a restore must preserve, and random changes of one."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path
from random import Random
from typing import Any

Fingerprint = dict[bytes, tuple[Any, ...]]
SECOND_NS = 1_000_000_000
NAMES = [b"a", b"b.txt", b"c d", b"\xff\xfe", "grün".encode(), b"-x", b"%", b"A"]


def fingerprint(root: Path, *, times: bool = True, content: bool = True) -> Fingerprint:
    """Every entry below a directory: kind, mode, time, and content or target."""
    result: Fingerprint = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            existing = os.lstat(path)
            mode, time = stat.S_IMODE(existing.st_mode), existing.st_mtime_ns if times else 0
            key = os.path.relpath(path, os.fsencode(root))
            if stat.S_ISLNK(existing.st_mode):
                result[key] = ("symlink", time, os.readlink(path))
            elif stat.S_ISDIR(existing.st_mode):
                result[key] = ("dir", mode, time)
            elif stat.S_ISREG(existing.st_mode):
                with open(path, "rb") as file:
                    message = hashlib.blake2b(file.read()).hexdigest() if content else ""
                result[key] = ("file", mode, time, existing.st_size, message)
            else:
                result[key] = ("other", stat.S_IFMT(existing.st_mode))
    return result


def surroundings(root: Path) -> Fingerprint:
    """All entries beside a directory, with the times of its surroundings."""
    return {
        path: message
        for path, message in fingerprint(root.parent).items()
        if path != os.fsencode(root.name) and not path.startswith(os.fsencode(root.name) + b"/")
    }


def put(root: Path, name: str | bytes, content: bytes = b"", *, mode: int = 0o644, at_ns: int = 0) -> Path:
    """A file, with the directories it needs."""
    path = root / os.fsdecode(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    path.write_bytes(content)
    path.chmod(mode)
    if at_ns:
        os.utime(path, ns=(at_ns, at_ns))
    return path


def grow(root: Path, random: Random, count: int = 12) -> None:
    """Create a small tree with entries of every kind."""
    root.mkdir(exist_ok=True)
    for _ in range(count):
        change(root, random)


def change(root: Path, random: Random) -> None:
    """Apply one random change to a tree."""
    folders = [root, *(Path(folder) for folder, _, _ in os.walk(root) if Path(folder) != root)]
    folder = random.choice(folders)
    path = folder / os.fsdecode(random.choice(NAMES))
    paths = [Path(at) / name for at, below, files in os.walk(root) for name in [*below, *files]]
    what = random.choice(("write", "write", "write", "mkdir", "link", "remove", "chmod", "touch", "rename", "grow"))
    if what in ("write", "mkdir", "link"):
        _make(path, what, random)
    elif paths:
        _disturb(random.choice(paths), what, folder, random)


def _make(path: Path, what: str, random: Random) -> None:
    if path.is_dir() and not path.is_symlink():
        if what == "mkdir":
            return
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
    if what == "mkdir":
        path.mkdir()
    elif what == "link":
        path.symlink_to(random.choice(["a", "..", "../../nowhere", "/etc/passwd", "b.txt/x", "."]))
    else:
        size = random.choice((0, 1, 30, 5_000))
        put(path.parent, path.name, random.randbytes(size), mode=random.choice((0o600, 0o644, 0o755, 0o400)))


def _disturb(path: Path, what: str, folder: Path, random: Random) -> None:
    is_link = path.is_symlink()
    if what == "remove":
        shutil.rmtree(path) if path.is_dir() and not is_link else path.unlink()
    elif what == "chmod" and not is_link:
        path.chmod(random.choice((0o700, 0o755) if path.is_dir() else (0o600, 0o755, 0o444)))
    elif what == "touch":
        at = random.randrange(2**31) * SECOND_NS + random.randrange(SECOND_NS)
        os.utime(path, ns=(at, at), follow_symlinks=False)
    elif what == "grow" and path.is_file() and not is_link:
        with open(path, "ab") as file:
            file.write(random.randbytes(7))
    elif what == "rename" and not folder.is_relative_to(path):
        target = folder / f"moved {random.randrange(5)}"
        if not os.path.lexists(target):
            path.rename(target)
