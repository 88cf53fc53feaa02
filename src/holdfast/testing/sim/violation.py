"""A promise that was broken."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise was broken. The message says which; the trace of the simulation says how it came to that."""
