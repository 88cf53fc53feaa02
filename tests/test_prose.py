"""The text of the project is plain English. The rules are in ``tests/prose.py``; each is also shown to catch something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prose

DOCUMENTS = [path for path in prose.files("*.md", suffixes=(".md",)) if path.parent.name != "reference"]


@pytest.mark.parametrize("place", ["src", "tests", "bench", "tools", "examples"])
def test_source_is_written_in_plain_english(place: str) -> None:
    paths = prose.files(place)
    assert list(prose.tics(paths)) == []
    rates = prose.rates(paths)
    assert rates["noun phrases"] < prose.MAX_NOUN_PHRASES
    assert rates["dialect"] < prose.MAX_DIALECT
    assert rates["placeholders"] < prose.MAX_PLACEHOLDERS


def test_documents_are_written_in_plain_english() -> None:
    assert list(prose.tics(DOCUMENTS)) == []
    rates = prose.rates(DOCUMENTS)
    assert rates["noun phrases"] < prose.MAX_NOUN_PHRASES
    assert rates["dialect"] < prose.MAX_DIALECT


def test_lines_of_documents_can_be_read_without_scrolling() -> None:
    assert [line for path in DOCUMENTS for line in prose.long_lines(path)] == []


def planted(folder: Path, text: str, name: str = "planted.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("# What is stored, by key\n", "noun phrases"),
        ("'''Whoever reads it waits.'''\n", "dialect"),
        ("def f(rows):\n    return [each for each in rows]\n", "placeholders"),
    ],
)
def test_turn_of_phrase_is_counted(tmp_path: Path, text: str, rule: str) -> None:
    assert prose.rates([planted(tmp_path, text)])[rule] > 0


def test_plain_sentence_is_not_counted(tmp_path: Path) -> None:
    path = planted(tmp_path, "def f(rows):\n    '''Return the stored rows.'''\n    return [row for row in rows]\n")
    assert set(prose.rates([path]).values()) == {0.0}
    assert list(prose.tics([path])) == []


@pytest.mark.parametrize(
    "text",
    [
        "its mode is none",
        "there is no session 'x' here",
        "removed for good",
        "Who asks must have a key",
        "is gone on with",
    ],
)
def test_tic_is_caught_with_a_suggestion(tmp_path: Path, text: str) -> None:
    (line,) = prose.tics([planted(tmp_path, f"# {text}\n")])
    assert line.endswith("]")


def test_long_line_of_a_document_is_caught_outside_of_code_and_tables(tmp_path: Path) -> None:
    long = "word " * 30
    path = planted(tmp_path, f"{long}\n| {long} |\n```\n{long}\n```\n", "planted.md")
    assert len(list(prose.long_lines(path))) == 1
