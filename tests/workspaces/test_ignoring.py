"""Ignore rules, compared with git's own on many patterns and paths."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest

from holdfast.errors import InvalidInput
from holdfast.trees.ignore_rules import FILE, MAX_FILE, MAX_PATTERNS, IgnoreRules, in_root
from tests.errors import raises

PARTS = (
    "a", "b", "ab", "foo", "bar", "*", "**", "?", "*.py", "f*", "*o", "[ab]", "[!a]", "[^b]", "[a-c]", "[]a]", "[a-]",
    "\\a", "\\*", "a\\", "[", "[a", "[!", "[[:alpha:]]", "[[:digit:]x]", "[[:nope:]]", "a**b", "***", "x y", "#x", "!x", "[z-a]",
    "[\\]]", "f[o-]o", "[a/b]",
)  # fmt: skip
NAMES = (
    "a",
    "b",
    "c",
    "ab",
    "ba",
    "foo",
    "bar",
    "x.py",
    "foo.py",
    "*",
    "#x",
    "!x",
    "x y",
    "]",
    "-",
    "5",
    "a]",
    "fo",
    "\\a",
    "a\\",
)


def pattern(random: Random) -> str:
    made = "/".join(random.choice(PARTS) for _ in range(random.choice((1, 1, 1, 2, 2, 3))))
    if random.random() < 0.25:
        made = "/" + made
    if random.random() < 0.25:
        made += "/"
    if random.random() < 0.2:
        made = "!" + made
    return made + random.choice(("", "", "", " ", "\\ ", "  "))


def path(random: Random) -> str:
    return "/".join(random.choice(NAMES) for _ in range(random.choice((1, 2, 2, 3, 4))))


def says(ignores: IgnoreRules, path: str, *, is_folder: bool) -> bool:
    """Return whether a path is ignored, by itself or with one of its parent directories."""
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts))]
    return any(ignores(parent, True) for parent in above) or ignores(path, is_folder)


def git_says(root: Path, paths: list[str]) -> dict[str, bool]:
    """What git makes of paths: the last pattern that matches, in the path or above it, decides."""
    command = ["git", "-c", "core.excludesFile=", "check-ignore", "--no-index", "-v", "-n", "-z", "--stdin"]
    arguments = "\0".join(paths).encode()
    outcome = subprocess.run(command, input=arguments, cwd=root, capture_output=True, check=False)
    assert outcome.returncode in (0, 1), outcome.stderr
    fields = outcome.stdout.decode().split("\0")[:-1]
    result = {}
    for _, _, matched, asked in zip(*[iter(fields)] * 4, strict=True):
        result[asked] = bool(matched) and not matched.startswith("!")
    return result


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 200))
def test_very_many_patterns_match_the_same_paths_as_git(tmp_path: Path, seed: int) -> None:
    check_with_git(tmp_path, seed)


@pytest.mark.parametrize("seed", range(2))
def test_many_patterns_match_the_same_paths_as_git(tmp_path: Path, seed: int) -> None:
    check_with_git(tmp_path, seed)


def check_with_git(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    paths = sorted({path(random) for _ in range(300)})
    for name in paths:
        is_folder = random.random() < 0.3 or any(other.startswith(f"{name}/") for other in paths)
        (tmp_path / name if is_folder else (tmp_path / name).parent).mkdir(parents=True, exist_ok=True)
        if not is_folder:
            (tmp_path / name).touch()
    for _ in range(25):
        patterns = [pattern(random) for _ in range(random.choice((1, 1, 2, 5, 12)))]
        (tmp_path / ".gitignore").write_text("\n".join(patterns) + "\n")
        ignores = IgnoreRules(patterns)
        git_verdicts = git_says(tmp_path, paths)
        mine = {path: says(ignores, path, is_folder=(tmp_path / path).is_dir()) for path in git_verdicts}
        assert mine == git_verdicts, patterns


def test_patterns_that_git_is_known_for() -> None:
    ignores = IgnoreRules(
        ["*.o", "!keep.o", "build/", "/top", "a/**/z", "**/deep", "logs/**", "doc/*.txt", "\\#file", "end\\ "]
    )
    ignored = ["x.o", "d/x.o", "top", "a/z", "a/b/c/z", "q/w/deep", "deep", "logs/a/b", "doc/a.txt", "#file", "d/end "]
    kept = ["keep.o", "d/keep.o", "build", "d/top", "logs", "doc/d/a.txt", "end", "x/a/z"]
    assert [name for name in ignored if not ignores(name, False)] == []
    assert [name for name in kept if ignores(name, False)] == []
    assert ignores("build", True)
    assert ignores("d/build", True)


def test_empty_lines_and_comments_ignore_nothing() -> None:
    for line in ("", "   ", "# comment", "/", "!", "!/"):
        assert not IgnoreRules([line])("anything", True), line


def test_names_that_are_not_utf8_can_be_matched() -> None:
    assert IgnoreRules(["*.\udcff"])("a.\udcff", False)
    assert IgnoreRules(["a?b"])("a\udcffb", False)
    assert IgnoreRules(["?"])("é", False)


def test_bad_patterns_are_refused() -> None:
    for arguments in ("*.py", b"x", 7, [7], [None]):
        with pytest.raises(InvalidInput):
            IgnoreRules(arguments)  # type: ignore[arg-type]
    with raises(InvalidInput, field="ignore"):
        IgnoreRules(["a"] * (MAX_PATTERNS + 1))


def test_the_ignore_file_in_the_root_is_read(tmp_path: Path) -> None:
    assert in_root(str(tmp_path)) == []
    file = tmp_path / ".holdfastignore"
    file.write_bytes(b"a\r\nb\n\xff\n")
    assert in_root(str(tmp_path)) == ["a", "b", "\ufffd"]
    file.write_bytes(b"x" * (MAX_FILE + 1))
    with raises(InvalidInput, field=FILE, __cause__=None):
        in_root(str(tmp_path))
    file.unlink()
    file.symlink_to("/etc/passwd")
    with raises(InvalidInput, field=FILE) as caught:
        in_root(str(tmp_path))
    assert isinstance(caught.value.__cause__, OSError)
