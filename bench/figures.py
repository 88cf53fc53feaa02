"""The figures of the report, with their targets."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Literal

from . import (
    agents,
    append_postgres,
    append_sqlite,
    conversation,
    graphs,
    growth,
    kagent,
    retention,
    search,
    server,
    steps,
    tenants,
    workspace,
)
from .floor import PAGE as FLUSH_BYTES
from .results import Results, ratios

Bound = Literal["at least", "at most"]
Side = tuple[str, dict[str, int]]


@dataclass(frozen=True)
class Measured:
    """The measured value of a figure: the median over the repeats, and the range."""

    middle: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Figure:
    """A ratio of two contenders, or the value of one contender if ``theirs`` is empty."""

    text: str
    group: str
    metric: str
    ours: Side
    theirs: tuple[Side, ...]
    bound: Bound
    target: float | None
    """``None`` if the floor, measured in the same runs, did not reach the target that was set."""
    unit: str = "x"
    floor: Side | None = None
    """The contender that does only the same work by hand. Its result is close to the best possible one."""

    def measured(self, results: Results) -> Measured | None:
        """Return the median over the repeats and the range, or ``None`` without results."""
        ours = self._series(results, self.ours)
        if self.theirs:
            # Of several contenders, compare with the best: the highest rate, or the shortest time.
            others = [self._series(results, side) for side in self.theirs]
            figures = ratios(ours, others, largest=self.metric == "rate")
        else:
            figures = list(ours.values())
        return Measured(statistics.median(figures), min(figures), max(figures)) if figures else None

    def reached_by_floor(self, results: Results) -> float | None:
        """Return the median of the same figure for the floor."""
        if self.floor is None:
            return None
        figures = replace(self, ours=self.floor, floor=None).measured(results)
        return None if figures is None else figures.middle

    def met(self, measured: Measured) -> bool:
        """Return whether the figure has a target and the median reaches it."""
        if self.target is None:
            return False
        return measured.middle >= self.target if self.bound == "at least" else measured.middle <= self.target

    def _series(self, results: Results, side: Side) -> dict[int, float]:
        return results.series(self.group, side[0], self.metric, **side[1])


def _writers(contender: str, count: int) -> Side:
    return contender, {"writers": count}


def _append(
    text: str, writers: int, against: Side | list[Side], target: float | None, group: str, who: str = "Holdfast"
) -> Figure:
    theirs = tuple(against) if isinstance(against, list) else (against,)
    floor = _writers(_FLOORS[group] if writers > 1 else _ALONE[group], writers) if group in _FLOORS else None
    return Figure(text, group, "rate", _writers(who, writers), theirs, "at least", target, floor=floor)


_FLOORS = {
    append_sqlite.GROUP: append_sqlite.TOGETHER,
    append_sqlite.SLOW_GROUP: append_sqlite.TOGETHER,
    append_postgres.GROUP: append_postgres.TOGETHER,
}
_ALONE = {append_sqlite.GROUP: "apsw", append_sqlite.SLOW_GROUP: "apsw", append_postgres.GROUP: "asyncpg connection"}


def _append_sqlite() -> list[Figure]:
    group, flush = "append-sqlite", ("fdatasync", {"bytes": FLUSH_BYTES})
    one = [
        ("sync, vs. apsw writing the same rows", "apsw", 0.85, "Holdfast, sync"),
        ("async, vs. apsw writing the same rows", "apsw", 0.6, "Holdfast"),
        ("async, vs. SQLiteSession", "SQLiteSession", 1.5, "Holdfast"),
        ("async, vs. SQLAlchemySession", "SQLAlchemySession", 15, "Holdfast"),
        ("async, vs. ADK DatabaseSessionService", "ADK DatabaseSessionService", None, "Holdfast"),
    ]
    figures = [
        _append(f"1 writer, {text}", 1, _writers(name, 1), target, group, who) for text, name, target, who in one
    ]
    for writers, peer, floor in ((16, 15, 2.5), (64, 25, 3.5)):
        session = _writers("SQLiteSession", writers)
        figures.append(_append(f"{writers} writers, vs. SQLiteSession", writers, session, peer, "append-new"))
        figures.append(_append(f"{writers} writers, vs. SQLiteSession", writers, session, None, group))
        figures.append(_append(f"{writers} writers, vs. one fdatasync per message", writers, flush, floor, group))
    slow = "64 writers, 1 ms added to each flush, vs. apsw with one commit per row"
    figures.append(_append(slow, 64, _writers("apsw", 1), None, "slow-flush"))
    return figures


def _append_postgres() -> list[Figure]:
    group = "append-postgres"
    bare = _append("1 writer, vs. a bare asyncpg connection", 1, _writers("asyncpg connection", 1), 0.8, group)
    figures = [bare]
    for writers, target in ((16, None), (64, 5)):
        pools = [_writers("asyncpg pool", writers), _writers("psycopg pool", writers)]
        text = f"{writers} writers, vs. the fastest driver with one insert per message"
        figures.append(_append(text, writers, pools, target, group))
    peer = _writers("SQLAlchemySession", 16)
    return [*figures, _append("16 writers, vs. SQLAlchemySession", 16, peer, None, group)]


def _tenants() -> list[Figure]:
    def side(writers: int, count: int) -> Side:
        return "Holdfast", {"writers": writers, "tenants": count}

    return [
        Figure(
            f"{writers} writers in {tenants.MANY} tenants, vs. in one tenant",
            group,
            "rate",
            side(writers, tenants.MANY),
            (side(writers, tenants.ONE),),
            "at least",
            0.6,
        )
        for group in tenants.GROUPS
        for writers in tenants.WRITERS
    ]


def _history() -> list[Figure]:
    def figure(text: str, metric: str, against: list[str], target: float | None) -> Figure:
        theirs = tuple((name, dict[str, int]()) for name in against)
        return Figure(text, "history", metric, ("Holdfast", {}), theirs, "at most", target, floor=("apsw", {}))

    adk = ["ADK SqliteSessionService", "ADK DatabaseSessionService"]
    return [
        figure("last 50 messages, time vs. SQLiteSession", "last_50_us", ["SQLiteSession"], 0.5),
        figure("all 1,000 messages, time vs. SQLiteSession", "all_1000_us", ["SQLiteSession"], 0.5),
        figure("all 1,000 messages, time vs. decoding alone", "all_1000_us", ["decoding alone"], None),
        figure("last 50 messages, time vs. the faster ADK service", "last_50_us", adk, 0.05),
        figure("all 1,000 messages, time vs. the faster ADK service", "all_1000_us", adk, 0.05),
    ]


def _growth() -> list[Figure]:
    figures = []
    for group in growth.GROUPS:
        log = ("log", dict[str, int]())
        many, few = ("sessions", {"sessions": growth.MANY}), ("sessions", {"sessions": growth.FEW})
        append = "time of an append to 100,000 messages, vs. to 100"
        page = "time of a page of 50 in 100,000 messages, slowest position vs. fastest"
        figures += [
            Figure(append, group, "append_growth", log, (), "at most", 1.2),
            Figure(page, group, "page_spread", log, (), "at most", 1.2),
            Figure(
                "a session by id, time with 1,000,000 sessions vs. 1,000", group, "get_us", many, (few,), "at most", 1.5
            ),
            Figure(
                "a session by key, time with 1,000,000 sessions vs. 1,000",
                group,
                "find_us",
                many,
                (few,),
                "at most",
                1.5,
            ),
        ]
    return figures


def _conversation() -> list[Figure]:
    def figure(text: str, part: str, metric: str, bound: Bound, target: float) -> Figure:
        return Figure(text, "conversation", metric, (part, dict[str, int]()), (), bound, target)

    def buffering(text: str, flush_delay_us: int) -> Figure:
        side = ("buffering", {"flush_delay_us": flush_delay_us})
        return Figure(text, "conversation", "buffered_speedup", side, (), "at least", 20)

    by_hand = "time vs. moving the same rows by hand"
    return [
        figure("context of 10,000 messages, time vs. reading the last 50", "context", "context_ratio", "at most", 2),
        figure(f"compacting 1,000 messages, {by_hand}", "compaction", "compact_ratio", "at most", 3),
        figure(f"rolling back that compaction, {by_hand}", "compaction", "rollback_ratio", "at most", 3),
        figure("fork of 10,000 messages, time vs. of 100", "forking", "fork_growth", "at most", 1.2),
        buffering("100 buffered messages, speed vs. 100 appends", 0),
        buffering("100 buffered messages, 1 ms added to each flush, speed vs. 100 appends", conversation.SLOW_FLUSH_US),
    ]


def _search() -> list[Figure]:
    texts = {
        "rare": "a word in 1 of 500 messages",
        "common": "a word in 2 of 3 messages",
        "both": "both words",
        "phrase": "a phrase of two words",
    }
    sides = {"search-sqlite": ("Holdfast, sync", "FTS5"), "search-postgres": ("Holdfast", "tsvector")}
    return [
        Figure(
            f"{texts[kind]}, time vs. {theirs} by hand",
            group,
            f"{kind}_us",
            (ours, {}),
            ((theirs, {}),),
            "at most",
            1.5,
        )
        for group, (ours, theirs) in sides.items()
        for kind in search.KINDS
    ]


def _steps() -> list[Figure]:
    figures = [
        Figure(
            f"{workers} worker{'s' * (workers > 1)}, {'sync' if who == steps.SYNC else 'async'}, vs. DBOS",
            group,
            "rate",
            (who, {"workers": workers}),
            (("DBOS", {"workers": workers}),),
            "at least",
            target,
            floor=(steps.BY_HAND, {"workers": workers}),
        )
        for group, alone, targets in (
            ("steps-sqlite", steps.SYNC, (10, 40)),
            ("steps-postgres", "Holdfast", (6, 25)),
        )
        for workers, who, target in zip(steps.MANY, (alone, "Holdfast"), targets, strict=True)
    ]
    whole, resuming = (("a whole step", dict[str, int]()), ("resuming", dict[str, int]()))
    step = "state, 2 messages, a finished tool call and usage, time vs. an append"
    again = "resuming a run, time with 1,000 steps vs. 10"
    return [
        *figures,
        Figure(step, steps.COST_GROUP, "step_ratio", whole, (), "at most", 2),
        Figure(again, steps.COST_GROUP, "resume_growth", resuming, (), "at most", 3),
    ]


def _langgraph() -> list[Figure]:
    group, ours, theirs = graphs.GROUP, "Holdfast", "Holdfast, PostgreSQL"

    def figure(text: str, metric: str, who: str, against: list[str], target: float) -> Figure:
        sides = tuple((name, dict[str, int]()) for name in against)
        return Figure(text, group, metric, (who, {}), sides, "at most", target)

    def loop(text: str, who: str, against: list[str], target: float) -> Figure:
        floor = graphs.NOTHING_SAVED if "async" in who else graphs.NOTHING_SAVED_SYNC
        return replace(figure(text, "loop_us", who, against, target), floor=(floor, {}))

    sqlite, postgres = ["SqliteSaver", "AsyncSqliteSaver"], ["PostgresSaver", "AsyncPostgresSaver"]
    deltas = ["SqliteSaver, DeltaChannel", "AsyncSqliteSaver, DeltaChannel"]
    figures = [
        figure("bytes after 500 turns, vs. the text", "payload_ratio", ours, [], 1.5),
        figure("bytes after 500 turns on PostgreSQL, vs. the text", "payload_ratio", theirs, [], 1.5),
        figure("bytes after 500 turns, vs. SqliteSaver", "bytes", ours, sqlite[:1], 1 / 500),
        figure("bytes after 500 turns, vs. SqliteSaver with DeltaChannel", "bytes", ours, deltas[:1], 1 / 6),
        figure("bytes after 500 turns, vs. PostgresSaver", "bytes", theirs, postgres[:1], 1 / 150),
        figure("bytes at 1,000 messages, vs. at 100", "bytes_growth", ours, [], 11),
        loop("500 turns, async, time vs. AsyncSqliteSaver", "Holdfast, async", sqlite[1:], 0.3),
        loop("500 turns, async, time vs. AsyncSqliteSaver with DeltaChannel", "Holdfast, async", deltas[1:], 0.5),
        loop("500 turns, time vs. PostgresSaver", theirs, postgres[:1], 0.3),
        loop("500 turns, time vs. PostgresSaver with DeltaChannel", theirs, ["PostgresSaver, DeltaChannel"], 0.5),
    ]
    for who, engine in ((ours, "SQLite"), (theirs, "PostgreSQL")):
        growing = f"time in the saver for a turn at 1,000 messages, vs. at 100, {engine}"
        figures.append(figure(growing, "saver_growth", who, [], 2))
    for who, others, engine in ((ours, [*sqlite, *deltas], "SQLite"), (theirs, postgres, "PostgreSQL")):
        official = f"time vs. the fastest official saver, {engine}"
        figures.append(figure(f"latest state of 1,000 messages, {official}", "latest_us", who, others, 0.5))
        text = f"latest state, first read by a new saver, {official}"
        figures.append(figure(text, "latest_new_us", who, others, 1.5))
        whole = [name for name in others if "Delta" not in name]
        figures.append(figure(f"list of 100 checkpoints, {official}", "list_us", who, whole, 0.5))
    return figures


def _workspace() -> list[Figure]:
    group = workspace.GROUP

    def figure(text: str, metric: str, against: list[str], target: float) -> Figure:
        sides = tuple((name, dict[str, int]()) for name in against)
        return Figure(text, group, metric, ("Holdfast", {}), sides, "at most", target)

    figures = [
        figure("next snapshot, time vs. walking the tree", "walk_ratio", [], 2),
        figure("next snapshot, bytes vs. the changed files compressed", "changes_ratio", [], 1.2),
    ]
    for name, time in (("git", 0.5), ("restic", 0.05), ("borg", 0.05)):
        figures.append(figure(f"next snapshot, time vs. {name}", "next_ms", [name], time))
    archive = ["tar and zstd"]
    many = "snapshot of an unchanged tree, time vs. walking the tree"
    return [
        *figures,
        figure("next snapshot, bytes vs. git", "next_bytes", ["git"], 0.5),
        figure("next snapshot, bytes vs. tar and zstd", "next_bytes", archive, 1 / 600),
        figure("first snapshot, time vs. tar and zstd", "first_ms", archive, 1),
        figure("first snapshot, bytes vs. tar and zstd", "first_bytes", archive, 1.1),
        figure("restore into a new directory, time vs. a plain copy", "restore_ms", ["walk, copy"], 1.4),
        figure("restore in place, time vs. git reset and clean", "back_ms", ["git"], 1),
        Figure(many, workspace.MANY_GROUP, "walk_ratio", ("Holdfast", {}), (), "at most", 2.5),
    ]


def _retention() -> list[Figure]:
    figures = []
    for name in retention.WHO:
        side = (name, dict[str, int]())
        longest = f"{name}: longest transaction of a sweep over 10,000 snapshots of 1,000 tenants"
        memory = f"{name}: memory of a sweep over 2,400 snapshots of a tenant, vs. over 600"
        figures.append(Figure(longest, retention.GROUP, "longest_ms", side, (), "at most", 100, "ms"))
        figures.append(Figure(memory, retention.GROUP, "memory_ratio", side, (), "at most", 1.2))
    return figures


def _import() -> list[Figure]:
    ours = ("Holdfast", dict[str, int]())
    return [
        Figure("time of `import holdfast`", "import", "import_ms", ours, (), "at most", 150, "ms"),
        Figure("resident memory after `import holdfast`", "import", "resident_mb", ours, (), "at most", 40, "MB"),
    ]


TITLES = {
    "append-sqlite": "Append, SQLite",
    "append-new": "Append, SQLite, new sessions",
    "slow-flush": "Append, SQLite, slow disk",
    "append-postgres": "Append, PostgreSQL",
    "tenants-sqlite": "Append for many tenants, SQLite",
    "tenants-postgres": "Append for many tenants, PostgreSQL",
    "history": "History, SQLite",
    "growth-sqlite": "Growth, SQLite",
    "growth-postgres": "Growth, PostgreSQL",
    "conversation": "Long conversation, SQLite",
    "search-sqlite": "Search in 100,000 messages, SQLite",
    "search-postgres": "Search in 100,000 messages, PostgreSQL",
    "steps-sqlite": "Durable steps, SQLite",
    "steps-postgres": "Durable steps, PostgreSQL",
    "step-cost": "Cost of a step, SQLite",
    "langgraph": "LangGraph, growing conversation",
    "retention": "Retention, 10,000 snapshots of 1,000 tenants",
    "agents-sqlite": "10,000 agents, SQLite",
    "agents-postgres": "10,000 agents, PostgreSQL",
    "workspace": "Workspaces, about 5,000 files",
    "workspace-many": "Workspaces, 100,000 files",
    server.GROUP: "Over HTTP",
    kagent.GROUP: "Opening a session with kagent's client",
    "import": "Import",
}


def _server() -> list[Figure]:
    def figure(text: str, metric: str, against: str, bound: Bound, target: float) -> Figure:
        params = {"connections": server.CONNECTIONS}
        sides = (server.OURS, params), ((against, params),)
        return Figure(text, server.GROUP, metric, *sides, bound, target, floor=(server.FLOOR, params))

    return [
        figure("durable append, rate vs. a bare ASGI echo", "rate", server.BARE, "at least", 0.35),
        figure("durable append, rate vs. a FastAPI echo that stores nothing", "rate", server.FASTAPI, "at least", 1.7),
        figure("server memory, vs. a Starlette echo", "resident_mb", server.STARLETTE, "at most", 1.5),
    ]


def _agents() -> list[Figure]:
    bounds = {"access": 2, "accessible": 2, "get": 1.5, "create": 1.5, "update": 1.5}
    sides = (agents.OURS, dict[str, int]()), ((agents.HAND, dict[str, int]()),)
    return [
        Figure(f"{call}, vs. the same statements by hand", group, f"{call}_us", *sides, "at most", target)
        for group in agents.GROUPS
        for call, target in bounds.items()
    ]


def _kagent() -> list[Figure]:
    text = "a session of 1,000 events, time vs. the client reading the same response from memory"
    return [
        Figure(f"{text}, {engine}", kagent.GROUP, "open_ratio", (f"Holdfast, {engine}", {}), (), "at most", 2)
        for engine in ("sqlite", "postgres")
    ]


FIGURES = [
    *_append_sqlite(),
    *_append_postgres(),
    *_tenants(),
    *_history(),
    *_growth(),
    *_conversation(),
    *_search(),
    *_server(),
    *_steps(),
    *_langgraph(),
    *_workspace(),
    *_retention(),
    *_agents(),
    *_kagent(),
    *_import(),
]
