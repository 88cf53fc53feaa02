"""The only reasons for which a test may be skipped. Any other skip fails the run."""

from __future__ import annotations

import os

import pytest

DECLARED_SKIPS: dict[str, str] = {
    r"Citus is not installed here": "no package brings Citus; its rules are checked without it, in tests/migrations",
    r"HOLDFAST_WITHOUT=\w+": "the person who started this run said that it must do without that program",
}
"""Reasons, as patterns, for which a test may be skipped, each with why that is right."""


def without(name: str, why: str) -> None:
    """Skip a test that lacks a program if the person who started the run said so; fail it otherwise."""
    if name in os.environ.get("HOLDFAST_WITHOUT", "").split(","):
        pytest.skip(f"HOLDFAST_WITHOUT={name}")
    pytest.fail(f"{why}; HOLDFAST_WITHOUT={name} leaves out the tests that need it", pytrace=False)
