"""The parts of the stores whose rows follow a session; see ``core/session_dependents.py``."""

from __future__ import annotations

from .execution.session_dependents import ExecutionOfSession
from .memory.session_dependents import MemoriesOfSession
from .workspace.session_dependents import WorkspacesOfSession

SESSION_DEPENDENTS = (WorkspacesOfSession(), ExecutionOfSession(), MemoriesOfSession())
"""In the order in which they are called: the rows of runs are removed before the runs."""
