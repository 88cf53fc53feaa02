"""The exception for broken promises."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise was broken. The message states which; the trace of the simulation shows the cause."""
