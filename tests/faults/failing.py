"""A SQLite file on a disk that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from holdfast.drivers.apsw import ApswConnection
from holdfast.errors import HoldfastError
from holdfast.testing.disk import Disk, DiskOperation
from holdfast.testing.sqlite_state import SmallWalFile

LOG_HEADER_BYTES = 32


class FailingFile(SmallWalFile):
    """A file whose connections say what SQLite reported.

    When a commit is done, SQLite may go on to move the log into the file, and keeps a failure of that to itself: the log has
    everything. A file layer written in Python cannot fail that quietly, so the error is taken back here.
    """

    def __init__(self, path: str, disk: Disk) -> None:
        super().__init__(path, pages=24, vfs=disk.name)
        self._disk = disk

    def connect(self, *, reader: bool = False) -> ApswConnection:
        return FailingConnection(super().connect(reader=reader).raw, self._disk)


class FailingConnection(ApswConnection):
    def __init__(self, raw: apsw.Connection, disk: Disk) -> None:
        super().__init__(raw)
        self._disk = disk

    def execute(self, sql: str, args: Sequence[Any] = ()) -> Any:
        before = self._disk.position
        try:
            return super().execute(sql, args)
        except HoldfastError:
            after = self._disk.failed_after
            if sql == "COMMIT" and after is not None and is_committed(self._disk.operations[before:after]):
                return []
            raise


def is_committed(operations: Sequence[DiskOperation]) -> bool:
    """Whether a commit had written its pages to the log and flushed them when the disk failed."""
    log = [operation for operation in operations if operation.file.endswith("-wal")]
    has_pages = any(operation.kind == "write" and operation.at >= LOG_HEADER_BYTES for operation in log)
    return has_pages and log[-1].kind == "sync"
