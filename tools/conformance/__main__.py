"""Run a framework's own tests against our adapter, and write the result into docs/conformance.md.

    python3 tools/conformance FOLDER [--database URL] [SUITE ...]

FOLDER is a checkout of the framework's repository, or its unpacked source distribution. By default every suite in it runs. The
framework's code comes from the checkout, all other packages from our lock files. The command fails if a test fails that is not on
the suite's list with a reason.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from running import ROOT, run_variant, show
from suites import SUITES, Suite

PAGE = ROOT / "docs" / "conformance.md"


def main() -> int:
    """Parse the command line, run the suites and return the exit code."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("suite", nargs="*", help=", ".join(suite.name for suite in SUITES))
    parser.add_argument("--database", default="", help="run on this PostgreSQL database too, after SQLite in memory")
    options = parser.parse_args()
    names = options.suite or [suite.name for suite in SUITES]
    suites = [suite for suite in SUITES if suite.name in names and suite.folder_in(options.folder)]
    if not suites:
        print(f"{options.folder} contains no tests of {', '.join(names)}", file=sys.stderr)
        return 2
    return max(run(suite, options.folder.resolve(), options.database) for suite in suites)


def run(suite: Suite, checkout: Path, database: str) -> int:
    """Run all variants of a suite and write the result; return 1 if a test failed that is not on the list."""
    unexpected: set[str] = set()
    rows: list[str] = []
    for variant, url in product(suite.variants, ["", database] if database else [""]):
        outcome = run_variant(suite, variant, checkout, database=url)
        engine = "PostgreSQL" if url else "SQLite"
        unexpected |= show(suite, variant, engine, outcome)
        count = outcome.passed + len(outcome.failed)
        rows.append(f"| {variant.title} | {engine} | {outcome.passed} of {count} | {outcome.skipped} |")
    write(suite, f"{release(suite, checkout)}, run on {datetime.now(UTC):%Y-%m-%d}", rows)
    return 1 if unexpected else 0


def write(suite: Suite, run_of: str, rows: list[str]) -> None:
    """Replace the section of a suite in docs/conformance.md."""
    lines = [
        f"<!-- {suite.name} -->",
        f"## {suite.title}",
        "",
        f"{run_of}.",
        suite.note,
        "",
        "| saver | engine | passed | skipped by the suite |",
        "| --- | --- | --- | --- |",
        *rows,
        *allowed_failures(suite),
        f"<!-- /{suite.name} -->",
    ]
    section = "\n".join(lines)
    page = PAGE.read_text()
    old = re.compile(f"<!-- {re.escape(suite.name)} -->.*?<!-- /{re.escape(suite.name)} -->", re.DOTALL)
    page = old.sub(lambda _: section, page) if old.search(page) else f"{page.rstrip()}\n\n{section}\n"
    PAGE.write_text(page)


def allowed_failures(suite: Suite) -> Iterator[str]:
    """Yield the lines that list the tests that may fail, grouped by reason."""
    patterns: dict[str, list[str]] = {}
    for pattern, reason in suite.allowed.items():
        patterns.setdefault(reason, []).append(pattern)
    if patterns:
        yield from ["", "Tests that may fail:"]
    for reason, names in patterns.items():
        yield from ["", f"- {reason}:", "", "  ```text", *(f"  {name}" for name in names), "  ```"]


def release(suite: Suite, checkout: Path) -> str:
    """Return the package and its version as stated by the checkout."""
    folder = suite.folder_in(checkout) or checkout
    version = re.search(r'^version = "(.+?)"', (folder / "pyproject.toml").read_text(), re.MULTILINE)
    return f"{suite.package} {version[1] if version else '(unknown version)'}"


if __name__ == "__main__":
    sys.exit(main())
