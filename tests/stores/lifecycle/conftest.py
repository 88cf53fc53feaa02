"""Databases, storages for packs, and directories to capture."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, Limits, PackStorage, PoolOptions, TenantHandle
from holdfast.types import Snapshot
from tests.stores.objects.conftest import address, bucket, place, s3_server

__all__ = ["address", "bucket", "place", "s3_server"]

SMALL = Limits(pack_from_bytes=1_000)
"""Limits with which small objects are stored in packs."""
MIB = 1024 * 1024
POOL = PoolOptions(min_connections=1, max_connections=2)


class Lines(logging.Handler):
    """The lines of the retention log."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.raw.append(record.getMessage())

    @property
    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.raw]

    def deleted(self, reason: str | None = None) -> list[str]:
        """Return the snapshots whose deletion was logged, and the reasons."""
        return [event["checkpoint_id"] for event in self.said if reason in (None, event["reason"])]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Record the log of retention."""
    handler, log = Lines(), logging.getLogger("holdfast.retention")
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


class Bench:
    """A Holdfast with a clock that stands still, and trees to capture."""

    def __init__(self, holdfast: Holdfast, clock: FixedClock, folder: Path) -> None:
        self.holdfast, self.clock, self._folder = holdfast, clock, folder
        self._random, self._trees = Random(7), 0

    def tenant(self, name: str = "acme") -> TenantHandle:
        return self.holdfast.tenant(name)

    def run(self, tenant: str = "acme") -> str:
        """A new run."""
        existing = self.tenant(tenant)
        return existing.runs.start(existing.sessions.create().id).id

    def end(self, run_id: str, tenant: str = "acme") -> None:
        self.tenant(tenant).runs.cancel(run_id)

    def capture(self, run_id: str, *, size: int = 2_000, tenant: str = "acme", of: str = "") -> Snapshot:
        """A snapshot of a tree of its own, or of one that has only changed, one second after the last."""
        self._trees += 0 if of else 1
        tree = self._folder / (of or f"tree{self._trees}")
        tree.mkdir(exist_ok=True)
        (tree / "file").write_bytes(self._random.randbytes(size))
        self.clock.advance(1)
        return self.tenant(tenant).workspaces.capture(run_id, tree).snapshot

    def ids(self, run_id: str | None = None, tenant: str = "acme") -> list[str]:
        """Return the ids of the existing snapshots, the oldest first."""
        return [snapshot.id for snapshot in self.tenant(tenant).snapshots.list(run_id=run_id)][::-1]

    def quota(self, mib: int, tenant: str = "acme") -> None:
        self.holdfast.tenants.set_quota(tenant, snapshot_quota_mib=mib)


Opens = Callable[..., Bench]


@pytest.fixture
def opens(address: str, tmp_path: Path) -> Iterator[Opens]:
    """Open handles on one database."""
    opened: list[Holdfast] = []
    clock = FixedClock()

    def make(packs: Any = None, *, limits: Limits = SMALL) -> Bench:
        where = tmp_path / "packs" if packs is None else packs
        opened.append(Holdfast(address, packs=where, limits=limits, clock=clock, pool=POOL))
        return Bench(opened[-1], clock, tmp_path)

    yield make
    for handle in opened:
        handle.close()


@pytest.fixture
def bench(opens: Opens, place: PackStorage) -> Bench:
    """A Holdfast on either engine, with its packs in either place."""
    return opens(place)


@pytest.fixture
def local(opens: Opens) -> Bench:
    """A Holdfast on either engine, with its packs in a directory."""
    return opens()
