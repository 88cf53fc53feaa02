"""The exception for broken promises."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise was broken. The message describes it; the trace of the simulation shows the cause."""

    def __init__(self, message: str, *, kind: str = "", subject: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        """Which promise, for programs: ``"lost_step"``, for example."""
        self.subject = subject
        """The id of the run, session, message, tool call, agent or task, if there is one."""
