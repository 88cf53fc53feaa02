"""The tests of each framework run in their own environment, which ``make test`` creates; in others they are not collected."""

from __future__ import annotations

from importlib.util import find_spec

FRAMEWORKS = {
    "langgraph": "langgraph",
    "langgraph_import": "langgraph",
    "crewai": "crewai",
    "kagent": "kagent",
    "a2a": "a2a",
    "kubernetes": "kubernetes",
}
"""Test directories, each with the package that it requires."""

collect_ignore = [folder for folder, name in FRAMEWORKS.items() if find_spec(name) is None]
