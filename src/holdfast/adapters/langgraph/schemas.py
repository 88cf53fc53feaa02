"""Makes LangGraph pass the types in a graph's schemas to the saver, so that they need not be listed with ``allow``."""

from __future__ import annotations


def enable_schema_allowlist() -> None:
    """Make graphs that are compiled from now on pass the types of their schemas to ``with_allowlist`` of their saver.

    LangGraph does so only in its strict mode, which the environment variable ``LANGGRAPH_STRICT_MSGPACK`` enables. Our savers
    are always strict. This function enables only that part of the mode: LangGraph's own savers, if they are not strict, ignore
    the list. With releases that have no such switch, types must be listed with ``allow``.
    """
    try:
        from langgraph._internal import _serde
    except ImportError:
        return
    if hasattr(_serde, "STRICT_MSGPACK_ENABLED"):
        _serde.STRICT_MSGPACK_ENABLED = True
