"""Tests of the documentation: every snippet runs as is, every link resolves, and tables match the source."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Limits, SessionKey
from holdfast.core.filters import FilterColumns
from holdfast.drivers import join
from holdfast.errors import HoldfastError
from holdfast.stores.conversation import keys, messages, session_lists
from tests.docs.markdown import FILES, ROOT, Block, anchors, blocks, links
from tests.docs.running import FRAMEWORKS, programs, run_block, run_program

GUIDE = ROOT / "docs" / "guide"
SESSIONS = (GUIDE / "sessions-and-messages.md").read_text("utf-8")
JOINING = (GUIDE / "joining-your-transaction.md").read_text("utf-8")
MARKS = {"fresh", "postgres", *FRAMEWORKS}


@pytest.mark.parametrize("program", [pytest.param(program, id=str(program[0])) for program in programs()])
def test_snippets_run_as_is(
    program: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    run_program(program, tmp_path, monkeypatch, request)


def test_snippets_exist_and_use_only_known_marks() -> None:
    snippets = [block for file in FILES for block in blocks(file)]
    assert len(snippets) > 15
    assert {mark for block in snippets for mark in block.marks} <= MARKS


def test_a_failing_snippet_is_reported_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\nand\n\n<!-- test: fresh -->\n```python\nassert False\n```\n")
    good, bad = (block._replace(file=ROOT / "page.md") for block in blocks(page))
    run_block(good, {})
    with pytest.raises(AssertionError) as caught:
        run_block(bad, {})
    assert (bad.line, bad.marks) == (11, {"fresh"})
    assert caught.tb.tb_next is not None
    assert caught.traceback[-1].lineno == 10


@pytest.mark.parametrize("file", [pytest.param(file, id=str(file.relative_to(ROOT))) for file in FILES])
def test_every_link_resolves(file: Path) -> None:
    for link in links(file):
        if re.match(r"[a-z]+:", link):
            assert link.startswith(("https://", "http://127.0.0.1", "mailto:")), link
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        assert target.is_relative_to(ROOT), f"{link} points outside of the repository"
        assert target.exists(), f"{link} does not exist"
        if anchor:
            assert anchor in anchors(target), f"{link}: {target.name} has no such heading"


def test_every_page_is_reachable_from_the_readme() -> None:
    reached: set[Path] = set()
    pending = [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        pending += [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if ":" not in link]
    assert set(FILES) <= reached, sorted(str(file.relative_to(ROOT)) for file in set(FILES) - reached)


def test_the_tests_named_in_the_guarantees_exist() -> None:
    named = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+){3,})`", (ROOT / "GUARANTEES.md").read_text("utf-8")))
    defined = {
        name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (\w+)\(", file.read_text("utf-8"))
    }
    assert len(named) > 10
    assert named <= defined, f"renamed or removed: {sorted(named - defined)}"


def _between(text: str, mark: str) -> str:
    """Return the text between ``<!-- mark -->`` and ``<!-- end -->``."""
    section = re.search(rf"<!-- {re.escape(mark)} -->(.*?)<!-- end -->", text, re.DOTALL)
    assert section, mark
    return section[1]


def limits_table() -> str:
    """Return the table of limits for the page, generated from the docstrings of ``Limits``."""
    tree = ast.parse(inspect.getsource(Limits)).body[0]
    assert isinstance(tree, ast.ClassDef)
    descriptions = {
        field.target.id: ast.literal_eval(doc.value)
        for field, doc in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(doc, ast.Expr)
    }
    assert list(descriptions) == list(Limits.__struct_fields__)
    rows = [
        f"| `{name}` | {getattr(Limits(), name):,} | {description.replace('``', '`').rstrip('.')} |"
        for name, description in descriptions.items()
    ]
    return "\n".join(["", "| name | default | meaning |", "| --- | --- | --- |", *rows, ""])


def test_the_table_of_limits_matches_the_source() -> None:
    assert _between(SESSIONS, "limits") == limits_table(), f"the page must have\n{limits_table()}"


@pytest.mark.parametrize(("mark", "filters"), [("sessions", session_lists.FILTERS), ("messages", messages.FILTERS)])
def test_the_filterable_columns_match_the_source(mark: str, filters: FilterColumns) -> None:
    assert _between(SESSIONS, f"columns: {mark}") == ", ".join(f"`{name}`" for name in filters._columns)


def test_the_table_of_session_keys_matches_the_source() -> None:
    rows = dict(re.findall(r"^\| `SessionKey\.(\w+)\(.*?\)` \| `(agent:.*?)` \|$", SESSIONS, re.MULTILINE))
    forms = {re.sub(r"Key$", "", kind.__name__).lower(): kind.FORM for kind in keys._KINDS}
    forms["main"] = str(SessionKey.main(agent="{agent}"))
    forms["ws"] = str(SessionKey.ws(agent="{agent}", conversation="{conversation}"))
    assert rows == forms


def test_the_page_on_joining_lists_every_supported_connection() -> None:
    table = JOINING.partition("## What you can rely on")[0]
    for path in [*join._BLOCKING, *join._ASYNCHRONOUS]:
        library, name = path.partition(".")[0], path.rpartition(".")[2]
        assert library == "sqlalchemy" or f"`{library}.{name}`" in table or name == "PoolConnectionProxy", path
        assert f"{name}`" in table or name == "PoolConnectionProxy", path


@pytest.mark.parametrize("page", ["sessions-and-messages.md", "joining-your-transaction.md"])
def test_classes_named_in_the_guide_exist(page: str) -> None:
    external = {"Connection", "Session", "AsyncConnection", "AsyncSession", "BEGIN", "None"}
    existing = {kind.__name__ for kind in _subclasses(HoldfastError)} | set(holdfast.__all__) | external
    named = set(re.findall(r"`([A-Z]\w+)`", (GUIDE / page).read_text("utf-8")))
    assert named
    assert named <= existing, named - existing


def _subclasses(kind: type) -> Iterator[type]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _subclasses(subclass)
