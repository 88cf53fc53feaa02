"""The temporary data of a run: a folder on a real disk, its own PostgreSQL, and the library that delays flushes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from .case import Case

if TYPE_CHECKING:
    from tests.servers import PostgresServer

_SHIM = Path(__file__).with_name("slow_flush.c")


class Scratch:
    """The directories and databases of one run; closing removes them."""

    def __init__(self, parent: Path | None = None) -> None:
        # Many machines have /tmp in memory, where a flush costs nothing.
        self._parent = parent or _first_writable("/var/tmp", tempfile.gettempdir())
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=self._parent))
        self._server: PostgresServer | None = None
        self._kept: dict[str, str] = {}
        self._count = 0

    def place(self, case: Case) -> tuple[str, bool]:
        """Return a directory or database URL for a case, and whether it is empty."""
        if case.kept and case.name in self._kept:
            return self._kept[case.name], False
        self._count += 1
        name = f"place_{self._count}"
        place = self.postgres.create_database(name) if case.engine == "postgres" else str(self.folder / name)
        if case.engine != "postgres":
            os.mkdir(place)
        if case.kept:
            self._kept[case.name] = place
        return place, True

    def done(self, case: Case, place: str, *, failed: bool) -> None:
        """Remove the directory or database of a case, unless later repeats use it."""
        if case.kept and not failed:
            return
        self._kept.pop(case.name, None)
        if case.engine == "postgres":
            self.postgres.drop_database(place.partition("@/")[2].partition("?")[0])
        else:
            shutil.rmtree(place, ignore_errors=True)

    @property
    def postgres(self) -> PostgresServer:
        """Return a PostgreSQL server with default settings, started on first use."""
        if self._server is None:
            from tests import servers

            tempfile.tempdir = str(self._parent)
            self._server = servers.PostgresServer()
            self._server.start()
        return self._server

    def slow_flush(self) -> str:
        """Return the path of the library to preload, compiled on first use."""
        library = self.folder / "slow_flush.so"
        if not library.exists():
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, _SHIM, "-ldl"], check=True)
        return str(library)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._server is not None:
            self._server.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _first_writable(*folders: str) -> Path:
    return next(Path(folder) for folder in folders if os.access(folder, os.W_OK))
