"""Facts about the machine and the installed software, for the report."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from .case import Environment
from .environments import ROOT, versions
from .workload import MESSAGE_BYTES, SEED


def facts(pythons: dict[Environment, str], scratch: Path, *, seconds: float, repeats: int) -> dict[str, Any]:
    """Return the hardware, software and parameters of a run."""
    import apsw

    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "file system": _file_system(scratch),
        "load before the run": f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
        "SQLite": apsw.sqlite_lib_version(),
        "versions": versions(pythons),
        "commit": _commit(),
        "seconds": seconds,
        "repeats": repeats,
        "seed": SEED,
        "message bytes": MESSAGE_BYTES,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(folder: Path) -> str:
    mounts = Path("/proc/mounts").read_text().splitlines() if Path("/proc/mounts").exists() else []
    kinds = {Path(mount): kind for _, mount, kind, *_ in map(str.split, mounts)}
    return next((kinds[item] for item in [folder, *folder.parents] if item in kinds), "unknown")


def _commit() -> str:
    process = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return process.stdout.strip() or "unknown"
