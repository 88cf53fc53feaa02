"""Objects: large bodies, each kept once for a tenant under the BLAKE3 digest of its content.

Somebody holds an object, under a name of its own choosing; several may. What nobody holds is removed in two steps: ``prune``
first marks it, and a later ``prune`` removes what was marked long enough ago and is still held by nobody. Whoever puts the same
body again in between holds it again, in the same transaction as what refers to it. So references decide, a writer at
the same moment loses nothing, and a process that dies at any point leaves nothing worse than a mark. Objects are never shared
between tenants.

Small ones lie in the database. Large ones lie in packs, where a place for packs is given: see ``packs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from ...clock import MICROSECONDS
from ...core import objects as bodies
from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.objects import Packed
from ...core.paging import rows_to_read
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.store import TenantStore, only_reads, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import Corrupt, InvalidInput, NotFound, Stale
from . import packs
from .packs import InPack, Staged

GRACE_S = 3_600
"""How long an object that nobody holds is kept before it is removed."""
MAX_HOLDERS = 20
"""Holders of a damaged object that are named."""
VERIFIED_AT_ONCE = 1_000
"""Objects that are read by one call of ``verify``, where none says how many."""
MAX_PRUNED = 500
"""Objects that one transaction of a prune looks at."""
_NO_DIGEST = b""
_LAST_DIGEST = b"\xff" * (bodies.DIGEST_BYTES + 1)


class Usage(Struct, frozen=True):
    """What a tenant's objects amount to."""

    count: int
    size_bytes: int
    """As they were put."""
    stored_bytes: int
    """As they are stored."""
    condemned: int
    """Held by nobody, and waiting to be removed."""
    packs: int = 0
    """Files that large ones lie in."""


class Pruned(Struct, frozen=True):
    """What one ``prune`` did."""

    condemned: int
    removed: int
    removed_bytes: int
    packs: int = 0
    """Files that were removed from where packs are kept."""


class Damage(Struct, frozen=True):
    """An object that is no longer what was put, and who held it."""

    digest: str
    reason: str
    holders: Sequence[str]


class Checked(Struct, frozen=True):
    """What one ``verify`` found. ``next`` is where the next one starts, or ``None`` at the end."""

    count: int
    damaged: Sequence[Damage]
    next: str | None


queries = Queries(__package__, "objects.sql")


