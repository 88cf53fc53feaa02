"""Storages for packs: a directory, and a bucket of a server with the S3 API."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Limits, PackStorage
from holdfast.clock import FixedClock

SMALL = Limits(pack_from_bytes=1_000)
"""Limits under which small bodies already count as large."""
Opens = Callable[..., Holdfast]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a server with the S3 API."""
    # With port 0 the system chooses the port, and the server prints it.
    run = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "MOTO_S3_CUSTOM_ENDPOINTS": ""}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-u", "-c", run],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **keys},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        address = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stdout)))
        yield address.group()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def bucket(s3_server: str, request: pytest.FixtureRequest) -> PackStorage:
    """A bucket of its own for each test."""
    name = "b" + format(abs(hash(request.node.nodeid)), "x")
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{name}", method="PUT"), timeout=30).close()
    options = {
        "aws_endpoint": s3_server, "aws_region": "us-east-1",
        "aws_access_key_id": "testing", "aws_secret_access_key": "testing",
    }  # fmt: skip
    return PackStorage(f"s3://{name}/packs", {"config": options, "client_options": {"allow_http": True}})


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> PackStorage:
    """A storage for packs."""
    if request.param == "s3":
        bucket: PackStorage = request.getfixturevalue("bucket")
        return bucket
    return PackStorage(tmp_path / "packs")


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    return str(tmp_path / "a.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def opens(address: str) -> Iterator[Opens]:
    """Opens handles on the database."""
    opened: list[Holdfast] = []

    def make(packs: Any, *, limits: Limits = SMALL, clock: FixedClock | None = None) -> Holdfast:
        opened.append(Holdfast(address, packs=packs, limits=limits, clock=clock))
        return opened[-1]

    yield make
    for handle in opened:
        handle.close()
