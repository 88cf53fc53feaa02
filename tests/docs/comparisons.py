"""The tables of the pages below ``docs/coming-from/``: each row names the proof of its claim.

The last cell of a row contains, separated by commas:

- a link to a section with a snippet that runs, on the same page or another one: ``[example](#sessions)``;
- the name of a test: ```tests/contract/cases/sessions.py::create_stores_the_given_fields```;
- or only ``not yet``, for something that Holdfast does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.docs.markdown import ROOT, anchors, sections

PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
PROOF = "checked by"
"""Header of the last column."""
NOT_YET = "not yet"

_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_FUNCTION = re.compile(r"^(?:async )?def (\w+)\(|^    (?:async )?def (test_\w+)\(", re.M)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


class Row(NamedTuple):
    """A row of a comparison."""

    line: int
    theirs: str
    ours: str
    proof: str


def rows(page: Path) -> Iterator[Row]:
    """Yield the rows of all tables of a page.

    Raises:
        ValueError: a table has no column for proofs, or a row has another number of cells than its header.
    """
    header: list[str] = []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not header:
            header = cells
            if header[-1] != PROOF or len(header) != 3:
                raise ValueError(f"{page.name}:{number}: the columns of a comparison are theirs, ours and '{PROOF}'")
        elif len(cells) != len(header):
            raise ValueError(f"{page.name}:{number}: {len(cells)} cells instead of {len(header)}")
        elif set("".join(cells)) - set("-: "):
            yield Row(number, *cells)


def problem(page: Path, row: Row) -> str | None:
    """Return why the proof of a row is invalid, or ``None``."""
    if row.proof == NOT_YET and row.theirs:
        return None
    if not row.theirs or not row.ours:
        return "a cell is empty"
    if not row.proof:
        return f"no proof; write '{NOT_YET}' if Holdfast does not have it"
    for proof in row.proof.split(", "):
        if test := _TEST.fullmatch(proof):
            if test[2] not in _functions(ROOT / test[1]):
                return f"{proof} does not exist"
        elif link := _LINK.fullmatch(proof):
            path, _, anchor = link[1].partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or anchor not in anchors(target):
                return f"{proof}: there is no such section"
            if not any(not block.skip_reason for block in sections(target)[anchor]):
                return f"{proof}: the section has no snippet that runs"
        else:
            return f"{proof} is neither a link to a snippet nor the name of a test"
    return None


@cache
def _functions(file: Path) -> frozenset[str]:
    """Return the names of the functions of a test module, and of the tests in its classes."""
    if not file.exists():
        return frozenset()
    return frozenset(match[1] or match[2] for match in _FUNCTION.finditer(file.read_text("utf-8")))
