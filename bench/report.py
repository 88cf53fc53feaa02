"""The report: every figure with its target, then the tables behind them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import append_postgres, append_sqlite, graphs, growth, limits, search, server, steps, tenants, workspace
from .figures import FIGURES, TITLES, Figure, Measured
from .results import Results

_INTRODUCTION = """\
# Benchmarks

`make bench` measures everything on this page in one run and writes it. Every contender gets the same messages of about one
kilobyte, in a fresh process, in its own session; all contenders of a group take turns, in an order that changes, and the
whole round is repeated. What a table shows is the median over the repeats. A ratio is taken within each repeat, where both
sides met the same moments of the machine; its median is what counts, and its range shows how steady it is.

An append counts when it is durable. SQLite runs in WAL mode with `synchronous=FULL`, PostgreSQL with its default settings, and
afterwards the rows are counted: each acknowledged message must be there. The raw drivers write the same rows as Holdfast
into Holdfast's own schema, message and session head in one transaction. Absolute numbers belong to this machine; ratios
travel better.
"""
_KEYS = ("processor", "memory", "system", "file system", "load before the run", "Python", "SQLite")


def write(results: Results, path: Path, plots: dict[str, str]) -> tuple[int, int]:
    """Write the report; how many figures are met, and how many were measured."""
    measured = [(figure, result) for figure in FIGURES if (result := figure.measured(results)) is not None]
    parts = [_INTRODUCTION, _figures(results, measured), _limits(measured), _machine(results)]
    for group, section in _SECTIONS.items():
        if group in results.groups():
            parts.append(section(results, group) + _plot(plots, group) + _errors(results, group))
    parts.append(_USE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts))
    return sum(figure.met(result) for figure, result in measured), len(measured)


def _figures(results: Results, measured: Sequence[tuple[Figure, Measured]]) -> str:
    rows = [
        [
            f"{TITLES[figure.group]}: {figure.text}",
            f"{figure.bound} {_number(figure.target)}{_unit(figure)}",
            f"**{_number(result.middle)}{_unit(figure)}**",
            f"{_number(result.lowest)} to {_number(result.highest)}",
            _reached(figure.reached_by_floor(results)),
            "yes" if figure.met(result) else "**no**",
        ]
        for figure, result in measured
    ]
    return "## Figures\n\n" + _table(["figure", "target", "measured", "range", "floor", "met"], rows) + _FLOOR


_FLOOR = """
The floor is the same figure for who does as much by hand and nothing else: the raw driver with the same rows, in one commit for
all where several write; LangGraph with a saver that hands its state back as it is; an ASGI application around one append that
requires no key.
"""


def _reached(floor: float | None) -> str:
    return "" if floor is None else f"{_number(floor)}x"


def _limits(measured: Sequence[tuple[Figure, Measured]]) -> str:
    parts = ["## Targets that are not reached, with the limits and what was tried", ""]
    for limit, figures in limits.explained(measured):
        parts += [f"- {TITLES[figure.group]}: {figure.text}" for figure in figures]
        parts += ["", limit or "Nothing is known that limits it: another run may reach it.", ""]
    return "\n".join(parts)


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
        how = f"{fact.get('repeats')} repeats of {fact.get('seconds')} s"
        lines.append(f"- run of {run} UTC at commit {fact.get('commit')}, {how}: {groups}")
    return "\n".join([*lines, ""])


def _appends(results: Results, group: str) -> str:
    head = ["appends per second"]
    for writers in append_sqlite.MANY:
        head += [f"{writers} writer{'s' * (writers > 1)}", "p50 ms", "CPU µs"]
    rows = [_append_row(results, group, contender) for contender in _ordered(results, group)]
    return f"## {TITLES[group]}\n\n{_NOTES[group]}\n\n" + _table(head, rows)


_NOTES = {
    append_sqlite.GROUP: "Writers side by side in one process, each on a session of its own, for some seconds.",
    append_sqlite.NEW_GROUP: (
        "16 writers with 40 appends each and 64 writers with 10, to sessions that are new, so that what a contender opens for"
        " a session is part of its time."
    ),
    append_sqlite.SLOW_GROUP: "The same with 1 ms added to each flush, as on a disk that is slower than this one.",
    append_postgres.GROUP: f"Pools hold {append_postgres.MAX_POOL} connections, or one for each writer if there are fewer.",
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
    return [f"fdatasync, one after another, {named}", " / ".join(rates), f"{p50 / 1000:.2f}"] + [""] * 7


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
    text = "Holdfast alone, each writer on a session of its own; the tenants take turns among the writers.\n\n"
    return f"## {TITLES[group]}\n\n{text}" + _table(head, rows)


def _history(results: Results, group: str) -> str:
    floor = results.middle(group, "decoding alone", "all_1000_us")
    rows = []
    for contender in _ordered(results, group, metric="all_1000_us"):
        last, everything = (results.middle(group, contender, name) for name in ("last_50_us", "all_1000_us"))
        times = f"{everything / floor:.1f}" if everything and floor else ""
        rows.append([contender, _whole(last), _whole(everything), times])
    head = ["µs, warm, decoded", "last 50", "all 1,000", "of decoding alone"]
    return "## History: 20 sessions of 1,000 messages each\n\n" + _table(head, rows)


def _growth(results: Results, group: str) -> str:
    def shown(metric: str, contender: str = "log", **params: int) -> str:
        return _whole(results.middle(group, contender, metric, **params))

    rows = [["append, to 100 messages and to 100,000", shown("append_short_us"), shown("append_long_us")]]
    for direction in ("oldest", "newest"):
        for where in ("start", "middle", "end"):
            result = shown(f"page_{direction}_{where}_us")
            rows.append([f"page of 50 at the {where} of 100,000 messages, {direction} first", "", result])
    for metric, text in (("get_us", "id"), ("find_us", "key")):
        both = [shown(metric, "sessions", sessions=count) for count in (growth.FEW, growth.MANY)]
        rows.append([f"a session by {text}, one of 1,000 and of 1,000,000", *both])
    return f"## {TITLES[group]}\n\n" + _table(["µs", "small", "large"], rows)


def _conversation(results: Results, group: str) -> str:
    rows = [
        [text, _whole(results.middle(group, part, ours)), _whole(results.middle(group, part, theirs))]
        for text, part, ours, theirs in _CONVERSATION
    ]
    return f"## {TITLES[group]}\n\n" + _table(["µs", "Holdfast", "beside it"], rows)


_CONVERSATION = (
    ("context of 10,000 messages; reading the last 50", "context", "context_us", "last_50_us"),
    ("compacting 1,000 messages; by hand", "compaction", "compact_us", "raw_compact_us"),
    ("rolling that back; by hand", "compaction", "rollback_us", "raw_rollback_us"),
    ("a fork in 10,000 messages; in 100", "forking", "fork_long_us", "fork_short_us"),
    ("100 messages buffered and saved; 100 durable appends", "buffering", "buffered_us", "durable_us"),
)


def _search(results: Results, group: str) -> str:
    metrics = [f"{kind}_us" for kind in search.KINDS]
    rows = [
        [name, *(_whole(results.middle(group, name, metric)) for metric in metrics)]
        for name in _ordered(results, group, metric=metrics[0])
    ]
    return f"## {TITLES[group]}\n\n{_SEARCHES}\n\n" + _table(["µs for 20 hits, warm, decoded", *search.KINDS], rows)


_SEARCHES = (
    "The newest 20 messages that match: a number that one message of 500 has, a word that two of three have, both, and a phrase"
    " of two words. By hand, an index of one's own is searched and the same rows are decoded, once with the engine's own snippets"
    " and once without any."
)


def _steps(results: Results, group: str) -> str:
    rows = [
        [name, *(_whole(results.middle(group, name, "rate", workers=workers)) for workers in steps.MANY)]
        for name in _ordered(results, group)
    ]
    head = ["steps a second", *(f"{workers} worker{'s' * (workers > 1)}" for workers in steps.MANY)]
    text = "A step has a result of a kilobyte and is durable before the next; each worker drives a run of its own.\n\n"
    return f"## {TITLES[group]}\n\n{text}" + _table(head, rows)


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
    head = ["", "KB, 50 turns", "KB, 500", "ms a turn at 50", "at 500", "of it in the saver at 50", "at 500"]
    head += ["ms, latest state", "never read before", "list of 100"]
    return f"## {TITLES[group]}\n\n{_GRAPHS}\n\n" + _table(head, rows)


_GRAPHS = (
    "A turn is a message and an answer of a thousand characters each, words of no language: three checkpoints and what two tasks"
    ' wrote, each durable before the next (`durability="sync"`). The graph is the same for everybody; for `DeltaChannel` it is'
    " changed, with snapshots as often as it makes them by itself, and then a list does not hold the messages. Time in a saver"
    " is summed over its calls, some of which run side by side. How much is saved depends on the text: with the words of the"
    " other groups, of which there are a hundred and which PostgreSQL compresses well itself, Holdfast took 1/109 of"
    " PostgresSaver's bytes and 1/667 of SqliteSaver's in an earlier run."
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
        "all back, ms",
        "one back in place, ms",
        "a whole rewind, ms",
    ]
    text = (
        "About 5,000 files of Python packages; ten snapshots with 20 files changed between, new or gone. restic encrypts its"
        " data. The walk is the floor: it asks every file for its state, and copies plainly. One back in place is the files"
        " alone, as git does it; a whole rewind captures them first, so that it can be undone, and takes the run and its"
        " conversation back too.\n\n"
    )
    return f"## {TITLES[group]}\n\n{text}" + _table(head, rows)


def _import(results: Results, group: str) -> str:
    rows = [
        [name, *(_whole(results.middle(group, name, metric)) for metric in ("import_ms", "resident_mb"))]
        for name in _ordered(results, group, metric="import_ms")
    ]
    return f"## {TITLES[group]}\n\n" + _table(["", "ms", "resident MB"], rows)


_SERVING = (
    "One worker on one core, the load on the other: 32 connections that each send a message of 1 KB and wait for the answer. The"
    " echoes decode it and give it back; Holdfast answers when it is on the disk."
)


def _server(results: Results, group: str) -> str:
    rows = [
        [name, *(_whole(results.middle(group, name, metric)) for metric in ("rate", "work_us", "resident_mb"))]
        for name in _ordered(results, group)
    ]
    return f"## {TITLES[group]}\n\n{_SERVING}\n\n" + _table(
        ["", "answers a second", "µs of the processor for one", "resident MB"], rows
    )


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
    workspace.GROUP: _workspace,
    server.GROUP: _server,
    "import": _import,
}

_USE = """\
## Again

    make bench                                            # everything
    make bench ARGS="--quick"                             # a few minutes, to see that everything works; kept elsewhere
    make bench ARGS="--only append-sqlite --repeats 9"    # one group again; the report keeps the others' last results
    make bench ARGS="--report-only"                       # this page from bench/results.jsonl

Contenders are small functions in `bench/`, one file for each kind of work.
"""


def _ordered(results: Results, group: str, metric: str = "rate") -> list[str]:
    """The quickest first."""
    quick = {name: results.middle(group, name, metric) or 0.0 for name in results.contenders(group)}
    return sorted(quick, key=lambda name: quick[name], reverse=metric == "rate")


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
