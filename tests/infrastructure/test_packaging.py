"""Packaging: the wheel is complete, the locks are pinned, and the environment is rebuilt after a change."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("langgraph", "crewai", "kagent", "a2a", "kubernetes")
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)(?:\[[\w,-]+\])?==([^ ;\\]+)", re.MULTILINE)


def pinned(name: str) -> dict[str, str]:
    return dict(_PINNED.findall((ROOT / "requirements" / f"{name}.txt").read_text()))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=; ]", requirement)[0] for requirement in requirements}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_wheel_contains_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".sql", ".typed"}]
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert expected - set(wheel.namelist()) == set()
    assert "holdfast/py.typed" in expected
    assert any(name.endswith(".sql") for name in expected)


def test_wheel_contains_no_other_file(wheel: zipfile.ZipFile) -> None:
    others = [name for name in wheel.namelist() if not re.match(r"holdfast(-[\d.]+\.dist-info)?/", name)]
    assert others == []


def test_wheel_has_the_version_of_the_package(wheel: zipfile.ZipFile) -> None:
    import holdfast

    (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    assert f"\nVersion: {holdfast.__version__}\n" in wheel.read(metadata).decode()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_lock_pins_everything_by_hash(lock: Path) -> None:
    entries = re.split(r"\n(?=\S)", lock.read_text().strip())
    assert entries
    for entry in entries:
        assert _PINNED.match(entry), entry
        assert "--hash=sha256:" in entry, entry


def test_locks_cover_the_requirements_of_the_package() -> None:
    extras = PROJECT["optional-dependencies"]
    assert names([*PROJECT["dependencies"], *extras["server"], *extras["postgres"]]) - pinned("run").keys() == set()
    # Frameworks have environments of their own, each with a lock of its own.
    everything = [item for extra, expected in extras.items() if extra not in ("all", *FRAMEWORKS) for item in expected]
    assert names([*PROJECT["dependencies"], *everything]) - pinned("test").keys() == set()
    for extra in FRAMEWORKS:
        assert names([*PROJECT["dependencies"], *extras.get(extra, ())]) - pinned(extra).keys() == set()


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*-oldest.txt")), ids=lambda lock: lock.stem)
def test_an_oldest_lane_has_the_oldest_releases_that_its_extra_allows(lock: Path) -> None:
    expected = PROJECT["optional-dependencies"][lock.stem.removesuffix("-oldest")]
    oldest = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", item).groups() for item in expected)
    assert oldest.items() <= pinned(lock.stem).items()


@pytest.mark.parametrize("name", ["test", "bench"])
def test_the_documented_versions_are_the_installed_ones(name: str) -> None:
    run, other = pinned("run"), pinned(name)
    assert {package: other.get(package) for package in run} == run


def test_the_core_has_few_dependencies() -> None:
    assert names(PROJECT["dependencies"]) == {"apsw", "blake3", "msgspec", "uuid-utils", "zstandard"}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, looking at a copy of the locks."""
    spec = importlib.util.spec_from_file_location("environment", ROOT / "tools" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "requirements").mkdir()
    for name in ("run", "test", "bench", "build", "installer"):
        (tmp_path / "requirements" / f"{name}.txt").write_text("x==1\n")
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "LOCKS", tmp_path / "requirements")
    return module


def finished(environment: ModuleType, folder: Path, name: str) -> None:
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin" / "python").touch()
    environment._stamp(folder, name).write_text(environment.fingerprint(name))


def test_a_current_environment_is_not_rebuilt(environment: ModuleType, tmp_path: Path) -> None:
    finished(environment, tmp_path / ".venv", "run")
    assert environment.ensure("run") == tmp_path / ".venv"
    assert environment.is_ready(tmp_path / ".venv", "run")
    assert not environment.is_ready(tmp_path / ".venv", "test")


@pytest.mark.parametrize("changed", ["requirements/run.txt", "requirements/build.txt", "pyproject.toml"])
def test_environment_is_rebuilt_when_a_lock_changes(environment: ModuleType, tmp_path: Path, changed: str) -> None:
    finished(environment, tmp_path / ".venv", "run")
    (tmp_path / changed).write_text("x==2\n")
    assert not environment.is_ready(tmp_path / ".venv", "run")


def test_environment_in_use_is_not_cleared(environment: ModuleType, tmp_path: Path) -> None:
    here = Path(sys.executable)
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 2.7\n")
    other.chmod(0o755)
    assert environment._is_this_python(here)
    assert not environment._is_this_python(other)
    assert not environment._is_this_python(tmp_path / "missing")


def test_heavy_environments_are_shared_between_clones(
    environment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = environment.fingerprint("bench")
    (tmp_path / "pyproject.toml").write_text("changed")
    monkeypatch.setattr(environment, "ROOT", tmp_path / "elsewhere")
    assert environment.fingerprint("bench") == before
    assert environment.cache() == tmp_path / "cache" / "holdfast"
