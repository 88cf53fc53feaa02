"""Running the snippets of a page. Those that need a framework are marked with its name, and run in its own environment."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.markdown import FILES, Block, blocks

LANES = frozenset({"a2a", "crewai", "kagent", "langgraph"})
"""Marks that name a framework."""


def programs(lane: str | None = None) -> Iterator[list[Block]]:
    """Blocks that go together: those of one page that one environment can run, up to one that starts afresh."""
    for file in FILES:
        number = 0
        numbered = []
        for block in blocks(file):
            if block.marks & LANES != ({lane} if lane else set()):
                continue
            number += "fresh" in block.marks or "postgres" in block.marks
            numbered.append((number, block))
        for _, together in groupby(numbered, key=lambda pair: pair[0]):
            yield [block for _, block in together]


def try_program(
    program: list[Block], folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Run its blocks one after the other, in an empty folder."""
    monkeypatch.chdir(folder)
    main = ModuleType("__main__")  # classes that a page makes are looked up in it
    monkeypatch.setitem(sys.modules, "__main__", main)
    names: dict[str, Any] = vars(main)
    if "postgres" in program[0].marks:
        names["dsn"] = request.getfixturevalue("bare_postgres_url")
    for block in program:
        if not block.not_run:
            run(block, names)


def run(block: Block, names: dict[str, Any]) -> None:
    """Run one block; it must print what the page says."""
    source = "\n" * (block.line - 1) + block.code  # so that a traceback names the line of the page
    linecache.cache[str(block)] = (len(source), None, source.splitlines(keepends=True), str(block))
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(source, str(block), "exec", dont_inherit=True), names)
    if block.output is not None:
        assert printed.getvalue() == block.output
