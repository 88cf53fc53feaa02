"""Programs of a few lines, run in a process of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence

PATIENCE_S = 60


def start_script(script: str, *arguments: str, warnings: str = "error") -> subprocess.Popen[str]:
    """Start one; its output and errors are pipes."""
    command = [sys.executable, "-W", warnings, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """Wait until it ends, as it must, without an error; what it printed."""
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
    """``finish`` for several; none is left behind, whatever becomes of the others."""
    try:
        return [finish(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run_script(script: str, *arguments: str, warnings: str = "error") -> str:
    """Run one to its end."""
    return finish(start_script(script, *arguments, warnings=warnings))
