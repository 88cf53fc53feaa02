"""LangGraph tells a saver which types the schemas of a graph name, so that they need not be named twice."""

from __future__ import annotations


def ask_for_schemas() -> None:
    """Have graphs that are compiled from now on hand the types of their schemas to ``with_allowlist`` of their saver.

    LangGraph does so only in its strict mode, which the environment variable ``LANGGRAPH_STRICT_MSGPACK`` turns on. Our savers
    are always strict. This turns on that part alone: a saver of LangGraph's own that is not strict ignores the list. Where a
    release has no such switch, types are named with ``allow``.
    """
    try:
        from langgraph._internal import _serde
    except ImportError:
        return
    if hasattr(_serde, "STRICT_MSGPACK_ENABLED"):
        _serde.STRICT_MSGPACK_ENABLED = True