class AsyncObjects(TenantStore):
    """The objects of one tenant."""

    async def put(self, contents: Sequence[bytes], *, holder: str) -> Sequence[str]:
        """Keep these bodies and hold them; the digest of each, in their order. Doing it again changes nothing.

        Raises:
            LimitExceeded: a body is over ``content_bytes``, there are more than ``batch_rows``, or all of the tenant's objects
                would take more than ``object_bytes``.
            Unavailable: the place where packs are kept cannot be reached.
        """
        packed = [bodies.pack(self._content(each)) for each in self._batch(contents, "contents")]
        name = self._holder(holder)
        await self._put(packed, name, await packs.stage(self._engine, self._scope, packed))
        return [each.digest.hex() for each in packed]

    @writes
    async def _put(self, connection: Connection, packed: Sequence[Packed], holder: str, staged: Staged | None) -> None:
        await register_tenant(connection, self._scope.params(now_at=self._scope.clock.now_us()))
        await keep(connection, self._scope, packed, holder=holder, staged=staged)

    @only_reads
    async def get(self, digests: Sequence[str]) -> Sequence[bytes]:
        """The bodies under these digests, in their order.

        Raises:
            NotFound: one of them is not here.
            Corrupt: one of them is not what was put.
            Unavailable: one of them lies in a pack, and the place where packs are kept cannot be reached.
        """
        wanted = self._digests(digests)

        async def read() -> list[bytes]:
            found = await self._get(wanted)
            out = [each for each in found if isinstance(each, InPack)]
            packed = await packs.fetch(self._engine, self._scope, out) if out else {}
            return [packed[each.digest] if isinstance(each, InPack) else each for each in found]

        return await packs.settled(read)

    @reads
    async def _get(self, connection: Connection, digests: Sequence[bytes]) -> list[bytes | InPack]:
        return await fetch(connection, self._scope, digests)

    @reads
    async def has(self, connection: Connection, digests: Sequence[str]) -> Sequence[bool]:
        """Whether each of these is here."""
        wanted = [self._scope.params(digest=digest) for digest in self._digests(digests)]
        return [await queries.has.one(connection, each) is not None for each in wanted]

    @writes
    async def release(self, connection: Connection, holder: str, *, digests: Sequence[str] | None = None) -> int:
        """Let go of these, or of everything the holder holds; how many those were. Nothing is removed yet."""
        params = self._scope.params(holder=self._holder(holder))
        if digests is None:
            return len(await queries.release_all.all(connection, params))
        return await let_go(connection, params, self._digests(digests))

    async def prune(self, *, grace_s: int = GRACE_S) -> Pruned:
        """Remove what nobody has held for ``grace_s`` seconds, and mark what nobody holds from now on.

        Packs in which nothing lies any longer are removed too, and those that are mostly empty are written anew.

        Raises:
            Unavailable: the place where packs are kept cannot be reached; what is left to do is done by the next prune.
        """
        if not isinstance(grace_s, int) or isinstance(grace_s, bool) or not 0 <= grace_s < 2**31:
            raise InvalidInput(f"grace_s is a whole number of seconds from 0 on, not {grace_s!r}")
        pruned = await self._prune(grace_s)
        if await packs.repack(self._engine, self._scope):
            await self._prune(grace_s)
        return structs.replace(pruned, packs=await packs.clear(self._engine, self._scope))

    async def _prune(self, grace_s: int) -> Pruned:
        """Page by page, so that nobody has to wait for long."""
        done, after = Pruned(0, 0, 0), _NO_DIGEST
        while True:
            until = await self._page_end(after)
            part = await self._prune_page(grace_s, after, until)
            condemned, removed = done.condemned + part.condemned, done.removed + part.removed
            done = Pruned(condemned, removed, done.removed_bytes + part.removed_bytes)
            if until is None:
                return done
            after = until

    @reads
    async def _page_end(self, connection: Connection, after: bytes) -> bytes | None:
        row = await queries.page_end.one(connection, self._scope.params(after=after, most=MAX_PRUNED - 1))
        return None if row is None else bytes(row[0])

    @writes
    async def _prune_page(self, connection: Connection, grace_s: int, after: bytes, until: bytes | None) -> Pruned:
        now = self._scope.clock.now_us()
        params = self._scope.params(now_at=now, before_at=now - grace_s * MICROSECONDS)
        params |= {"after": after, "until": _LAST_DIGEST if until is None else until}
        await queries.reprieve.all(connection, params)
        condemned = await queries.condemn.all(connection, params)
        removed = await queries.remove.all(connection, params)
        size, stored = sum(row[0] for row in removed), sum(row[1] for row in removed)
        if removed:
            gone = self._scope.params(count=-len(removed), size_bytes=-size, stored_bytes=-stored)
            await queries.count.all(connection, gone)
        if until is None:
            await packs.condemn(connection, self._scope, params)
        return Pruned(len(condemned), len(removed), size)

    @only_reads
    async def verify(self, *, limit: int | None = None, after: str | None = None) -> Checked:
        """Read objects in the order of their digests and compare each with its digest, ``limit`` of them at a time.

        Without a limit, as many as a page may have, and no more than a thousand.

        Raises:
            Unavailable: some of them lie in packs, and the place where packs are kept cannot be reached.
        """
        page_rows = self._scope.limits.page_rows
        most = rows_to_read(min(page_rows, VERIFIED_AT_ONCE) if limit is None else limit, self._scope.limits) - 1
        start = self._digests([after])[0] if after is not None else _NO_DIGEST
        rows = await self._page(start, most)
        wrong = {digest: reason for row in rows if (reason := await self._wrong(*row)) for digest in [bytes(row[0])]}
        last = bytes(rows[-1][0]).hex() if len(rows) == most else None
        return Checked(len(rows), await self._damage(wrong) if wrong else [], last)

    @reads
    async def _page(self, connection: Connection, after: bytes, limit: int) -> Sequence[Row]:
        return await queries.page.all(connection, self._scope.params(after=after, limit=limit))

    async def _wrong(
        self, digest: bytes, codec: int, body: bytes | None, pack: str | None, start: int, length: int, size: int
    ) -> str | None:
        """What is wrong with an object, if anything is."""
        try:
            if pack is not None:
                place = InPack(bytes(digest), codec, pack, start, length)
                body = (await packs.raw(self._engine, self._scope, [place]))[place.digest]
            if len(bodies.unpack(digest, codec, body or b"")) != size or len(body or b"") != length:
                return "its size is not what was noted"
        except (Corrupt, NotFound) as error:
            return str(error)
        return None

    @reads
    async def _damage(self, connection: Connection, wrong: Mapping[bytes, str]) -> list[Damage]:
        found = []
        for digest, reason in wrong.items():
            params = self._scope.params(digest=digest, limit=MAX_HOLDERS)
            holders = [row[0] for row in await queries.holders.all(connection, params)]
            found.append(Damage(digest.hex(), reason, [text.unescape(each) for each in holders]))
        return found

    @reads
    async def usage(self, connection: Connection) -> Usage:
        """How many objects there are, and how large they are."""
        row = await queries.usage.one(connection, self._scope.params())
        return Usage(*map(int, row)) if row is not None else Usage(0, 0, 0, 0)

    def _batch(self, values: Sequence[Any], what: str) -> Sequence[Any]:
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            raise InvalidInput(f"{what} come as a list")
        self._scope.limits.check("batch_rows", len(values), what)
        return values

    def _content(self, content: object) -> bytes:
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise InvalidInput(f"the content of an object is bytes, not {type(content).__name__}")
        self._scope.limits.check("content_bytes", memoryview(content).nbytes, "content")
        return bytes(content)

    def _holder(self, holder: str) -> str:
        return scopes.name(holder, "holder", self._scope.limits, limit="key_bytes")

    def _digests(self, digests: Sequence[str]) -> list[bytes]:
        return [_digest(each) for each in self._batch(digests, "digests")]


