"""``HoldfastProvider``: stores the checkpoints of crews, flows and agents incrementally.

A checkpoint is one long JSON text that contains all events so far, so most of it equals the previous checkpoint. The text is
split by content-defined chunking: whether it is cut after an object depends only on that object. Equal parts are therefore cut
at the same points, and each piece is stored once. The reassembled text is identical to the original.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from crewai.state.provider.json_provider import JsonProvider
from pydantic import PrivateAttr

from holdfast import TenantHandle
from holdfast.errors import InvalidInput, NotFound
from holdfast.ids import RandomIds
from holdfast.types import Checkpoint, Checkpoints

from ..lazy_handle import LazyHandle

THREAD = "crewai:"
"""Prefix of the names of threads with checkpoints of crews."""
PAGE = 100
CUT_ONE_IN = 8
MAX_PIECE = 16 * 1024
_OBJECTS = re.compile(rb"(?<=\},)")


class HoldfastProvider(JsonProvider):
    """Stores checkpoints, for ``CheckpointConfig(provider=...)``. Branches are stored and pruned separately.

    CrewAI accepts only subclasses of its own providers, so this class inherits from one of them; it writes no files.
    ``location`` is any name: it separates the checkpoints of one crew from those of others.

    Args:
        where: a path, ``sqlite:///path`` or ``postgresql://...``, which is opened on first use; or the handle of a tenant,
            ``hf.tenant("acme")``, which you close yourself.
        tenant: the tenant, if ``where`` is an address.
        user: separates the checkpoints of this user from those of other users of the tenant.
    """

    _lazy: LazyHandle = PrivateAttr()
    _user: str | None = PrivateAttr(default=None)

    def __init__(self, where: str | TenantHandle, /, *, tenant: str = "default", user: str | None = None) -> None:
        super().__init__()
        self._lazy, self._user = LazyHandle(where, tenant), user

    def checkpoint(self, data: str, location: str, *, parent_id: str | None = None, branch: str = "main") -> str:
        """Save a checkpoint durably, and return its location."""
        id = RandomIds().new()
        body = data.encode("utf-8", "surrogatepass")
        self._store().put(
            THREAD + location,
            id=id,
            namespace=branch,
            parent=parent_id,
            state=b"",
            pieces=cut(body),
            # A run id of its own, so that the checkpoint can be deleted alone.
            metadata={"source": "crewai", "size_bytes": len(body), "run_id": THREAD + id},
            user=self._user,
        )
        return f"{location}#{id}"

    def from_checkpoint(self, location: str) -> str:
        """Return the text of the checkpoint at a location.

        Raises:
            NotFound: the checkpoint does not exist.
        """
        checkpoint = self._find(location)
        return b"".join(piece or b"" for piece in checkpoint.pieces).decode("utf-8", "surrogatepass")

    def prune(self, location: str, max_keep: int, *, branch: str = "main") -> int:
        """Delete all but the newest checkpoints of a branch, and return the number of deleted ones."""
        if max_keep < 0:
            raise InvalidInput(f"max_keep must be 0 or more, not {max_keep}", field="max_keep")
        ids = [checkpoint.id for checkpoint in self._list(location, branch)]
        old = [THREAD + id for id in ids[max_keep:]]
        batch_rows = min(PAGE, self._lazy.handle.limits.batch_rows)
        return sum(
            self._store().delete_runs(old[start : start + batch_rows], user=self._user)
            for start in range(0, len(old), batch_rows)
        )

    def extract_id(self, location: str) -> str:
        """Return the id of the checkpoint at a location."""
        return _split(location)[1]

    def branches(self, location: str) -> dict[str, list[str]]:
        """Return the ids of the checkpoints of every branch, newest first."""
        branches: dict[str, list[str]] = {}
        for checkpoint in self._list(location, None):
            branches.setdefault(checkpoint.namespace, []).append(checkpoint.id)
        return branches

    @contextmanager
    def file(self, location: str) -> Iterator[str]:
        """Yield the path of a temporary file with the checkpoint, for ``CheckpointConfig(restore_from=...)``.

        CrewAI selects one of its own providers by the type of the file. Checkpoints saved after the restore have this one as
        their parent.
        """
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{self.extract_id(location)}_p-none.json"
            path.write_bytes(self.from_checkpoint(location).encode("utf-8", "surrogatepass"))
            yield str(path)

    async def acheckpoint(self, data: str, location: str, *, parent_id: str | None = None, branch: str = "main") -> str:
        """``checkpoint`` for asyncio."""
        return await asyncio.to_thread(self.checkpoint, data, location, parent_id=parent_id, branch=branch)

    async def afrom_checkpoint(self, location: str) -> str:
        """``from_checkpoint`` for asyncio."""
        return await asyncio.to_thread(self.from_checkpoint, location)

    def close(self) -> None:
        """Close the database, if it was opened here. The next call opens it again."""
        self._lazy.close()

    def _find(self, location: str) -> Checkpoint:
        place, id = _split(location)
        for checkpoint in self._store().list(THREAD + place, id=id, user=self._user, limit=1):
            return checkpoint
        raise NotFound(f"checkpoint {id} does not exist in {place!r}", noun="checkpoint", key=id)

    def _list(self, location: str, branch: str | None) -> Iterator[Checkpoint]:
        cursor: str | None = None
        while True:
            rows = self._lazy.handle.limits.page(PAGE)
            page = self._store().list(THREAD + location, namespace=branch, user=self._user, limit=rows, cursor=cursor)
            yield from page
            cursor = page.next
            if cursor is None:
                return

    def _store(self) -> Checkpoints:
        return self._lazy.handle.checkpoints


def cut(body: bytes) -> Sequence[bytes]:
    """Split a JSON text into pieces. A cut depends only on the object before it, so equal parts are cut at the same points."""
    pieces: list[bytes] = []
    current = b""
    for part in _OBJECTS.split(body):
        current += part
        if len(current) >= MAX_PIECE or (part and zlib.crc32(part) % CUT_ONE_IN == 0):
            pieces.append(current)
            current = b""
    return [*pieces, current] if current else pieces


def _split(location: str) -> tuple[str, str]:
    place, mark, id = location.rpartition("#")
    if not mark:
        raise InvalidInput(
            f"{location!r} is not the location of a checkpoint, as `checkpoint` returns it", field="location"
        )
    return place, id
