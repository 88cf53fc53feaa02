"""Storage for packs of large objects: a directory, or a bucket accessed through ``obstore``.

A pack is the concatenation of some stored objects and nothing else; the database records which bytes belong to which object. A
pack is written once, under a name that is never reused, and is durable when ``write`` returns. Blocking engines call the
blocking functions of the library and asynchronous ones await the others, so one source serves both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import Corrupt, InvalidInput, NotFound, PackStorageMissing, Unavailable
from ..extras import needs
from .objects import digest_of

Span = tuple[int, int]
"""The start of an object in its pack, and its length."""
TENANT_BYTES = 16
PACKS_HINT = "give their location with --packs (HOLDFAST_PACKS), or packs= in Python"
SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "file", "memory")


class PackStorage:
    """A directory or a bucket that holds packs, with a folder for each tenant.

    Args:
        where: a directory, or an address such as ``s3://bucket/folder``; credentials come from the environment.
        options: further options for the library, such as ``{"aws_endpoint": ...}``.
        when_needed: create a directory when the first pack is written, not before.

    Raises:
        InvalidInput: the library does not support the address.
        MissingExtra: the library is not installed.
    """

    def __init__(
        self, where: str | os.PathLike[str], options: dict[str, Any] | None = None, *, when_needed: bool = False
    ) -> None:
        self._where, self._options = str(where), options or {}
        self._folder = _folder(where)
        if not when_needed:
            assert self._store is not None

    @cached_property
    def _obstore(self) -> Any:
        with needs("packs"):
            import obstore
        return obstore

    @cached_property
    def _store(self) -> Any:
        try:
            return self._open(self._where, self._options)
        except (self._obstore.exceptions.BaseError, ValueError, OSError) as error:
            raise InvalidInput(f"packs cannot be kept at {self._where!r}: {error}", field="packs") from error

    @property
    def _is_missing(self) -> bool:
        """Whether this is a directory that was not created yet, because no pack was written to it."""
        return "_store" not in vars(self) and self._folder is not None and not self._folder.exists()

    def _open(self, where: str, options: dict[str, Any]) -> Any:
        from obstore import store

        if self._folder is not None:
            missing = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
            local = store.LocalStore(self._folder, mkdir=True)
            for path in missing:
                _flush(path.parent)
            return local
        return store.from_url(where, **options)

    async def write(self, path: str, content: bytes, *, blocking: bool) -> None:
        """Write a pack; it survives a power cut once this returns."""
        await self._do("put", blocking, path, content)
        if self._folder is None:
            return
        try:
            _flush_with_parents(self._folder, path)
        except FileNotFoundError:
            pass  # removed by a concurrent prune; sealing the pack will detect that
        except OSError as error:
            raise Unavailable(f"packs cannot be written: {error}") from error

    async def read(self, path: str, spans: Sequence[Span], *, blocking: bool) -> list[bytes]:
        """Read some objects of a pack.

        Raises:
            NotFound: the pack does not exist.
            PackStorageMissing: the directory does not exist.
            Unavailable: the storage cannot be reached.
            Corrupt: the pack is too short.
        """
        if not spans:
            return []
        if self._is_missing:
            raise PackStorageMissing(
                f"this tenant has objects in packs, and the directory {self._where!r} does not exist: {PACKS_HINT}"
            )
        starts, lengths = [start for start, _ in spans], [length for _, length in spans]
        try:
            bodies = await self._do("get_ranges", blocking, path, starts=starts, lengths=lengths)
        except Unavailable:
            # The library reports a pack that is too short as one that cannot be reached.
            size = (await self._do("head", blocking, path))["size"]
            if max(start + length for start, length in spans) > size:
                raise Corrupt(f"the pack {path} is damaged: it ends too early") from None
            raise
        if [len(body) for body in bodies] != lengths:
            raise Corrupt(f"the pack {path} is damaged: it ends too early")
        return [bytes(body) for body in bodies]

    async def remove(self, paths: Sequence[str], *, blocking: bool) -> None:
        """Remove packs; a missing pack counts as removed."""
        for path in [] if self._is_missing else paths:
            try:
                await self._do("delete", blocking, path)
            except NotFound:
                continue

    async def names(self, folder: str, *, blocking: bool) -> list[str]:
        """Return the paths of all packs in a folder."""
        if self._is_missing:
            return []
        try:
            listing = self._obstore.list(self._store, prefix=folder)
            entries = listing.collect() if blocking else await listing.collect_async()
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise Unavailable(f"packs cannot be listed: {error}") from error
        return [entry["path"] for entry in entries]

    async def _do(self, name: str, blocking: bool, *args: Any, **kwargs: Any) -> Any:
        try:
            if blocking:
                return getattr(self._obstore, name)(self._store, *args, **kwargs)
            return await getattr(self._obstore, f"{name}_async")(self._store, *args, **kwargs)
        except (FileNotFoundError, self._obstore.exceptions.NotFoundError) as error:
            raise NotFound(f"pack {args[0]!r} does not exist", noun="pack", key=str(args[0])) from error
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise Unavailable(f"packs cannot be reached: {error}") from error


def folder_of(tenant: str) -> str:
    """Return the folder of a tenant's packs: a digest, because a tenant's name may have characters that a path cannot."""
    return digest_of(tenant.encode(errors="surrogatepass"), TENANT_BYTES).hex()


def _folder(where: str | os.PathLike[str]) -> Path | None:
    """Return the directory that an address names, or ``None`` if it names a bucket."""
    if not isinstance(where, (str, os.PathLike)) or not str(where):
        raise InvalidInput("packs must be a directory or an address such as s3://bucket/folder", field="packs")
    scheme, separator, rest = str(where).partition("://")
    if not separator:
        return Path(where).absolute()
    if scheme not in SCHEMES:
        raise InvalidInput(
            f"packs must be in a directory or at one of {', '.join(SCHEMES)}, not at {scheme}://", field="packs"
        )
    return Path(rest) if scheme == "file" else None


def _flush_with_parents(root: Path, path: str) -> None:
    """Flush a new file and the directories on the way to it, so that it survives a power cut: the library does not."""
    file = root / path
    for current in (file, *file.parents):
        _flush(current)
        if current == root:
            break


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
