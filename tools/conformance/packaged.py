"""Run the tests that come in the source distributions of the frameworks against our adapters: a part of `make test`.

    python3 tools/conformance/packaged.py [--workers NUMBER] [SUITE ...]

The distributions are those of the releases in our lock files, checked by the hashes there, and are kept in the user's cache. A
test that fails must be on the suite's list with a reason; otherwise this fails. So it does if a test on the list passes: then the
entry can go.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from running import ROOT, environment, run_variant, show
from suites import SUITES, Suite

sys.path.append(str(ROOT / "tools"))
from environment import _pip as pip_for
from environment import cache


def main() -> int:
    packaged = {suite.name: suite for suite in SUITES if suite.is_packaged}
    asked = argparse.ArgumentParser(prog="packaged.py", description=__doc__)
    asked.add_argument("suite", nargs="*", help=", ".join(packaged))
    asked.add_argument("--workers", default="2")
    arguments = asked.parse_args()
    unknown = set(arguments.suite) - packaged.keys()
    if unknown:
        print(f"no such suite: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    return max(run(packaged[name], arguments.workers) for name in arguments.suite or packaged)


def run(suite: Suite, workers: str) -> int:
    """Run all variants of a suite; 1 if a test failed that is not on the list, or passed although it is."""
    folder = source(suite)
    unexpected: set[str] = set()
    failed: set[str] = set()
    for variant in suite.variants:
        outcome = run_variant(suite, variant, folder, options=("-n", workers))
        failed |= set(outcome.failed)
        if show(suite, variant, "SQLite", outcome):
            # Some of their tests depend on the speed of the machine: failures not caused by us pass when the test runs alone.
            print("  once more, one after the other:")
            unexpected |= show(suite, variant, "SQLite", run_variant(suite, variant, folder, options=("-n", "0")))
    idle = [pattern for pattern in suite.allowed if not any(re.fullmatch(pattern, name) for name in failed)]
    for pattern in idle:
        print(f"  {suite.name}: {pattern} is allowed to fail and does not")
    return 1 if unexpected or idle else 0


def source(suite: Suite) -> Path:
    """The unpacked source distribution of the release in the lock file."""
    pinned = entry(suite)
    folder = cache() / "sources" / f"{suite.package}-{hashlib.sha256(pinned.encode()).hexdigest()[:16]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            unpack(download(pinned, Path(made)), Path(made) / "unpacked").rename(folder)
    return folder


def entry(suite: Suite) -> str:
    """The version and the hashes of a package in the lock file of its lane."""
    lock = (ROOT / "requirements" / f"{suite.environment}.txt").read_text()
    result = re.search(rf"^{re.escape(suite.package)}==(?:.*\\\n)*.*\n", lock, re.MULTILINE)
    assert result is not None, suite.package
    return result[0]


def download(pinned: str, into: Path) -> Path:
    """The archive of a source distribution. Its build tool is asked for the metadata: it is in our own environment."""
    expected = into / "wanted.txt"
    expected.write_text(pinned)
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--no-binary", ":all:"]
    where = ["--no-build-isolation", "--require-hashes", "--requirement", expected, "--dest", into]
    subprocess.run([*pip_for(Path(environment("test"))), "download", *options, *where], check=True, stdout=sys.stderr)
    return next(into.glob("*.tar.gz"))


def unpack(archive: Path, into: Path) -> Path:
    """The one folder that is in a source distribution."""
    with tarfile.open(archive) as existing:
        existing.extractall(into, filter="data")
    return next(into.iterdir())


if __name__ == "__main__":
    sys.exit(main())
