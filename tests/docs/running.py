"""Runner for the snippets of a page. Snippets marked with a framework run in that framework's environment."""

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

FRAMEWORKS = frozenset({"a2a", "crewai", "kagent", "langgraph"})
"""Marks that name a framework."""


def programs(framework: str | None = None) -> Iterator[list[Block]]:
    """Yield the programs for one framework, or for none: consecutive blocks of a page up to the next fresh one."""
    for file in FILES:
        number = 0
        numbered = []
        for block in blocks(file):
            if block.marks & FRAMEWORKS != ({framework} if framework else set()):
                continue
            number += "fresh" in block.marks or "postgres" in block.marks
            numbered.append((number, block))
        for _, program in groupby(numbered, key=lambda pair: pair[0]):
            yield [block for _, block in program]


def run_program(
    program: list[Block], folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Run the blocks of a program one after the other, in an empty folder."""
    monkeypatch.chdir(folder)
    main = ModuleType("__main__")  # pickling and type hints look up the classes of a page in it
    monkeypatch.setitem(sys.modules, "__main__", main)
    names: dict[str, Any] = vars(main)
    if "postgres" in program[0].marks:
        names["dsn"] = request.getfixturevalue("bare_postgres_url")
    for block in program:
        if not block.skip_reason:
            run_block(block, names)


def run_block(block: Block, names: dict[str, Any]) -> None:
    """Run one block and compare its output with that on the page."""
    source = "\n" * (block.line - 1) + block.code  # so that a traceback shows the line of the page
    linecache.cache[str(block)] = (len(source), None, source.splitlines(keepends=True), str(block))
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(source, str(block), "exec", dont_inherit=True), names)
    if block.output is not None:
        assert printed.getvalue() == block.output
