"""The report: every figure with its target, then the tables of the measured values."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import agents, append_postgres, append_sqlite, graphs, growth, limits, search, server, steps, tenants, workspace
from .figures import FIGURES, TITLES, Figure, Measured
from .results import Results

_INTRODUCTION = """\
# Benchmarks

`make bench` runs all benchmarks and writes this page. Every contender processes the same messages of about
1 KB in a fresh process. The contenders of a group take turns in random order, and each round is repeated. The
tables show the median over the repeats. Ratios are computed within each repeat, so that both sides ran under
the same conditions; the figures below are their medians, and the range shows how much they vary.

Appends are durable before they are acknowledged. SQLite runs in WAL mode with `synchronous=FULL`, PostgreSQL
with its default settings. After each run the stored rows are counted: every acknowledged message must be
present. The raw drivers write the same rows as Holdfast into Holdfast's schema, the message and the session
row in one transaction. Absolute numbers apply to this machine only; ratios are easier to transfer to others.
"""
_WIDTH = 110
"""The maximum length of a line of prose; table rows are longer."""
_KEYS = ("processor", "memory", "system", "file system", "load before the run", "Python", "SQLite")


def write(results: Results, path: Path, plots: dict[str, str]) -> tuple[int, int]:
    """Write the report. Return how many figures meet their target, and how many measured figures have one."""
    measured = [(figure, result) for figure in FIGURES if (result := figure.measured(results)) is not None]
    parts = [_INTRODUCTION, _figures(results, measured), _limits(measured), _machine(results)]
    for group, section in _SECTIONS.items():
        if group in results.groups():
            parts.append(section(results, group) + _plot(plots, group) + _errors(results, group))
    parts.append(_USE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts))
    return sum(figure.met(result) for figure, result in measured), sum(f.target is not None for f, _ in measured)


def _figures(results: Results, measured: Sequence[tuple[Figure, Measured]]) -> str:
    rows = [
        [
            f"{TITLES[figure.group]}: {figure.text}",
            _target(figure),
            f"**{_number(result.middle)}{_unit(figure)}**",
            f"{_number(result.lowest)} to {_number(result.highest)}",
            _reached(figure.reached_by_floor(results)),
            _verdict(figure, result),
        ]
        for figure, result in measured
    ]
    return "## Figures\n\n" + _table(["figure", "target", "measured", "range", "floor", "met"], rows) + _FLOOR


_FLOOR = """
The floor is the same figure for a contender that does only the same work by hand: the raw driver with the
same rows, in one commit for all concurrent writers; LangGraph with a saver that stores nothing and returns
the state unchanged; an ASGI application around one append without authentication.

