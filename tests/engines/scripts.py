"""Programs of a few lines, run in a process of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PATIENCE_S = 60


def start_script(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start one; its output and errors are pipes."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *arguments]
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


def run_script(script: str, *arguments: str) -> str:
    """Run one to its end."""
    return finish(start_script(script, *arguments))
