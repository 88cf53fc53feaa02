"""The synchronous classes of record stores: one class for all of them, with the types of each."""

from __future__ import annotations

from typing import Generic

from ..blocking import Blocking, blocking
from .record_rows import R
from .revealing import AsyncSecretRecords
from .soft import AsyncSoftRecords
from .store import AsyncRecords, C, N


class Records(Blocking[AsyncRecords[R, N, C]], Generic[R, N, C]):
    """Base of stores that keep records of one kind, for synchronous programs."""

    create = blocking(AsyncRecords[R, N, C].create)
    upsert = blocking(AsyncRecords[R, N, C].upsert)
    get = blocking(AsyncRecords[R, N, C].get)
    find = blocking(AsyncRecords[R, N, C].find)
    list = blocking(AsyncRecords[R, N, C].list)
    count = blocking(AsyncRecords[R, N, C].count)
    update = blocking(AsyncRecords[R, N, C].update)
    delete = blocking(AsyncRecords[R, N, C].delete)


class SoftRecords(Records[R, N, C]):
    """Base of stores whose records can be restored after deletion, for synchronous programs."""

    restore = blocking(AsyncSoftRecords[R, N, C].restore)


class SecretRecords(Records[R, N, C]):
    """Base of stores whose records have secrets, for synchronous programs."""

    reveal = blocking(AsyncSecretRecords[R, N, C].reveal)