A figure has no target if the target that was set is out of reach even for its floor. Both values are still
measured and shown.
"""


def _target(figure: Figure) -> str:
    return "" if figure.target is None else f"{figure.bound} {_number(figure.target)}{_unit(figure)}"


def _verdict(figure: Figure, result: Measured) -> str:
    if figure.target is None:
        return ""
    return "yes" if figure.met(result) else "**no**"


def _reached(floor: float | None) -> str:
    return "" if floor is None else f"{_number(floor)}x"


def _wrapped(text: str, indent: str = "") -> str:
    """Wrap a paragraph of prose."""
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _limits(measured: Sequence[tuple[Figure, Measured]]) -> str:
    parts = ["## Limits", "", _wrapped(_ABOUT_LIMITS), ""]
    for limit, figures in limits.explained(measured):
        parts += [f"- {TITLES[figure.group]}: {figure.text}" for figure in figures]
        parts += ["", _wrapped(limit or "No limit is known; another run may reach the target."), ""]
    return "\n".join(parts)


_ABOUT_LIMITS = (
    "Each list contains figures that miss their target or have none. The paragraph below it names the cause and the"
    " optimizations that were tried."
)


def _machine(results: Results) -> str:
    lines = ["## Machine", ""]
    runs = results.runs()
    facts = results.facts.get(runs[-1], {})
    lines += [f"- {name}: {facts[name]}" for name in _KEYS if name in facts]
    versions = ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
    lines.append(f"- versions: {versions}")
    lines.append(f"- messages of {facts.get('message bytes')} bytes from seed {facts.get('seed')}")
    for run in runs:
        fact = results.facts.get(run, {})
        groups = ", ".join(group for group in results.groups() if results.run_of(group) == run)
        repeats = fact.get("repeats")
        how = f"{repeats} repeat{'s' * (repeats != 1)} of {fact.get('seconds')} s"
        lines.append(f"- run of {run} UTC at commit {fact.get('commit')}, {how}: {groups}")
    return "\n".join([*(_wrapped(line, "  ") for line in lines), ""])


def _appends(results: Results, group: str) -> str:
    head = ["appends per second"]
    for writers in append_sqlite.MANY:
        head += [f"{writers} writer{'s' * (writers > 1)}", "p50 ms", "CPU µs"]
    rows = [_append_row(results, group, contender) for contender in _ordered(results, group)]
    return _section(group, _NOTES[group], head, rows)


_NOTES = {
    append_sqlite.GROUP: "Concurrent writers in one process append for a fixed time, each to its own session.",
    append_sqlite.NEW_GROUP: (
        "16 writers with 40 appends each, and 64 writers with 10 appends each, to new sessions. The time includes what a"
        " contender opens for each session."
    ),
    append_sqlite.SLOW_GROUP: "The same with 1 ms added to each flush, to simulate a slower disk.",
    append_postgres.GROUP: f"Connection pools have one connection per writer, at most {append_postgres.MAX_POOL}.",
}


def _append_row(results: Results, group: str, contender: str) -> list[str]:
    if contender == "fdatasync":
        return _flush_row(results, group)
    row = [contender]
    for writers in append_sqlite.MANY:
        rate, p50, cpu = (
            results.middle(group, contender, metric, writers=writers) for metric in ("rate", "p50_us", "cpu_us")
        )
        row += [_whole(rate), "" if p50 is None else f"{p50 / 1000:.2f}", _whole(cpu)]
    return row


def _flush_row(results: Results, group: str) -> list[str]:
    sizes = sorted({size for size in (4_096, 20_480) if results.series(group, "fdatasync", "rate", bytes=size)})
    rates = [_whole(results.middle(group, "fdatasync", "rate", bytes=size)) for size in sizes]
    p50 = results.middle(group, "fdatasync", "p50_us", bytes=sizes[0]) or 0
    named = " / ".join(f"{size // 1024} KB" for size in sizes)
    return [f"sequential fdatasync, {named}", " / ".join(rates), f"{p50 / 1000:.2f}"] + [""] * 7


def _tenants(results: Results, group: str) -> str:
    rows = [
        [f"{count} tenant{'s' * (count > 1)}"]
        + [
            _whole(results.middle(group, "Holdfast", "rate", writers=writers, tenants=count))
            for writers in tenants.WRITERS
        ]
        for count in (tenants.ONE, tenants.MANY)
    ]
    head = ["appends per second", *(f"{writers} writers" for writers in tenants.WRITERS)]
    text = "Holdfast only. Each writer appends to its own session; the writers are distributed evenly over the tenants."
    return _section(group, text, head, rows)


def _history(results: Results, group: str) -> str:
    floor = results.middle(group, "decoding alone", "all_1000_us")
    rows = []
    for contender in _ordered(results, group, metric="all_1000_us"):
        last, everything = (results.middle(group, contender, name) for name in ("last_50_us", "all_1000_us"))
        times = f"{everything / floor:.1f}" if everything and floor else ""
        rows.append([contender, _whole(last), _whole(everything), times])
    head = ["µs, warm, decoded", "last 50", "all 1,000", "vs. decoding alone"]
    return "## History: 20 sessions of 1,000 messages each\n\n" + _table(head, rows)


def _growth(results: Results, group: str) -> str:
    def median(metric: str, contender: str = "log", **params: int) -> str:
        return _whole(results.middle(group, contender, metric, **params))

    rows = [
        ["append to a session of 100 messages, and of 100,000", median("append_short_us"), median("append_long_us")]
    ]
    for direction in ("oldest", "newest"):
        for where in ("start", "middle", "end"):
            result = median(f"page_{direction}_{where}_us")
            rows.append([f"page of 50 messages, {direction} first, at the {where} of 100,000", "", result])
    for metric, text in (("get_us", "id"), ("find_us", "key")):
        both = [median(metric, "sessions", sessions=count) for count in (growth.FEW, growth.MANY)]
        rows.append([f"a session by {text}, of 1,000 and of 1,000,000", *both])
    return f"## {TITLES[group]}\n\n" + _table(["µs", "small", "large"], rows)


def _conversation(results: Results, group: str) -> str:
    rows = [
        [text, _whole(results.middle(group, part, ours)), _whole(results.middle(group, part, theirs))]
        for text, part, ours, theirs in _CONVERSATION
    ]
    return f"## {TITLES[group]}\n\n" + _table(["µs", "Holdfast", "comparison"], rows)


_CONVERSATION = (
    ("context of 10,000 messages; vs. reading the last 50", "context", "context_us", "last_50_us"),
    ("compacting 1,000 messages; vs. by hand", "compaction", "compact_us", "raw_compact_us"),
    ("rolling back that compaction; vs. by hand", "compaction", "rollback_us", "raw_rollback_us"),
    ("fork of 10,000 messages; vs. of 100", "forking", "fork_long_us", "fork_short_us"),
    ("saving 100 buffered messages; vs. 100 durable appends", "buffering", "buffered_us", "durable_us"),
)


def _search(results: Results, group: str) -> str:
    metrics = [f"{kind}_us" for kind in search.KINDS]
    rows = [
        [name, *(_whole(results.middle(group, name, metric)) for metric in metrics)]
        for name in _ordered(results, group, metric=metrics[0])
    ]
    return _section(group, _SEARCHES, ["µs for 20 hits, warm, decoded", *search.KINDS], rows)


_SEARCHES = (
    "The newest 20 matching messages for a number that 1 of 500 messages contains, a word that 2 of 3 messages contain, both,"
    " and a phrase of two words. By hand, a separate index is searched and the same rows are decoded, once with the"
    " database's own snippets and once without snippets."
)


def _steps(results: Results, group: str) -> str:
    rows = [
        [name, *(_whole(results.middle(group, name, "rate", workers=workers)) for workers in steps.MANY)]
        for name in _ordered(results, group)
    ]
    head = ["steps per second", *(f"{workers} worker{'s' * (workers > 1)}" for workers in steps.MANY)]
    text = (
        "A step stores a result of 1 KB and is durable before the next step starts. Each worker executes its own run."
    )
    return _section(group, text, head, rows)


def _langgraph(results: Results, group: str) -> str:
    def ms(name: str, metric: str) -> str:
        value = results.middle(group, name, metric)
        return "" if value is None else f"{value / 1_000:,.1f}"

    rows = []
    for name in _ordered(results, group, metric="bytes"):
        sizes = [results.middle(group, name, f"bytes_{turns}") for turns in (50, graphs.TURNS)]
        kilobytes = [_whole(None if size is None else size / 1_000) for size in sizes]
        times = [ms(name, f"{what}_us_{turns}") for what in ("turn", "saver") for turns in (50, graphs.TURNS)]
        rows.append(
            [name, *kilobytes, *times, *(ms(name, metric) for metric in ("latest_us", "latest_new_us", "list_us"))]
        )
    head = ["", "KB, 50 turns", "KB, 500", "ms per turn at 50", "at 500", "of which in the saver at 50", "at 500"]
    head += ["ms, latest state", "first read", "list of 100"]
    return _section(group, _GRAPHS, head, rows)


_GRAPHS = (
    "A turn is a message and a reply of 1,000 characters each, made of random words. It writes three checkpoints and the"
    ' writes of two tasks, each durable before the next (`durability="sync"`). All contenders run the same graph. The'
    " `DeltaChannel` contenders use that channel for the messages, with its default snapshot frequency; their lists of"
    " checkpoints do not contain the messages. Time in the saver is the sum over its calls, some of which run concurrently."
    " The bytes depend on the text: with the 100 words of the other groups, which PostgreSQL compresses well itself, Holdfast"
    " took 1/109 of the bytes of PostgresSaver and 1/667 of SqliteSaver in an earlier run."
)


def _workspace(results: Results, group: str) -> str:
    metrics = ("first_ms", "next_ms", "first_bytes", "next_bytes", "restore_ms", "back_ms", "rewind_ms")
    rows = [
        [name, *(_whole(results.middle(group, name, metric)) for metric in metrics)]
        for name in _ordered(results, group, metric="next_ms")
    ]
    head = [
        "",
        "first, ms",
        "next, ms",
        "first, bytes",
        "next, bytes",
        "restore, ms",
        "restore in place, ms",
        "full rewind, ms",
    ]
    text = (
        "About 5,000 files of Python packages, and ten snapshots. Between two snapshots, 20 files are changed, added or"
        " removed. restic encrypts its data. The floor is a walk that calls stat on every file, and a plain copy. A restore in"
        " place restores only the files, like git. A full rewind first captures them, so that it can be undone, and also"
        " rewinds the run and its conversation."
    )
    return _section(group, text, head, rows)


def _import(results: Results, group: str) -> str:
    rows = [
        [name, *(_whole(results.middle(group, name, metric)) for metric in ("import_ms", "resident_mb"))]
        for name in _ordered(results, group, metric="import_ms")
    ]
    return f"## {TITLES[group]}\n\n" + _table(["", "ms", "resident MB"], rows)


_SERVING = (
    "One server process on one core, the load generator on the other: 32 connections, each of which sends a message of 1 KB and"
    " waits for the response. The echo servers decode the message and return it. Holdfast responds once it is durable."
)


def _server(results: Results, group: str) -> str:
    rows = [
        [name, *(_whole(results.middle(group, name, metric)) for metric in ("rate", "work_us", "resident_mb"))]
        for name in _ordered(results, group)
    ]
    return _section(group, _SERVING, ["", "responses per second", "CPU µs per response", "resident MB"], rows)


def _agents(results: Results, group: str) -> str:
    rows = [
        [contender, *(_whole(results.middle(group, contender, metric)) for metric in agents.METRICS)]
        for contender in (agents.OURS, agents.HAND)
    ]
    text = (
        f"{agents.AGENTS:,} agents with {agents.SHARES:,} shares. A page of accessible agents has up to {agents.PAGE}."
    )
    return _section(group, text, ["µs", *(metric.removesuffix("_us") for metric in agents.METRICS)], rows)


_SECTIONS: dict[str, Any] = {
    append_sqlite.GROUP: _appends,
    append_sqlite.NEW_GROUP: _appends,
    append_sqlite.SLOW_GROUP: _appends,
    append_postgres.GROUP: _appends,
    **dict.fromkeys(tenants.GROUPS, _tenants),
    "history": _history,
    "growth-sqlite": _growth,
    "growth-postgres": _growth,
    "conversation": _conversation,
    "search-sqlite": _search,
    "search-postgres": _search,
    **dict.fromkeys(steps.GROUPS, _steps),
    graphs.GROUP: _langgraph,
    **dict.fromkeys(agents.GROUPS, _agents),
    workspace.GROUP: _workspace,
    server.GROUP: _server,
    "import": _import,
}

_USE = """\
## Running the benchmarks

    make bench                                            # run all groups
    make bench ARGS="--quick"                             # a smoke test of a few minutes; results go to /tmp
    make bench ARGS="--only append-sqlite --repeats 9"    # run one group, keep the other results
    make bench ARGS="--report-only"                       # write this page from bench/results.jsonl

Contenders are small functions in `bench/`, with one module per kind of work.
"""


def _ordered(results: Results, group: str, metric: str = "rate") -> list[str]:
    """Return the contenders of a group, fastest first."""
    medians = {name: results.middle(group, name, metric) or 0.0 for name in results.contenders(group)}
    return sorted(medians, key=lambda name: medians[name], reverse=metric == "rate")


def _section(group: str, text: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"## {TITLES[group]}\n\n{_wrapped(text)}\n\n" + _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _plot(plots: dict[str, str], group: str) -> str:
    return f"\n![{TITLES[group]}](plots/{plots[group]})\n" if group in plots else ""


def _errors(results: Results, group: str) -> str:
    return "".join(f"\nFailed: {error}\n" for error in results.errors(group))


def _unit(figure: Figure) -> str:
    return "x" if figure.unit == "x" else f" {figure.unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
