"""A cluster, and a tenant whose rows are kept in step with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest

from holdfast import Holdfast, TenantHandle
from holdfast.declared.cluster import Cluster
from holdfast.declared.keeper import Keeper
from holdfast.declared.sources import ClusterSource
from holdfast.encryption import new_key
from holdfast.types import AppliedChange
from tests.adapters.kubernetes.api_server import TOKEN, ApiServer

WAIT_S = 60


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    yield server
    server.kill()


@pytest.fixture
def kubeconfig(api: ApiServer, tmp_path: Path) -> str:
    """The file with the address of the cluster and the credentials."""
    return write_kubeconfig(tmp_path, api, TOKEN)


def write_kubeconfig(folder: Path, api: ApiServer, token: str) -> str:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{api.port}"}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture
def acme(tmp_path: Path) -> Iterator[TenantHandle]:
    with Holdfast(str(tmp_path / "holdfast.db"), encryption_key=new_key()) as hf:
        yield hf.tenant("acme")


class Kept:
    """What a keeper reports."""

    def __init__(self, keeper: Keeper, reports: Queue[Any]) -> None:
        self.keeper, self._reports = keeper, reports
        self.errors: list[Exception] = []

    def until(self, is_done: Callable[[], bool]) -> list[AppliedChange]:
        """Wait for applications until a condition holds; return their changes."""
        changes: list[AppliedChange] = []
        while not is_done():
            changes += self._next()
        return changes

    def until_changed(self, *refs: str) -> list[AppliedChange]:
        """Wait until all of these resources were changed; return their changes."""
        changes: list[AppliedChange] = []
        while not {*refs} <= {change.ref for change in changes}:
            changes += self._next()
        return changes

    def until_error(self, kind: type[Exception]) -> Exception:
        """Wait for an error."""
        while True:
            for error in self.errors:
                if isinstance(error, kind):
                    return error
            self._next()

    def _next(self) -> list[AppliedChange]:
        report = self._reports.get(timeout=WAIT_S)
        if isinstance(report, Exception):
            self.errors.append(report)
            return []
        return [change for change in report if change.action != "unchanged"]


@pytest.fixture
def keep(kubeconfig: str, acme: TenantHandle) -> Iterator[Callable[..., Kept]]:
    """Return a function that starts a keeper."""
    with ExitStack() as stack:

        def start(namespace: str | None = None, resync_s: float = 300.0) -> Kept:
            cluster = Cluster(kubeconfig)
            reports: Queue[Any] = Queue()
            keeper = Keeper(
                acme,
                ClusterSource(cluster, namespace, retry_s=0.02),
                on_applied=reports.put,
                on_error=reports.put,
                resync_s=resync_s,
                settle_s=0.02,
                retry_s=0.02,
            )
            thread = Thread(target=keeper.run)
            thread.start()

            def end() -> None:
                keeper.stop()
                thread.join(WAIT_S)
                assert not thread.is_alive()

            stack.callback(end)
            return Kept(keeper, reports)

        yield start
