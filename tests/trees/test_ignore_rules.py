"""Each part of an ignore pattern, one by one; ``tests/workspaces/test_ignoring.py`` compares many with git."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidInput
from holdfast.trees import ignore_rules
from holdfast.trees.ignore_rules import DEFAULT_IGNORE, FILE, IgnoreRules, in_root
from tests.errors import raises


def ignored(pattern: str, paths: str) -> str:
    """Return the files that one pattern ignores."""
    ignores = IgnoreRules([pattern])
    return " ".join(path for path in paths.split() if ignores(path, False))


@pytest.mark.parametrize(
    ("pattern", "paths", "matched"),
    [
        ("a", "a b/a b/c/a ab ba A", "a b/a b/c/a"),
        ("/a", "a b/a", "a"),
        ("b/a", "b/a c/b/a a", "b/a"),
        ("/b/a", "b/a c/b/a", "b/a"),
        ("*", "a b/a .hidden", "a b/a .hidden"),
        ("*.py", "x.py .py d/x.py x.pyc", "x.py .py d/x.py"),
        ("a*b", "ab axb a/b axxb ax", "ab axb axxb"),
        ("d/*", "d/a d/a/b e/d/a", "d/a"),
        ("d/*/f", "d/a/f d/f d/a/b/f", "d/a/f"),
        ("?", "a ab d/b é", "a d/b é"),
        ("a?c", "abc ac a/c aéc", "abc aéc"),
        ("**", "a b/c", "a b/c"),
        ("**/a", "a b/a b/c/a ba", "a b/a b/c/a"),
        ("a/**", "a a/b a/b/c b/a/c", "a/b a/b/c"),
        ("a/**/b", "a/b a/x/b a/x/y/b ab x/a/b", "a/b a/x/b a/x/y/b"),
        ("a**b", "ab axb a/b", "ab axb"),
        ("x/a**", "x/a x/ab x/a/b", "x/a x/ab"),
        ("***/a", "a b/a", "a b/a"),
        ("a.b", "a.b axb", "a.b"),
        ("a+(b)|{c}^$", "a+(b)|{c}^$ a", "a+(b)|{c}^$"),
        ("é*", "é été ett é/x", "é été"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_a_pattern_matches(pattern: str, paths: str, matched: str) -> None:
    assert ignored(pattern, paths) == matched


@pytest.mark.parametrize(
    ("pattern", "paths", "matched"),
    [
        ("[ab]", "a b c ab", "a b"),
        ("[!ab]", "a b c", "c"),
        ("[^ab]", "a b c", "c"),
        ("[a-c]", "a b c d -", "a b c"),
        ("[a-c-e]", "a b - d e", "a b - e"),
        ("[-a]", "- a b", "- a"),
        ("[a-]", "- a b", "- a"),
        ("[]]", "] [", "]"),
        ("[!]]", "] [ a", "[ a"),
        ("[]-a]", "] ^ a b", "] ^ a"),
        ("[a-a]", "a b -", "a"),
        ("[c-a]", "a b c", ""),
        ("x[c-a]y", "xay xy", ""),
        ("[c-ax]", "a x", "x"),
        ("[\\]]", "] \\", "]"),
        ("[\\a-c]", "a b \\", "a b"),
        ("[a-\\c]", "a b c \\", "a b c"),
        ("[[]", "[ ]", "["),
        ("[.*+]", ". * + a", ". * +"),
        ("x[!a]y", "xby xay x/y", "xby"),
        ("x[/]y", "x/y xay", ""),
        ("x[+-9]y", "x/y x5y", "x5y"),
        ("[é-ü]", "é ö ü a", "é ö ü"),
        ("[&&a]", "& a", "& a"),
        ("[a~~b]", "~ a b", "~ a b"),
        ("[", "[ a", ""),
        ("[a", "[a a", ""),
        ("[!", "a !", ""),
        ("[]", "] [] a", ""),
        ("[a\\", "a \\", ""),
        ("[a-\\", "a - \\", ""),
        ("a\\", "a a\\", ""),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_a_set_of_characters_matches(pattern: str, paths: str, matched: str) -> None:
    assert ignored(pattern, paths) == matched


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("alnum", "aZ5", "-_é "),
        ("alpha", "aZ", "5-"),
        ("blank", " \t", "a\n"),
        ("cntrl", "\x01\x1f\x7f", "a "),
        ("digit", "059", "a٣"),
        ("graph", "!a~", " \x01"),
        ("lower", "az", "AZ5"),
        ("print", " a~", "\x01\x7f"),
        ("punct", "!/:@[`{~_\\-]^".replace("/", ""), "a5 "),
        ("space", " \t\n\r", "a"),
        ("upper", "AZ", "az"),
        ("xdigit", "09afAF", "gG"),
    ],
)
def test_a_character_class_matches_exactly_its_members(name: str, inside: str, outside: str) -> None:
    ignores = IgnoreRules([f"x[[:{name}:]]"])
    assert [char for char in inside if not ignores(f"x{char}", False)] == []
    assert [char for char in outside if ignores(f"x{char}", False)] == []


def test_a_class_combines_with_other_members_of_a_set() -> None:
    assert ignored("[x[:digit:]y-z]", "x 5 y z a :") == "x 5 y z"


@pytest.mark.parametrize("pattern", ["[[:nope:]]", "[[::]]", "[a[:ALPHA:]]"])
def test_an_unknown_class_makes_the_pattern_match_nothing(pattern: str) -> None:
    assert ignored(pattern, "a n : [ ]") == ""


@pytest.mark.parametrize(
    ("line", "path", "is_ignored"),
    [
        ("a ", "a", True),
        ("a   ", "a", True),
        ("a ", "a ", False),
        ("a\\ ", "a ", True),
        ("a\\  ", "a ", True),
        ("a\\\\ ", "a\\", True),
        ("a\\\\\\ ", "a\\ ", True),
        (" a", " a", True),
        (" a", "a", False),
        ("a\t", "a", False),
        ("a\r\n", "a", True),
        ("a\n", "a", True),
        ("#a", "#a", False),
        ("\\#a", "#a", True),
        ("\\!a", "!a", True),
        ("a#b", "a#b", True),
        ("\\a", "a", True),
        ("\\*", "*", True),
        ("\\*", "b", False),
        ("a\nb", "a\nb", True),
    ],
)
def test_spaces_comments_and_backslashes(line: str, path: str, is_ignored: bool) -> None:
    assert IgnoreRules([line])(path, False) is is_ignored


@pytest.mark.parametrize(
    ("lines", "path", "is_ignored"),
    [
        (["*.o", "!a.o"], "a.o", False),
        (["!a.o", "*.o"], "a.o", True),
        (["*.o", "!a.o", "a.o"], "a.o", True),
        (["*.o", "!a.o", "*.a"], "b.o", True),
        (["!a"], "a", False),
        (["*", "!*/", "!*.py"], "x.py", False),
        (["*", "!*/", "!*.py"], "x.md", True),
        ([], "a", False),
    ],
)
def test_the_last_line_that_matches_decides(lines: list[str], path: str, is_ignored: bool) -> None:
    assert IgnoreRules(lines)(path, False) is is_ignored


def test_a_trailing_slash_matches_directories_only() -> None:
    ignores = IgnoreRules(["d/", "e", "a/b/"])
    asked = [("d", True), ("d", False), ("x/d", True), ("e", True), ("e", False), ("a/b", True), ("x/a/b", True)]
    assert [ignores(*path_and_kind) for path_and_kind in asked] == [True, False, True, True, True, True, False]


def test_a_directory_can_be_included_again() -> None:
    ignores = IgnoreRules(["*", "!d/"])
    assert (ignores("d", True), ignores("d", False)) == (False, True)


def test_a_line_break_in_a_name_is_an_ordinary_character() -> None:
    assert IgnoreRules(["*"])("a\nb", False)
    assert IgnoreRules(["a?b"])("a\nb", False)
    assert IgnoreRules(["**/x"])("a\nb/x", False)
    assert not IgnoreRules(["a"])("a\n", False)


@pytest.mark.parametrize(
    ("path", "is_folder"),
    [
        ("__pycache__", True),
        ("a/__pycache__", True),
        ("x.pyc", False),
        ("x.pyo", False),
        (".venv", True),
        ("web/node_modules", True),
        (".tox", True),
        (".mypy_cache", True),
        (".pytest_cache", True),
        (".ruff_cache", True),
        (".DS_Store", False),
        ("docs/Thumbs.db", False),
    ],
)
def test_generated_files_are_ignored_by_default(path: str, is_folder: bool) -> None:
    assert IgnoreRules(DEFAULT_IGNORE)(path, is_folder)


@pytest.mark.parametrize(
    "path", ["x.py", "x.pyx", "pycache", "__pycache__", "node_modules", ".git", ".env", "thumbs.db"]
)
def test_source_files_are_not_ignored_by_default(path: str) -> None:
    assert not IgnoreRules(DEFAULT_IGNORE)(path, False)


# Arguments


def test_the_number_of_patterns_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignore_rules, "MAX_PATTERNS", 3)
    ignores = IgnoreRules(["a", "# comments count", "c"])
    assert [ignores(path, False) for path in ("a", "b", "c")] == [True, False, True]
    with raises(InvalidInput, field="ignore"):
        IgnoreRules(["a", "b", "c", "d"])


def test_patterns_may_be_any_iterable_and_are_kept_unchanged() -> None:
    ignores = IgnoreRules(line for line in ("a ", "# note", "!b"))
    assert ignores.patterns == ("a ", "# note", "!b")


@pytest.mark.parametrize("given", [None, 1.5, object()])
def test_patterns_that_are_not_a_list_of_lines_are_refused(given: object) -> None:
    with raises(InvalidInput, field="ignore"):
        IgnoreRules(given)  # type: ignore[arg-type]


def test_a_pattern_that_is_not_text_is_refused() -> None:
    with raises(InvalidInput, field="ignore"):
        IgnoreRules(["a", b"b"])  # type: ignore[list-item]


# The file in the root


def test_an_ignore_file_of_the_maximum_size_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignore_rules, "MAX_FILE", 10)
    (tmp_path / FILE).write_bytes(b"abcd\nefgh\n")
    assert in_root(str(tmp_path)) == ["abcd", "efgh"]
    (tmp_path / FILE).write_bytes(b"abcd\nefgh\n\n")
    with raises(InvalidInput, field=FILE, __cause__=None):
        in_root(str(tmp_path))


def test_an_empty_ignore_file_has_no_patterns(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    assert in_root(str(tmp_path)) == []


def test_only_a_leading_byte_order_mark_is_removed(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes("\ufeffa\n\ufeffb\n".encode())
    assert in_root(str(tmp_path)) == ["a", "\ufeffb"]


def test_only_the_ignore_file_in_the_root_is_read(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / FILE).write_text("a\n")
    assert in_root(str(tmp_path)) == []


@pytest.mark.parametrize("where", ["nowhere", "file"])
def test_a_missing_directory_has_no_ignore_file(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    assert in_root(str(tmp_path / where)) == []


def test_a_directory_named_like_the_ignore_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with raises(InvalidInput, field=FILE) as caught:
        in_root(str(tmp_path))
    assert isinstance(caught.value.__cause__, OSError)


def test_a_pipe_named_like_the_ignore_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    assert in_root(str(tmp_path)) == []


def reference(pattern: str, path: str) -> bool:
    """Match a pattern of letters, stars and slashes by its definition, trying every way once."""
    if "/" not in pattern:
        path = path.rpartition("/")[2]
    pattern = pattern.removeprefix("/")

    @cache
    def matches(at: int, place: int) -> bool:
        if at == len(pattern):
            return place == len(path)
        end = at
        while end < len(pattern) and pattern[end] == "*":
            end += 1
        if end == at:
            return place < len(path) and path[place] == pattern[at] and matches(at + 1, place + 1)
        if end - at >= 2 and (at == 0 or pattern[at - 1] == "/"):
            if end == len(pattern):
                return True
            if pattern[end] == "/":
                starts = [place, *(number + 1 for number in range(place, len(path)) if path[number] == "/")]
                return any(matches(end + 1, start) for start in starts)
        name_end = path.find("/", place)
        return any(matches(end, to) for to in range(place, (len(path) if name_end < 0 else name_end) + 1))

    return matches(0, 0)


@settings(max_examples=1_000)
@given(
    st.lists(st.sampled_from(["a", "b", "*", "**", "/", "/**/", "a*", "*b"]), min_size=1, max_size=10).map("".join),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=6).map("/".join),
)
def test_stars_match_what_their_definition_says(pattern: str, path: str) -> None:
    pattern = pattern.rstrip("/")
    assume(pattern)
    assert IgnoreRules([pattern])(path, False) is reference(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a*a*a*a*a*a*b", "a" * 250),
        ("*a" * 200 + "*b", "a" * 250),
        ("*[ab]?" * 80 + "c", "ab" * 125),
        ("/" + "*a" * 100 + "*/" + "*a" * 100 + "b", "a" * 250 + "/" + "a" * 250),
        ("**/a/" * 60 + "b", "a/" * 190 + "a"),
        ("**/*a*a*a*a/" * 60 + "b", ("a" * 20 + "/") * 190 + "a"),
        ("**/" * 300 + "b", "a/" * 190 + "a"),
        ("\\ " + " " * 4_000, "a"),
    ],
    ids=range(8),
)
@pytest.mark.timeout(60)
def test_no_pattern_backtracks_exponentially(pattern: str, path: str) -> None:
    """With backtracking, each of them took hours or years."""
    assert IgnoreRules([pattern])(path, False) is False


@pytest.mark.parametrize(
    "patterns", [["*a" * 2_049], ["*a" * 2_048] * 65, [" " * 1_000_000]], ids=["one", "all", "spaces"]
)
def test_patterns_that_would_take_long_to_compile_are_refused(patterns: list[str]) -> None:
    with raises(InvalidInput, field="ignore"):
        IgnoreRules(patterns)
    assert IgnoreRules(["#" * 1_000_000])("a", False) is False
