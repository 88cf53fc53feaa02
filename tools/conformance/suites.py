"""The suites that `make conformance` knows: where their tests are, how they use our adapters, and what may fail and why."""

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
    """The distribution whose tests these are."""
    environment: str
    """Which lock file has the dependencies: a name that tools/environment.py knows."""
    folder: str
    """Where pytest runs, within a checkout; a source distribution has the same at its top."""
    marker: str
    """A file in that folder that only this suite has."""
    tests: Sequence[str]
    packages: Sequence[str]
    """Folders of a checkout to import from, before anything that is installed."""
    plugin: str
    """The pytest plugin beside this file that replaces the framework's own store with ours."""
    note: str
    settings: Mapping[str, str] = {}
    variants: Sequence[Variant] = (Variant("default"),)
    options: Sequence[str] = ()
    """For pytest."""
    is_packaged: bool = True
    """Whether the source distribution of the package has the tests; then they are a part of `make test`."""
    allowed: Mapping[str, str] = {}
    """Tests that may fail, by a pattern of their full name, each with the reason."""

    def found_in(self, given: Path) -> Path | None:
        """The folder in which pytest runs; ``None`` if the suite is not in this checkout or source distribution."""
        places = (given / self.folder, given)
        return next((place.resolve() for place in places if (place / self.marker).exists()), None)

    def reason(self, test: str) -> str:
        """Why a test may fail; empty if it may not."""
        return next((reason for name, reason in self.allowed.items() if re.fullmatch(name, test)), "")


_LANGGRAPH = [
    f"libs/{name}" for name in ("langgraph", "prebuilt", "checkpoint", "checkpoint-sqlite", "checkpoint-postgres")
]
_WITHOUT_SERVERS = {"NO_DOCKER": "true", "LANGGRAPH_TEST_FAST": "false"}
_SAVERS = [
    Variant("`HoldfastSaver(...)`"),
    Variant("`HoldfastSaver(..., single_writer=True)`", {"HOLDFAST_SAVER": "single_writer"}),
]

_UNNAMED = "it saves an object of a class that no schema of the graph names; `allow=[...]` names it"
_LOCAL = "it saves an object of a class that is defined in a function, where a reader could not find it again"
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
_WRITES = (
    "it expects `writes` in the metadata, which LangGraph does not put there any more and other savers leave out too"
)
_INSIDE = "it looks inside that saver"
_OF_SQLITE = {
    r"tests\.test_(aio)?sqlite\.Test(Async)?SqliteSaver::test_(combined_metadata|a?search)": _WRITES,
    r"tests\.test_sqlite\.TestSqliteSaver::test_informative_async_errors": "ours can be awaited",
    r"tests\.test_sqlite\.TestSqliteSaver::test_checkpoint_search_sql_injection_prevention": (
        "it expects an error for a key that ours looks for as it is, and finds nothing"
    ),
    r"tests\.test_sqlite\.TestSqliteSaver::test_metadata_filter_keys_with_hyphens_and_digits": (
        "it expects a key with a dot to be a path; only that saver reads it so"
    ),
    r"tests\.test_conformance_delta::test_delta_channel_conformance": (
        "the published conformance suite does not have that part yet; from a checkout it passes"
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
        note="Every test that is given a saver, with ours in place of `SqliteSaver` and `AsyncSqliteSaver`.",
        settings=_WITHOUT_SERVERS,
        variants=_SAVERS,
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
        note="The same for the prebuilt agents.",
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
        note="The tests of `SqliteSaver` and `AsyncSqliteSaver` that are about checkpoints, with ours under these names.",
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
        note="Ours in place of `SQLiteFlowPersistence` and `LanceDBStorage`.",
        settings={"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"},
        # Not: fifty thousand rows one by one, and tests of CrewAI's own threads, which measure time.
        options=["-k", "not exceeding_scan_cap and not runs_concurrent and not runs_all and not returns_immediately"],
        variants=[Variant("`HoldfastFlowPersistence`, `HoldfastMemory`")],
    ),
]
