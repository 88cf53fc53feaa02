"""The parts of the stores whose rows follow a session; see ``core/session_dependents.py``."""

from __future__ import annotations

from .execution.session_dependents import ExecutionOfSession
from .memory.session_dependents import MemoriesOfSession
from .workspace.retention_rules import Holds

SESSION_DEPENDENTS = (Holds(), ExecutionOfSession(), MemoriesOfSession())
"""In the order in which they are called."""
