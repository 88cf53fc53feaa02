"""Run the tests that come in the source distributions of the frameworks against our adapters: a part of `make test`.

    python3 tools/conformance/packaged.py [--workers NUMBER] [SUITE ...]

The distributions are the releases in our lock files, verified by the hashes there and kept in the user's cache. The command fails
if a test fails that is not on the suite's list with a reason, and if a test on the list passes: then remove the entry.
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
    parser = argparse.ArgumentParser(prog="packaged.py", description=__doc__)
    parser.add_argument("suite", nargs="*", help=", ".join(packaged))
    parser.add_argument("--workers", default="2")
    options = parser.parse_args()
    unknown = set(options.suite) - packaged.keys()
    if unknown:
        print(f"unknown suite: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    return max(run(packaged[name], options.workers) for name in options.suite or packaged)


def run(suite: Suite, workers: str) -> int:
    """Run all variants of a suite; return 1 if an unlisted test failed or a listed one passed."""
    folder = source(suite)
    unexpected: set[str] = set()
    failed: set[str] = set()
    for variant in suite.variants:
        outcome = run_variant(suite, variant, folder, options=("-n", workers))
        failed |= set(outcome.failed)
        if names := show(suite, variant, "SQLite", outcome):
            # Some tests depend on the speed of the machine and pass when they run alone.
            print("  run again, one after the other:")
            again = suite._replace(tests=[node_id(name, suite.folder_in(folder)) for name in sorted(names)])
            unexpected |= show(suite, variant, "SQLite", run_variant(again, variant, folder, options=("-n", "0")))
    idle = [pattern for pattern in suite.allowed if not any(re.fullmatch(pattern, name) for name in failed)]
    for pattern in idle:
        print(f"  {suite.name}: {pattern} may fail but passed; remove it from the list")
    return 1 if unexpected or idle else 0


def node_id(test: str, folder: Path) -> str:
    """Return the argument of pytest that selects a test, given by its name in a report."""
    module, _, name = test.partition("::")
    parts = module.split(".")
    files = range(1, len(parts) + 1)
    end = next(number for number in files if (folder / "/".join(parts[:number])).with_suffix(".py").exists())
    return "::".join([f"{'/'.join(parts[:end])}.py", *parts[end:], name])


def source(suite: Suite) -> Path:
    """Return the folder of the unpacked source distribution of the release in the lock file."""
    pinned = entry(suite)
    folder = cache() / "sources" / f"{suite.package}-{hashlib.sha256(pinned.encode()).hexdigest()[:16]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            unpack(download(pinned, Path(temporary)), Path(temporary) / "unpacked").rename(folder)
    return folder


def entry(suite: Suite) -> str:
    """Return the version and the hashes of a package from the lock file of its lane."""
    lock = (ROOT / "requirements" / f"{suite.environment}.txt").read_text()
    requirement = re.search(rf"^{re.escape(suite.package)}==(?:.*\\\n)*.*\n", lock, re.MULTILINE)
    assert requirement is not None, suite.package
    return requirement[0]


def download(pinned: str, into: Path) -> Path:
    """Download a source distribution. pip reads its metadata with the build tool in our own environment."""
    requirements = into / "requirements.txt"
    requirements.write_text(pinned)
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--no-binary", ":all:"]
    source = ["--no-build-isolation", "--require-hashes", "--requirement", requirements, "--dest", into]
    subprocess.run([*pip_for(Path(environment("test"))), "download", *options, *source], check=True, stdout=sys.stderr)
    return next(into.glob("*.tar.gz"))


def unpack(archive: Path, into: Path) -> Path:
    """Unpack a source distribution and return its only folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    return next(into.iterdir())


if __name__ == "__main__":
    sys.exit(main())
