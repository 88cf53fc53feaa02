"""The documentation snippets that require LangGraph run unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import Block
from tests.docs.running import programs, run_program

PROGRAMS = [*programs("langgraph")]


def test_the_documentation_contains_snippets() -> None:
    assert len(PROGRAMS) >= 4


@pytest.mark.parametrize("program", [pytest.param(program, id=str(program[0])) for program in PROGRAMS])
def test_the_snippets_run(
    program: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    run_program(program, tmp_path, monkeypatch, request)
