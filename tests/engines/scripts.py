"""Programs of a few lines, run in their own process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence

PATIENCE_S = 60


def start_script(script: str, *arguments: str, warnings: str = "error") -> subprocess.Popen[str]:
    """Start a script with pipes for its output and errors."""
    command = [sys.executable, "-W", warnings, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """Wait until the process exits successfully; return its output."""
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"the program hangs\n{output}\n{errors}") from None
    assert process.returncode == 0, f"{process.returncode}\n{output}\n{errors}"
    assert errors == ""
    return output


def finish_all(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Finish several processes and return their outputs; kill all of them if one fails."""
    try:
        return [finish(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run_script(script: str, *arguments: str, warnings: str = "error") -> str:
    """Run a script to its end and return its output."""
    return finish(start_script(script, *arguments, warnings=warnings))
