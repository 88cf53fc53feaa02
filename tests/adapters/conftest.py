"""Each framework's tests run in an environment of their own, which ``make test`` makes; elsewhere they are not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [name for name in ("langgraph",) if find_spec(name) is None]
