"""Benchmark of appends over HTTP: Holdfast's server, which stores each message durably, compared with echo servers.

One server process on one core, the load generator on the other, and 32 connections that each wait for the response.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .case import Case, Job, Result
from .echoes import PLACE
from .workload import messages

GROUP = "server"
CONNECTIONS = 32
OURS = "Holdfast, durable append"
BARE, STARLETTE, FASTAPI = "bare ASGI echo", "Starlette echo", "FastAPI echo"
FLOOR = "bare ASGI around an append"
_KEY = "hf_" + "0" * 48
_APPS = {
    BARE: ["bench.echoes:bare", "--lifespan", "off"],
    STARLETTE: ["bench.echoes:starlette", "--factory"],
    FASTAPI: ["bench.echoes:fastapi", "--factory"],
    FLOOR: ["bench.echoes:Appending", "--factory", "--lifespan", "on"],
}
_WARM_S = 0.5
_START_S = 30.0


def cases() -> list[Case]:
    """Return the cases: Holdfast's server, the echo servers and the floor."""
    return [Case(GROUP, name, params={"connections": CONNECTIONS}) for name in (OURS, *_APPS)]


def run(job: Job) -> Result:
    """Return the responses per second, the server's memory and its CPU time per response."""
    load = _compile(Path(job.place))
    with _served(job) as (process, port):
        path = _session(port) if job.contender == OURS else "/echo"
        request = _request(path)
        _send(load, port, request, _WARM_S)
        before_s = _cpu_s(process.pid)
        good, other, took = _send(load, port, request, job.seconds)
        if other:
            raise RuntimeError(f"{other} responses were not successful")
        cpu_us = (_cpu_s(process.pid) - before_s) / good * 1e6
        return {"rate": good / took, "resident_mb": _resident_mb(process.pid), "work_us": cpu_us}


@contextmanager
def _served(job: Job) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = _free_port()
    here = f"--host 127.0.0.1 --port {port}".split()
    if job.contender == OURS:
        command = ["-m", "holdfast", "serve", *here, "--data-dir", job.place]
    else:
        command = ["-m", "uvicorn", *_APPS[job.contender], *here, "--no-access-log", "--log-level", "warning"]
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "HOLDFAST_ADMIN_KEY": _KEY, PLACE: job.place},
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {0}),  # noqa: PLW1509  # no other thread is running yet
    )
    try:
        _wait_for(port)
        yield process, port
    finally:
        process.terminate()
        process.wait()


def _send(load: str, port: int, request: bytes, seconds: float) -> tuple[int, int, float]:
    completed = subprocess.run(
        ["taskset", "-c", str((os.cpu_count() or 1) - 1), load, str(port), str(CONNECTIONS), str(seconds)],
        input=request,
        capture_output=True,
        check=True,
    )
    good, other, took = completed.stdout.split()
    return int(good), int(other), float(took)


def _request(path: str) -> bytes:
    message = messages(1)[0]
    body = json.dumps({"role": "user", "content": message["content"]}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {_KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _session(port: int) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/tenants/bench/sessions",
        data=b"{}",
        headers={"Authorization": f"Bearer {_KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_START_S) as response:
        return f"/v1/tenants/bench/sessions/{json.load(response)['id']}/messages"


def _compile(folder: Path) -> str:
    program = folder / "load"
    subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-o", program, Path(__file__).with_name("load.c")], check=True)
    return str(program)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    until = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
