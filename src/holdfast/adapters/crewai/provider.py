"""``HoldfastProvider``: the checkpoints of crews, flows and agents, in which each costs what is new in it.

A checkpoint is one long JSON text, most of it the same as in the one before: it holds every event there has been. The text is
cut after objects whose own content says so, so the same objects are cut alike wherever they stand; each piece is kept once.
Put together again, it is the same text to the last character.
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

from ..lazy_handle import Place

THREAD = "crewai:"
"""How the names of threads begin that hold the checkpoints of crews."""
PAGE = 100
CUT_ONE_IN = 8
MAX_PIECE = 16 * 1024
_OBJECTS = re.compile(rb"(?<=\},)")


class HoldfastProvider(JsonProvider):
    """Keeps checkpoints, for ``CheckpointConfig(provider=...)``. Their branches are kept apart, and pruned apart.

    CrewAI only takes the providers it knows, so this is one of them by name; it writes no files. ``location`` is any name:
    it keeps the checkpoints of one crew apart from those of another.

    Args:
        where: a path, ``sqlite:///path`` or ``postgresql://...``, which is opened when it is first needed; or the handle of a
            tenant, ``hf.tenant("acme")``, which stays yours.
        tenant: whose checkpoints, where ``where`` is an address.
        user: keeps the checkpoints of this user apart from everybody else's in the tenant.
    """

    _place: Place = PrivateAttr()
    _user: str | None = PrivateAttr(default=None)

    def __init__(self, where: str | TenantHandle, /, *, tenant: str = "default", user: str | None = None) -> None:
        super().__init__()
        self._place, self._user = Place(where, tenant), user

    def checkpoint(self, data: str, location: str, *, parent_id: str | None = None, branch: str = "main") -> str:
        """Save a checkpoint; where it lies. It is durable when this returns."""
        id = RandomIds().new()
        body = data.encode("utf-8", "surrogatepass")
        self._store().put(
            THREAD + location,
            id=id,
            namespace=branch,
            parent=parent_id,
            state=b"",
            pieces=cut(body),
            # Of its own, so that it can be removed by itself.
            metadata={"source": "crewai", "size_bytes": len(body), "run_id": THREAD + id},
            user=self._user,
        )
        return f"{location}#{id}"

    def from_checkpoint(self, location: str) -> str:
        """The checkpoint that lies there, as it was saved.

        Raises:
            NotFound: there is none.
        """
        found = self._find(location)
        return b"".join(each or b"" for each in found.pieces).decode("utf-8", "surrogatepass")

    def prune(self, location: str, max_keep: int, *, branch: str = "main") -> int:
        """Keep the newest checkpoints of a branch; how many were removed. Those of other branches stay."""
        if max_keep < 0:
            raise InvalidInput(f"a branch keeps a number of checkpoints from 0 on, not {max_keep}")
        ids = [each.id for each in self._listed(location, branch)]
        old = [THREAD + id for id in ids[max_keep:]]
        most = min(PAGE, self._place.handle.limits.batch_rows)
        return sum(
            self._store().delete_runs(old[start : start + most], user=self._user) for start in range(0, len(old), most)
        )

    def extract_id(self, location: str) -> str:
        """The id of the checkpoint that lies there."""
        return _split(location)[1]

    def branches(self, location: str) -> dict[str, list[str]]:
        """The ids of the checkpoints of every branch, the newest first."""
        found: dict[str, list[str]] = {}
        for each in self._listed(location, None):
            found.setdefault(each.namespace, []).append(each.id)
        return found

    @contextmanager
    def file(self, location: str) -> Iterator[str]:
        """A checkpoint as a file while the block runs, for ``CheckpointConfig(restore_from=...)``.

        CrewAI decides by the file it is given which of its own providers reads it. What goes on from there knows its parent.
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
        """Let go of the database, if it was opened here. It is opened again when it is needed."""
        self._place.close()

    def _find(self, location: str) -> Checkpoint:
        place, id = _split(location)
        for each in self._store().list(THREAD + place, id=id, user=self._user, limit=1):
            return each
        raise NotFound(f"there is no checkpoint {id} in {place!r} here")

    def _listed(self, location: str, branch: str | None) -> Iterator[Checkpoint]:
        cursor: str | None = None
        while True:
            most = self._place.handle.limits.page(PAGE)
            page = self._store().list(THREAD + location, namespace=branch, user=self._user, limit=most, cursor=cursor)
            yield from page
            cursor = page.next
            if cursor is None:
                return

    def _store(self) -> Checkpoints:
        return self._place.handle.checkpoints


def cut(body: bytes) -> Sequence[bytes]:
    """A JSON text in pieces. Where it is cut depends on the object before, so what is the same is cut the same."""
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
        raise InvalidInput(f"{location!r} is not where a checkpoint lies: it is what saving one has answered")
    return place, id
