"""The rows of a tenant are kept in step with a folder of manifests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest

from holdfast import AgentChange, Holdfast, TenantHandle
from holdfast.declared.keeper import Keeper
from holdfast.declared.sources import FolderSource
from holdfast.declared.values import local_values
from holdfast.encryption import new_key
from holdfast.errors import InvalidManifest, Unavailable
from tests.declared.manifests import LIMITS, agent, manifest, write

WAIT_S = 60


class Kept:
    """What a keeper reports."""

    def __init__(self, keeper: Keeper, reports: Queue[Any]) -> None:
        self.keeper, self.reports = keeper, reports

    def until(self, *expected: tuple[str, str]) -> None:
        """Wait until all of these were done with resources: pairs of a name and an action."""
        missing = {(f"Agent/kagent/{name}", action) for name, action in expected}
        while missing:
            report = self.reports.get(timeout=WAIT_S)
            if not isinstance(report, Exception):
                missing -= {(change.ref, change.action) for change in report}

    def error(self, kind: type[Exception], **fields: Any) -> None:
        """Wait for an error with these fields. Other errors can come before: of a state that the files had in between."""
        while True:
            report = self.reports.get(timeout=WAIT_S)
            if type(report) is kind and all(getattr(report, name) == value for name, value in fields.items()):
                return


@pytest.fixture
def acme(tmp_path: Path) -> Iterator[TenantHandle]:
    with Holdfast(str(tmp_path / "holdfast.db"), encryption_key=new_key()) as hf:
        yield hf.tenant("acme")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "manifests").mkdir()
    return tmp_path / "manifests"


@pytest.fixture
def keep(acme: TenantHandle, folder: Path) -> Iterator[Callable[..., Kept]]:
    """Return a function that starts a keeper."""
    with ExitStack() as stack:

        def start(resync_s: float = 300.0) -> Kept:
            source = FolderSource(folder, local_values(None, LIMITS), LIMITS, name="folder", poll_s=0.02)
            reports: Queue[Any] = Queue()
            keeper = Keeper(
                acme,
                source,
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


def test_rows_follow_the_files(acme: TenantHandle, folder: Path, keep: Callable[..., Kept]) -> None:
    write(folder / "one.yaml", agent("a"), agent("b"))
    kept = keep()
    kept.until(("a", "created"), ("b", "created"))
    write(folder / "two.yaml", agent("c"))
    kept.until(("c", "created"))
    write(folder / "one.yaml", agent("a", "Be brief."))
    kept.until(("a", "changed"), ("b", "pruned"))
    (folder / "two.yaml").unlink()
    kept.until(("c", "pruned"))
    assert [(row.display_name, row.system) for row in acme.agents.list()] == [("kagent/a", "Be brief.")]
    write(folder / "three.yaml", agent("d"))
    os.rename(folder / "one.yaml", folder / "renamed.yml")
    kept.until(("d", "created"))
    assert {row.display_name for row in acme.agents.list()} == {"kagent/a", "kagent/d"}


def test_a_broken_file_changes_nothing_and_is_reported(
    acme: TenantHandle, folder: Path, keep: Callable[..., Kept]
) -> None:
    write(folder / "one.yaml", agent("a"))
    kept = keep()
    kept.until(("a", "created"))
    (folder / "two.yaml").write_text("kind: [")
    kept.error(InvalidManifest, file=str(folder / "two.yaml"))
    write(folder / "one.yaml", agent("a", "Be brief."), agent("b"))
    kept.error(InvalidManifest, file=str(folder / "two.yaml"))
    assert [row.system for row in acme.agents.list()] == ["Be helpful."]
    write(folder / "two.yaml", agent("c", modelConfig="absent"))
    kept.error(InvalidManifest, path="spec.declarative.modelConfig")
    assert [row.system for row in acme.agents.list()] == ["Be helpful."]
    (folder / "two.yaml").unlink()
    kept.until(("a", "changed"), ("b", "created"))


def test_a_folder_that_is_gone_or_has_no_manifest_deletes_nothing(
    acme: TenantHandle, folder: Path, keep: Callable[..., Kept]
) -> None:
    write(folder / "one.yaml", agent("a"))
    kept = keep()
    kept.until(("a", "created"))
    (folder / "one.yaml").unlink()
    kept.error(InvalidManifest, file=str(folder))
    folder.rmdir()
    kept.error(FileNotFoundError)
    assert acme.agents.count() == 1
    folder.mkdir()
    (folder / "empty.yaml").touch()
    kept.until(("a", "pruned"))
    assert acme.agents.count() == 0


def test_rows_and_referred_files_are_compared_again_from_time_to_time(
    acme: TenantHandle, folder: Path, keep: Callable[..., Kept]
) -> None:
    (folder / "key").write_text("one")
    spec = {"model": "gpt", "apiKeySecret": "file:key"}
    write(folder / "one.yaml", agent("a"), agent("b"), manifest("ModelConfig", "m", spec))
    kept = keep(resync_s=0.05)
    kept.until(("a", "created"))
    acme.agents.update("kagent__NS__a", change=AgentChange(system="changed by hand"))
    kept.until(("a", "changed"))
    assert acme.agents.get("kagent__NS__a").system == "Be helpful."
    (folder / "key").write_text("two")
    (provider,) = acme.providers.list()
    while acme.providers.reveal(provider.id)["api_key"] != "two":
        kept.until(("a", "unchanged"))


def test_a_database_that_is_not_available_is_tried_again(
    acme: TenantHandle, folder: Path, keep: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "one.yaml", agent("a"))
    failures = [Unavailable(), Unavailable(), OSError("the network is down")]
    apply = acme.declared.apply

    def failing(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return apply(*args, **options)

    monkeypatch.setattr(acme.declared, "apply", failing)
    kept = keep()
    kept.error(OSError)
    kept.error(Unavailable)
    kept.error(Unavailable)
    kept.until(("a", "created"))
