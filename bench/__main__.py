"""``python -m bench``: run the contenders, save the results and write the report."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from . import (
    agents,
    append_postgres,
    append_sqlite,
    conversation,
    graphs,
    growth,
    history,
    importing,
    kagent,
    retention,
    search,
    server,
    steps,
    tenants,
    workspace,
)
from .case import Case

if TYPE_CHECKING:
    from .results import Results

ROOT = Path(__file__).resolve().parent.parent
SECONDS, REPEATS = 3.0, 5
QUICK_SECONDS, QUICK_REPEATS = 0.5, 1


def main() -> int:
    """Run the benchmarks selected on the command line and write the report; return the exit code."""
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("terminated")
    )  # exit normally, which removes the scratch folder and stops the server
    options = _options()
    cases = _chosen(options.only, options.contenders)
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if not options.report_only:
        _run(cases, options)
    if options.contenders:
        print(f"results: {options.results}; no report is written for a selection of contenders")
        return 0
    return _report(options.results, options.docs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", type=_names, help=f"groups, separated by commas: {', '.join(_groups())}")
    parser.add_argument("--contenders", type=_names, help="contenders, separated by commas; writes no report")
    parser.add_argument("--repeats", type=int, help=f"number of runs of each case (default {REPEATS})")
    parser.add_argument("--seconds", type=float, help=f"measured seconds per case (default {SECONDS:g})")
    parser.add_argument(
        "--quick", action="store_true", help="a short smoke test; its results go to the temporary folder"
    )
    parser.add_argument(
        "--report-only", action="store_true", help="write the report from saved results, without running anything"
    )
    parser.add_argument("--list", action="store_true", help="list the selected cases and exit")
    parser.add_argument("--results", type=Path, help="file to append results to (default bench/results.jsonl)")
    parser.add_argument("--docs", type=Path, help="folder for the report (default docs)")
    parser.add_argument("--scratch", type=Path, help="folder on the disk to measure (default /var/tmp)")
    options = parser.parse_args()
    quick = options.quick or bool(options.contenders)
    aside = Path(tempfile.gettempdir()) / "holdfast-bench"
    options.repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    options.results = options.results or (aside / "results.jsonl" if quick else ROOT / "bench" / "results.jsonl")
    options.docs = options.docs or (aside if quick else ROOT / "docs")
    return options


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _cases() -> list[Case]:
    families = (
        append_sqlite,
        append_postgres,
        tenants,
        history,
        growth,
        conversation,
        search,
        retention,
        agents,
        steps,
        graphs,
        workspace,
        server,
        kagent,
        importing,
    )
    return [case for family in families for case in family.cases()]


def _groups() -> list[str]:
    return list(dict.fromkeys(case.group for case in _cases()))


def _chosen(only: Sequence[str] | None, contenders: Sequence[str] | None) -> list[Case]:
    unknown = set(only or ()) - set(_groups())
    if unknown:
        sys.exit(f"unknown group: {', '.join(sorted(unknown))}; the groups are {', '.join(_groups())}")
    return [
        case
        for case in _cases()
        if (not only or case.group in only) and (not contenders or case.contender in contenders)
    ]


def _run(cases: Sequence[Case], options: argparse.Namespace) -> None:
    from .environments import interpreters
    from .machine import facts
    from .running import Runner
    from .scratch import Scratch

    if any(case.group == workspace.GROUP for case in cases):
        workspace.install()
    run = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    pythons = interpreters()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with Scratch(options.scratch) as scratch, options.results.open("a") as file:
        initial = facts(pythons, scratch.folder, seconds=options.seconds, repeats=options.repeats)
        print(json.dumps({"run": run, "facts": initial}), file=file)
        runner = Runner(pythons, scratch, seconds=options.seconds)
        for result in runner.run(cases, options.repeats, lambda line: print(line, flush=True)):
            print(json.dumps({"run": run, **result}), file=file, flush=True)


def _report(path: Path, docs: Path) -> int:
    from .plots import draw
    from .report import write
    from .results import Results

    results = Results.read(path)
    if not results.groups():
        sys.exit(f"{path} contains no results")
    drawn = draw(results, docs / "plots")
    met, total = write(results, docs / "benchmarks.md", drawn)
    print(f"{met} of {total} targets are met: {docs / 'benchmarks.md'}")
    return 1 if _ours_failed(results) else 0


def _ours_failed(results: Results) -> bool:
    failed = [error for group in results.groups() for error in results.errors(group) if error.startswith("Holdfast")]
    for error in failed:
        print(f"failed: {error}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
