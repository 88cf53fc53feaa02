"""The comparisons with other systems: every row names a snippet that runs or a test that exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.comparisons import NOT_YET, PAGES, Row, problem, rows
from tests.docs.markdown import ROOT

SYSTEMS = {"agentpg", "goclaw", "kagent", "kelpie", "koder"}
GOOD = "`tests/docs/test_coming_from.py::test_every_row_has_a_valid_proof`"


def test_there_is_a_page_for_every_system() -> None:
    assert {page.stem for page in PAGES} == SYSTEMS
    assert all(len([*rows(page)]) > 20 for page in PAGES)


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES])
def test_every_row_has_a_valid_proof(page: Path) -> None:
    problems = [f"{page.name}:{row.line}: {text}" for row in rows(page) if (text := problem(page, row))]
    assert problems == []


@pytest.mark.parametrize(
    "proof",
    [
        "",
        "later",
        f"{NOT_YET}, {GOOD}",
        f"{GOOD} and more",
        "`tests/docs/test_coming_from.py::test_that_was_removed`",
        "`tests/docs/test_that_was_removed.py::test_every_row_has_a_valid_proof`",
        "[example](#no-such-section)",
        "[example](no-such-page.md#caps)",
        "[example](#text)",
    ],
)
def test_an_invalid_proof_is_detected(tmp_path: Path, proof: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n## Text\n\nNo snippet.\n\n## Skipped\n\n<!-- test: not run: a key -->\n```python\n1\n```\n"
    )
    assert problem(page, Row(1, "theirs", "ours", proof)) is not None


@pytest.mark.parametrize("proof", [NOT_YET, GOOD, "[example](#snippet)", f"[example](#snippet), {GOOD}"])
def test_a_valid_proof_is_accepted(tmp_path: Path, proof: str) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n## Snippet\n\n```python\n1\n```\n")
    assert problem(page, Row(1, "theirs", "ours", proof)) is None
    assert problem(page, Row(1, "", "ours", proof)) is not None
    assert (problem(page, Row(1, "theirs", "", proof)) is None) is (proof == NOT_YET)


def test_a_table_without_proofs_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for table in ("| a | b |\n| --- | --- |\n| 1 | 2 |\n", "| a | b | checked by |\n| - | - | - |\n| 1 | 2 |\n"):
        page.write_text(table)
        with pytest.raises(ValueError, match=r"page\.md"):
            [*rows(page)]


def test_the_index_links_every_page() -> None:
    index = (ROOT / "README.md").read_text("utf-8")
    assert all(f"docs/coming-from/{page.name}" in index for page in PAGES)
