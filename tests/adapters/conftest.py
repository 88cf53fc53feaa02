"""Each framework's tests run in an environment of their own, which ``make test`` makes; elsewhere they are not collected."""

from __future__ import annotations

from importlib.util import find_spec

FRAMEWORKS = {
    "langgraph": "langgraph",
    "langgraph_import": "langgraph",
    "crewai": "crewai",
    "kagent": "kagent",
    "a2a": "a2a",
}
"""Folders, each with what must be installed for it."""

collect_ignore = [folder for folder, name in FRAMEWORKS.items() if find_spec(name) is None]
