"""Which parts of the stores follow a session; see ``core/session_dependents.py``."""

from __future__ import annotations

from .execution.of_session import ExecutionOfSession
from .memory.of_session import MemoriesOfSession
from .workspace.retention_rules import Holds

SESSION_DEPENDENTS = (Holds(), ExecutionOfSession(), MemoriesOfSession())
"""In the order in which they are asked."""
