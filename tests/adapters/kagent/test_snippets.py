"""The snippets that need kagent's clients run unchanged against a running server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import Block
from tests.docs.running import programs, run_program

PROGRAMS = [*programs("kagent")]


def test_there_are_snippets() -> None:
    assert len(PROGRAMS) >= 1


@pytest.mark.parametrize("program", [pytest.param(program, id=str(program[0])) for program in PROGRAMS])
def test_the_snippets_run_unchanged(
    program: list[Block], base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("KAGENT_URL", base)
    run_program(program, tmp_path, monkeypatch, request)
