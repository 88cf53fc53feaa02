"""The suites of `make conformance`: the location of their tests, the adapter they test, and the tests that may fail."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Variant(NamedTuple):
    """One way to set up our adapter: a title for the table, and environment variables for the plugin."""

    title: str
    settings: Mapping[str, str] = {}


class Suite(NamedTuple):
    """The tests of one package of a framework."""

    name: str
    title: str
    package: str
    """The distribution the tests belong to."""
    environment: str
    """The environment with the dependencies, by its name in tools/environment.py."""
    folder: str
    """The folder of a checkout in which pytest runs; the top of a source distribution has the same contents."""
    marker: str
    """A file in that folder that only this suite has."""
    tests: Sequence[str]
    packages: Sequence[str]
    """Folders of a checkout to import from, before installed packages."""
    plugin: str
    """The pytest plugin beside this file that replaces the framework's own store with Holdfast's."""
    note: str
    settings: Mapping[str, str] = {}
    variants: Sequence[Variant] = (Variant("default"),)
    options: Sequence[str] = ()
    """Options for pytest."""
    is_packaged: bool = True
    """Whether the source distribution of the package contains the tests; they are then part of `make test`."""
    allowed: Mapping[str, str] = {}
    """Patterns of the full names of tests that may fail, with the reason."""

    def folder_in(self, source: Path) -> Path | None:
        """Return the folder in which pytest runs, or ``None`` if this checkout or source distribution lacks the suite."""
        folders = (source / self.folder, source)
        return next((folder.resolve() for folder in folders if (folder / self.marker).exists()), None)

    def reason(self, test: str) -> str:
        """Return the reason why a test may fail; empty if it may not."""
        return next((reason for name, reason in self.allowed.items() if re.fullmatch(name, test)), "")


_LANGGRAPH = [
    f"libs/{name}" for name in ("langgraph", "prebuilt", "checkpoint", "checkpoint-sqlite", "checkpoint-postgres")
]
_WITHOUT_SERVERS = {"NO_DOCKER": "true", "LANGGRAPH_TEST_FAST": "false"}
_SAVERS = [
    Variant("`HoldfastSaver(...)`"),
    Variant("`HoldfastSaver(..., single_writer=True)`", {"HOLDFAST_SAVER": "single_writer"}),
]

_UNNAMED = "They save an object of a class that no schema of the graph names; `allow=[...]` would permit it"
_LOCAL = "They save an object of a class defined in a function, which could not be found again when loading"
_REFUSED = {
    r"tests\.test_interruption::test_interrupt_response_schema\[sqlite-(dataclass|pydantic)\]": _UNNAMED,
    r"tests\.test_interruption::test_interrupt_response_schema_invalid_resume_after_earlier_interrupt\[.*\]": _UNNAMED,
    r"tests\.test_interruption::test_interrupt_response_schema_rejects_invalid_resume\[.*\]": _UNNAMED,
    r"tests\.test_pregel::test_in_one_fan_out_state_graph_waiting_edge_custom_state_class_pydantic_input\[.*\]": _LOCAL,
    r"tests\.test_pregel::test_stream_messages_dedupe_pydantic_subgraph_interrupt\[.*\]": _LOCAL,
}

_SAVER_TESTS = (
    "sqlite",
    "aiosqlite",
    "conformance_delta",
    "get_delta_channel_history",
    "delta_parent_walk",
    "delta_channel_migration",
)
_WRITES = "They expect `writes` in the metadata, which LangGraph no longer puts there and other savers omit too"
_INSIDE = "It inspects the internals of `SqliteSaver`"
_OF_SQLITE = {
    r"tests\.test_(aio)?sqlite\.Test(Async)?SqliteSaver::test_(combined_metadata|a?search)": _WRITES,
    r"tests\.test_sqlite\.TestSqliteSaver::test_informative_async_errors": (
        "It expects an error from asynchronous calls, which `HoldfastSaver` supports"
    ),
    r"tests\.test_sqlite\.TestSqliteSaver::test_checkpoint_search_sql_injection_prevention": (
        "It expects an error for a key that `HoldfastSaver` compares literally and does not find"
    ),
    r"tests\.test_sqlite\.TestSqliteSaver::test_metadata_filter_keys_with_hyphens_and_digits": (
        "It expects a key with a dot to be a path, which only `SqliteSaver` does"
    ),
    r"tests\.test_conformance_delta::test_delta_channel_conformance": (
        "The published conformance suite lacks this part; it passes from a checkout"
    ),
    r"tests\.test_delta_parent_walk::test_walk_step_looks_up_the_parent_by_primary_key": _INSIDE,
}

SUITES = [
    Suite(
        name="langgraph",
        title="LangGraph: graphs",
        package="langgraph",
        environment="langgraph",
        folder="libs/langgraph",
        marker="tests/test_pregel.py",
        tests=["tests"],
        packages=_LANGGRAPH,
        plugin="langgraph_savers",
        note="All tests with a saver, with `HoldfastSaver` in place of `SqliteSaver` and `AsyncSqliteSaver`.",
        settings=_WITHOUT_SERVERS,
        variants=_SAVERS,
        # Excluded: they measure how soon parts of a stream arrive, and fail with any saver on a busy machine.
        options=["-k", "not test_stream_buffering_single_node and not test_stream_subgraphs_during_execution"],
        allowed=_REFUSED,
    ),
    Suite(
        name="langgraph-prebuilt",
        title="LangGraph: prebuilt agents",
        package="langgraph-prebuilt",
        environment="langgraph",
        folder="libs/prebuilt",
        marker="tests/test_react_agent.py",
        tests=["tests"],
        packages=_LANGGRAPH,
        plugin="langgraph_savers",
        note="The tests of the prebuilt agents, with `HoldfastSaver` in place of LangGraph's SQLite savers.",
        settings=_WITHOUT_SERVERS,
        variants=_SAVERS,
    ),
    Suite(
        name="langgraph-checkpoint-sqlite",
        title="LangGraph: savers",
        package="langgraph-checkpoint-sqlite",
        environment="langgraph",
        folder="libs/checkpoint-sqlite",
        marker="tests/test_aiosqlite.py",
        tests=[f"tests/test_{name}.py" for name in _SAVER_TESTS],
        packages=_LANGGRAPH,
        plugin="langgraph_named_savers",
        note="The checkpoint tests of `SqliteSaver` and `AsyncSqliteSaver`, run with `HoldfastSaver`.",
        variants=_SAVERS[:1],
        allowed=_OF_SQLITE,
    ),
    Suite(
        name="crewai",
        title="CrewAI: flows and memories",
        package="crewai",
        environment="crewai",
        folder="lib/crewai",
        marker="tests/test_flow_persistence.py",
        tests=[
            "tests/test_flow_persistence.py",
            "tests/test_flow_resumability_regression.py",
            "tests/memory/test_unified_memory.py",
            "tests/memory/test_memory_root_scope.py",
        ],
        packages=["lib/crewai/src"],
        plugin="crewai_stores",
        note="The Holdfast stores in place of `SQLiteFlowPersistence` and `LanceDBStorage`.",
        settings={"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"},
        # Excluded: fifty thousand single-row inserts, and timing tests of CrewAI's own threads.
        options=["-k", "not exceeding_scan_cap and not runs_concurrent and not runs_all and not returns_immediately"],
        variants=[Variant("`HoldfastFlowPersistence`, `HoldfastMemory`")],
    ),
]
