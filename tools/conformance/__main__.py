"""Run a framework's own tests against our adapter, and write the result into docs/conformance.md.

    python3 tools/conformance FOLDER [--database URL] [SUITE ...]

FOLDER is a checkout of the framework's repository, or an unpacked source distribution of it. Every suite whose tests are in it
runs, or those named. The framework's code comes from a checkout too, everything else from our lock files. A test that fails must
be on the suite's list with a reason; otherwise this fails.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from running import ROOT, run_variant, show
from suites import SUITES, Suite

PAGE = ROOT / "docs" / "conformance.md"


def main() -> int:
    asked = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("suite", nargs="*", help=", ".join(suite.name for suite in SUITES))
    asked.add_argument("--database", default="", help="run on this PostgreSQL database too, after SQLite in memory")
    arguments = asked.parse_args()
    expected = [
        suite
        for suite in SUITES
        if suite.name in (arguments.suite or [suite.name]) and suite.found_in(arguments.folder)
    ]
    if not expected:
        names = ", ".join(arguments.suite or [suite.name for suite in SUITES])
        print(f"no tests of {names} in {arguments.folder}", file=sys.stderr)
        return 2
    return max(run(suite, arguments.folder.resolve(), arguments.database) for suite in expected)


def run(suite: Suite, checkout: Path, database: str) -> int:
    """Run all variants of a suite and write what came out; 1 if a test failed that is not on the list."""
    unexpected: set[str] = set()
    lines: list[str] = []
    for variant, where in product(suite.variants, ["", database] if database else [""]):
        outcome = run_variant(suite, variant, checkout, database=where)
        engine = "PostgreSQL" if where else "SQLite"
        unexpected |= show(suite, variant, engine, outcome)
        count = outcome.passed + len(outcome.failed)
        lines.append(f"| {variant.title} | {engine} | {outcome.passed} of {count} | {outcome.skipped} |")
    write(suite, checkout, lines)
    return 1 if unexpected else 0


def write(suite: Suite, checkout: Path, lines: list[str]) -> None:
    """Replace the section of a suite in docs/conformance.md."""
    parts = [
        f"<!-- {suite.name} -->",
        f"## {suite.title}",
        "",
        f"{release(suite, checkout)}, run on {datetime.now(UTC):%Y-%m-%d}. {suite.note}",
        "",
        "| saver | engine | passed | skipped by the suite |",
        "| --- | --- | --- | --- |",
        *lines,
    ]
    if suite.allowed:
        parts += ["", "Allowed to fail:", "", *(f"- `{name}`: {reason}" for name, reason in suite.allowed.items())]
    section = "\n".join([*parts, f"<!-- /{suite.name} -->"])
    page = PAGE.read_text()
    existing = re.compile(f"<!-- {re.escape(suite.name)} -->.*?<!-- /{re.escape(suite.name)} -->", re.DOTALL)
    page = existing.sub(lambda _: section, page) if existing.search(page) else f"{page.rstrip()}\n\n{section}\n"
    PAGE.write_text(page)


def release(suite: Suite, checkout: Path) -> str:
    """The release that the checkout says it is."""
    folder = suite.found_in(checkout) or checkout
    described = re.search(r'^version = "(.+?)"', (folder / "pyproject.toml").read_text(), re.MULTILINE)
    version = described[1] if described else "an unknown version"
    return f"{suite.package} {version}"


if __name__ == "__main__":
    sys.exit(main())
