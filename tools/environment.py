"""Create the Python environment that a make target needs, and print the path of its interpreter.

    python3 tools/environment.py run          .venv with requirements/run.txt
    python3 tools/environment.py test         .venv with requirements/test.txt, and the programs tests need
    python3 tools/environment.py bench        requirements/bench.txt, in the user's cache
    python3 tools/environment.py bench-adk    requirements/bench-adk.txt, in the user's cache
    python3 tools/environment.py bench-dbos   requirements/bench-dbos.txt, in the user's cache
    python3 tools/environment.py langgraph    requirements/langgraph.txt, in the user's cache
    python3 tools/environment.py langgraph-oldest   the oldest releases its extra allows, in the user's cache
    python3 tools/environment.py crewai       requirements/crewai.txt, in the user's cache
    python3 tools/environment.py kagent       requirements/kagent.txt, in the user's cache
    python3 tools/environment.py a2a          requirements/a2a.txt, in the user's cache
    python3 tools/environment.py kubernetes   requirements/kubernetes.txt, in the user's cache
    python3 tools/environment.py LANE-oldest  the same with the oldest release of the framework that its extra allows

It needs only the standard library. Every installed package is pinned by hash. An environment that matches its lock files is
reused, so a second call is fast.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
MIN_PYTHON_VERSION = (3, 11)
IN_TREE = {"run": ("run",), "test": ("test", "run")}
"""Environments in .venv, each with the environments it includes: ``test`` includes everything in ``run``."""
IN_CACHE = (
    *("bench", "bench-adk", "bench-dbos"),
    *("langgraph", "langgraph-oldest", "crewai", "crewai-oldest", "kagent", "a2a", "a2a-oldest"),
    *("kubernetes", "kubernetes-oldest"),
)


def main() -> int:
    if sys.version_info < MIN_PYTHON_VERSION:
        version = ".".join(map(str, sys.version_info[:3]))
        return _fail(f"Holdfast needs Python 3.11 or newer, but this is {version}: try `make PYTHON=python3.12 ...`")
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in IN_TREE and name not in IN_CACHE:
        return _fail(f"name one environment: {', '.join([*IN_TREE, *IN_CACHE])}")
    try:
        folder = ensure(name)
    except subprocess.CalledProcessError as error:
        return _fail(f"could not create the environment {name!r}: {' '.join(map(str, error.cmd))} failed")
    if name == "test":
        ensure_programs()
    print(folder / "bin" / "python")
    return 0


def ensure(name: str) -> Path:
    """Create an environment if it does not match its lock files; return its folder."""
    folder = ROOT / ".venv" if name in IN_TREE else cache() / f"{name}-{fingerprint(name)}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready(folder, name):
            _build(folder, name)
            for covered in IN_TREE.get(name, (name,)):
                _stamp(folder, covered).write_text(fingerprint(covered))
    return folder


def is_ready(folder: Path, name: str) -> bool:
    """Return whether an environment was completely built from the current lock files."""
    stamp = _stamp(folder, name)
    return (folder / "bin" / "python").exists() and stamp.exists() and stamp.read_text() == fingerprint(name)


def fingerprint(name: str) -> str:
    """Return a hash of the lock files, the interpreter and, for .venv, of pyproject.toml and the path."""
    parts = [(LOCKS / f"{item}.txt").read_bytes() for item in (name, "build", "installer")]
    parts.append(sys.version.encode())
    if name in IN_TREE:
        parts += [(ROOT / "pyproject.toml").read_bytes(), str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def cache() -> Path:
    """Return the folder of the environments that clones share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def _build(folder: Path, name: str) -> None:
    start = time.monotonic()
    _say(f"creating {folder} from requirements/{name}.txt ...")
    python = folder / "bin" / "python"
    if not _is_this_python(python):
        venv.create(folder, with_pip=False, clear=True, symlinks=True)
    pip = _pip(python)
    quick = _try([*pip, *_PIP, "-r", LOCKS / "installer.txt"])

    def install(what: list, *, hashes: bool = True) -> None:
        required = ["--require-hashes"] if hashes else []
        uv = [python.with_name("uv"), "pip", "install", "--quiet", "--python", python, *required, *what]
        if not (quick and _try(uv)):
            _run([*pip, *(item for item in _PIP if hashes or item != "--require-hashes"), *what])

    install(["-r", LOCKS / f"{name}.txt"])
    if name in IN_TREE:
        install(["-r", LOCKS / "build.txt"])
        install(["--no-deps", "--no-build-isolation", "--editable", ROOT], hashes=False)
    _say(f"... created in {time.monotonic() - start:.0f} s")


_PIP = ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--require-hashes"]


def _pip(python: Path) -> list:
    """Return a pip command for an environment. This Python's own pip is preferred, because installing another is slow."""
    for command in ([sys.executable, "-m", "pip", "--python", python], [python, "-m", "pip"]):
        if _try([*command, "--version"], quiet=True):
            return command
    _run([python, "-m", "ensurepip"])
    return [python, "-m", "pip"]


def _is_this_python(python: Path) -> bool:
    """Return whether an environment exists and has the same Python version as the current interpreter."""
    if not python.exists():
        return False
    output = subprocess.run([python, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
    return output.stdout.strip() == sys.version.strip()


def _try(command: list, *, quiet: bool = False) -> bool:
    """Return whether a command succeeds; its output is shown only if it fails."""
    completed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if completed.returncode and not quiet:
        _say(completed.stdout.rstrip())
    return completed.returncode == 0


def _run(command: list) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


def ensure_programs() -> None:
    """Install the programs that the tests need, if possible; tests without their program fail with a message."""
    expected = {"pgbouncer": "pgbouncer"}
    if sys.version_info >= (3, 13) or sys.platform != "linux":
        expected["redis"] = "redis-server"  # elsewhere a Python package provides it
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    excluded = os.environ.get("HOLDFAST_WITHOUT", "").split(",")
    for name, program in expected.items():
        if name in excluded or shutil.which(program, path=path):
            continue
        if not _install_program(program):
            _say(f"{program} is missing; its tests will fail unless HOLDFAST_WITHOUT={name} is set")


def _install_program(program: str) -> bool:
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return False
    _say(f"installing {program} with apt-get ...")
    # The runlevel keeps the package from starting its service.
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", "-qq", program]
    for command in (install, ["apt-get", "update", "-qq"], install):
        completed = subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if completed.returncode == 0 and command is install:
            return True
    return False


def _stamp(folder: Path, name: str) -> Path:
    return folder / f".holdfast-{name}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _fail(text: str) -> int:
    _say(text)
    return 1


if __name__ == "__main__":
    sys.exit(main())