class Objects(Blocking[AsyncObjects]):
    """The objects of one tenant."""

    put = blocking(AsyncObjects.put)
    get = blocking(AsyncObjects.get)
    has = blocking(AsyncObjects.has)
    release = blocking(AsyncObjects.release)
    prune = blocking(AsyncObjects.prune)
    verify = blocking(AsyncObjects.verify)
    usage = blocking(AsyncObjects.usage)


async def keep(
    connection: Connection, scope: scopes.Scope, packed: Iterable[Packed], *, holder: str, staged: Staged | None = None
) -> int:
    """Keep packed bodies and hold them; how many stored bytes are new. For other stores, in the transaction of what needs them.

    Raises:
        LimitExceeded: all of the tenant's objects would take more than ``object_bytes``.
        Stale: bodies that are nowhere but in a pack were removed with it, because nobody sealed it for too long.
    """
    staged = await packs.seal(connection, scope, staged)
    new: list[Packed] = []
    # In one order, so that two writers of the same bodies wait for each other instead of each for the other.
    for each in sorted({each.digest: each for each in packed}.values(), key=lambda each: each.digest):
        if await _store(connection, scope, each, staged):
            new.append(each)
        await queries.hold.all(connection, scope.params(digest=each.digest, holder=holder))
    stored = sum(each.length for each in new)
    if new:
        size = sum(each.size_bytes for each in new)
        counted = scope.params(count=len(new), size_bytes=size, stored_bytes=stored)
        row = await queries.count.one(connection, counted)
        assert row is not None
        scope.limits.check("object_bytes", int(row[0]), "the objects of this tenant")
    return stored


async def hold(connection: Connection, scope: scopes.Scope, digests: Iterable[bytes], *, holder: str) -> None:
    """Hold objects that are here; for other stores, in the transaction of what refers to them.

    Raises:
        Stale: one of them is not here any longer.
    """
    for digest in sorted(digests):
        params = scope.params(digest=digest, holder=holder)
        if await queries.revive.one(connection, params) is None:
            raise Stale(f"the object {digest.hex()} was removed meanwhile")
        await queries.hold.all(connection, params)


async def _store(connection: Connection, scope: scopes.Scope, packed: Packed, staged: Staged | None) -> bool:
    """See that a body is here; whether it was not."""
    params = scope.params(
        digest=packed.digest,
        codec=packed.codec,
        size_bytes=packed.size_bytes,
        stored_bytes=packed.length,
        body=packed.body,
        pack=None,
        pack_start=None,
        now_at=scope.clock.now_us(),
    )
    if staged is not None and packed.digest in staged.starts:
        params |= {"body": None, "pack": staged.id, "pack_start": staged.starts[packed.digest]}
        packed = Packed(packed.digest, packed.codec, b"", packed.size_bytes)
    while await queries.revive.one(connection, params) is None:
        if packed.is_in_pack:
            raise Stale("an object is there no longer, or its pack was removed because it came too late: do it again")
        if await queries.put.one(connection, params) is not None:
            return True
    return False


async def fetch(connection: Connection, scope: scopes.Scope, digests: Sequence[bytes]) -> list[bytes | InPack]:
    """The bodies under these digests, each looked at, or where in a pack they lie; for other stores too.

    Raises:
        NotFound: one of them is not here.
        Corrupt: one of them is not what was put.
    """
    found = await stored(connection, scope, digests)
    return [each if isinstance(each, InPack) else bodies.unpack(each.digest, each.codec, each.body) for each in found]


async def stored(connection: Connection, scope: scopes.Scope, digests: Sequence[bytes]) -> list[Packed | InPack]:
    """The same as they are stored, to be unpacked elsewhere: a large one takes longer than an event loop should stand still.

    Raises:
        NotFound: one of them is not here.
    """
    found: list[Packed | InPack] = []
    for digest in digests:
        row = await queries.get.one(connection, scope.params(digest=digest))
        if row is None:
            raise NotFound(f"there is no object {digest.hex()} here")
        _, codec, body, pack, start, length = row
        found.append(
            Packed(bytes(digest), codec, body, 0) if pack is None else InPack(bytes(digest), codec, pack, start, length)
        )
    return found


async def let_go(connection: Connection, params: Mapping[str, Any], digests: Iterable[bytes]) -> int:
    """Let a holder go of some objects; how many it held. For other stores too."""
    count = 0
    for digest in sorted(digests):
        count += len(await queries.release.all(connection, {**params, "digest": digest}))
    return count


def _digest(value: object) -> bytes:
    try:
        digest = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != bodies.DIGEST_BYTES:
        raise InvalidInput(f"a digest is {2 * bodies.DIGEST_BYTES} hexadecimal digits, not {str(value)[:80]!r}")
    return digest
