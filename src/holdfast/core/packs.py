"""Where packs of large bodies lie: a directory, or a bucket, reached through ``obstore``.

A pack is the stored bodies of some objects, one after the other and nothing else; the database says which bytes are whose. It is
written once, under a name that is never used again, and is there for good when ``write`` returns. Blocking engines call the
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
"""Where a body begins in its pack, and how long it is."""
TENANT_BYTES = 16
SAY_WHERE = "say where they are kept, with --packs (HOLDFAST_PACKS), or packs= in Python"
SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "file", "memory")


class PackPlace:
    """A directory or a bucket that holds packs, a folder for each tenant.

    Args:
        where: a directory, or ``s3://bucket/folder`` and the like, with credentials from the surroundings.
        options: what the library needs to know beside that, such as ``{"aws_endpoint": ...}``.
        when_needed: make a directory when the first pack is written, and not before.

    Raises:
        InvalidInput: the library does not understand the address.
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
            return self._opened(self._where, self._options)
        except (self._obstore.exceptions.BaseError, ValueError, OSError) as error:
            raise InvalidInput(f"packs cannot be kept at {self._where!r}: {error}") from error

    @property
    def _is_nowhere(self) -> bool:
        """Whether this is a directory that was not made yet, because nothing lies in it."""
        return "_store" not in vars(self) and self._folder is not None and not self._folder.exists()

    def _opened(self, where: str, options: dict[str, Any]) -> Any:
        from obstore import store

        if self._folder is not None:
            made = [each for each in (self._folder, *self._folder.parents) if not each.exists()]
            opened = store.LocalStore(self._folder, mkdir=True)
            for each in made:
                _flush(each.parent)
            return opened
        return store.from_url(where, **options)

    async def write(self, path: str, content: bytes, *, blocking: bool) -> None:
        """Write a pack; when this returns it survives a power cut."""
        await self._do("put", blocking, path, content)
        if self._folder is None:
            return
        try:
            _flush_way(self._folder, path)
        except FileNotFoundError:
            pass  # removed meanwhile, by a prune that waits for nobody: whoever wants to seal it will see
        except OSError as error:
            raise Unavailable(f"packs cannot be written: {error}") from error

    async def read(self, path: str, spans: Sequence[Span], *, blocking: bool) -> list[bytes]:
        """Some bodies of a pack.

        Raises:
            NotFound: there is no such pack.
            PackStorageMissing: nothing was ever kept there.
            Unavailable: the place cannot be reached.
            Corrupt: it is too short for them.
        """
        if not spans:
            return []
        if self._is_nowhere:
            raise PackStorageMissing(
                f"objects of this tenant lie in packs, and there is no {self._where!r}: {SAY_WHERE}"
            )
        starts, lengths = [start for start, _ in spans], [length for _, length in spans]
        try:
            found = await self._do("get_ranges", blocking, path, starts=starts, lengths=lengths)
        except Unavailable:
            # A pack that ends too early looks to the library like one that cannot be reached.
            size = (await self._do("head", blocking, path))["size"]
            if max(start + length for start, length in spans) > size:
                raise Corrupt(f"the pack {path} is damaged: it ends too early") from None
            raise
        if [len(each) for each in found] != lengths:
            raise Corrupt(f"the pack {path} is damaged: it ends too early")
        return [bytes(each) for each in found]

    async def remove(self, paths: Sequence[str], *, blocking: bool) -> None:
        """Remove packs; those that are not there are removed already."""
        for path in [] if self._is_nowhere else paths:
            try:
                await self._do("delete", blocking, path)
            except NotFound:
                continue

    async def names(self, folder: str, *, blocking: bool) -> list[str]:
        """The paths of all packs in a folder."""
        if self._is_nowhere:
            return []
        try:
            listing = self._obstore.list(self._store, prefix=folder)
            found = listing.collect() if blocking else await listing.collect_async()
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise Unavailable(f"packs cannot be listed: {error}") from error
        return [each["path"] for each in found]

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
    """The folder of a tenant's packs. Names of tenants may hold anything, and folders may not."""
    return digest_of(tenant.encode(errors="surrogatepass"), TENANT_BYTES).hex()


def _folder(where: str | os.PathLike[str]) -> Path | None:
    """The directory an address means, or ``None`` if it is a bucket."""
    if not isinstance(where, (str, os.PathLike)) or not str(where):
        raise InvalidInput("packs are kept in a directory, or at an address such as s3://bucket/folder")
    scheme, separator, rest = str(where).partition("://")
    if not separator:
        return Path(where).absolute()
    if scheme not in SCHEMES:
        raise InvalidInput(f"packs are kept in a directory or at one of {', '.join(SCHEMES)}, not at {scheme}://")
    return Path(rest) if scheme == "file" else None


def _flush_way(root: Path, path: str) -> None:
    """See that a new file, and the way to it, survive a power cut: the library leaves that to the system."""
    at = root / path
    for each in (at, *at.parents):
        _flush(each)
        if each == root:
            break


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
