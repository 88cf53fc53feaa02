"""Run cases: each contender of a group in turn, in a fresh process, for several repeats."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from time import monotonic

from .case import Case, Environment, Job, Result
from .environments import ROOT
from .scratch import Scratch
from .worker import MARK
from .workload import SEED

MAX_CASE_S = 600
"""The maximum duration of a case, including the time to fill its database."""


class Runner:
    """Runs cases and yields each result when the case has finished."""

    def __init__(self, pythons: dict[Environment, str], scratch: Scratch, *, seconds: float) -> None:
        self._pythons, self._scratch, self._seconds = pythons, scratch, seconds

    def run(self, cases: Sequence[Case], repeats: int, progress: Callable[[str], None]) -> Iterator[Result]:
        """Run all cases once per repeat, in a different order each time."""
        order = random.Random(SEED)
        start, count, total = monotonic(), 0, len(cases) * repeats
        for repeat in range(repeats):
            for group in dict.fromkeys(case.group for case in cases):
                members = [case for case in cases if case.group == group]
                order.shuffle(members)
                # Cases that are compared run next to each other, so that other load on the machine affects them equally.
                members.sort(key=lambda case: case.params.get("writers", 0))
                for case in members:
                    result = self._measure(case)
                    count += 1
                    left = (monotonic() - start) / count * (total - count)
                    progress(f"[{count}/{total}, {left / 60:4.1f} min left] {case.name}: {_brief(result)}")
                    yield {"repeat": repeat, "group": group, "contender": case.contender, **case.params, **result}

    def _measure(self, case: Case) -> Result:
        place, fresh = self._scratch.place(case)
        job = Job(case.group, case.contender, place, case.params, self._seconds, fresh)
        result = _in_fresh_process(self._pythons[case.environment], job, self._environment(case))
        self._scratch.done(case, place, failed="error" in result)
        return result

    def _environment(self, case: Case) -> dict[str, str]:
        more = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        if case.flush_delay_us:
            more |= {"LD_PRELOAD": self._scratch.slow_flush(), "BENCH_FLUSH_DELAY_US": str(case.flush_delay_us)}
        return {**os.environ, **more}


def _in_fresh_process(python: str, job: Job, environment: dict[str, str]) -> Result:
    command = [python, "-m", f"{__package__}.worker", json.dumps(asdict(job))]
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=MAX_CASE_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return {"error": f"not finished after {MAX_CASE_S} s"}
        raise
    collected = [line for line in out.splitlines() if line.startswith(MARK)]
    if not collected:
        return {"error": _without_paths(f"exited with {process.returncode}: {err.strip()[-300:]}", job)}
    result: Result = json.loads(collected[-1].removeprefix(MARK))
    if "error" in result:
        result["error"] = _without_paths(result["error"], job)
    return result


def _without_paths(text: str, job: Job) -> str:
    """Replace local paths, because the results are published."""
    return text.replace(job.place, "(place)").replace(str(ROOT), "(root)")


def _brief(result: Result) -> str:
    if "error" in result:
        return str(result["error"])
    if "rate" in result:
        return f"{result['rate']:,.0f}/s"
    return ", ".join(f"{name} {value:,.6g}" for name, value in result.items() if isinstance(value, (int, float)))
