"""Objects: large bodies, stored once per tenant under the BLAKE3 digest of their content.

An object has holders, each under a name of its own choice. An object without holders is removed in two steps: ``prune``
first condemns it, and a later ``prune`` removes it if it was condemned long enough ago and still has no holder. A put of the same
body in between holds it again, in the same transaction as the row that refers to it. So references decide, a concurrent
writer loses nothing, and a process that dies at any point leaves at worst a condemned object. Objects are never shared
between tenants.

Small objects are stored in the database, large ones in packs if a pack storage is configured: see ``packs``.
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
"""Seconds that an object without holders is kept before it is removed."""
MAX_HOLDERS = 20
"""Maximum holders of a damaged object that are listed."""
MAX_VERIFIED = 1_000
"""Objects that one call of ``verify`` reads without a ``limit``."""
MAX_PRUNED = 500
"""Objects that one transaction of a prune examines."""
_NO_DIGEST = b""
_LAST_DIGEST = b"\xff" * (bodies.DIGEST_BYTES + 1)


class ObjectUsage(Struct, frozen=True):
    """Number and size of a tenant's objects."""

    count: int
    size_bytes: int
    """Bytes of the original content."""
    stored_bytes: int
    """Bytes as stored."""
    condemned: int
    """Objects without holders that wait to be removed."""
    packs: int = 0
    """Files that contain large objects."""


class Pruned(Struct, frozen=True):
    """The result of one ``prune``."""

    condemned: int
    removed: int
    removed_bytes: int
    packs: int = 0
    """Files that were removed from the pack storage."""


class Damage(Struct, frozen=True):
    """A damaged object and its holders."""

    digest: str
    reason: str
    holders: Sequence[str]


class Checked(Struct, frozen=True):
    """The result of one ``verify``. ``next`` is the ``after`` of the next call, or ``None`` at the end."""

    count: int
    damaged: Sequence[Damage]
    next: str | None


queries = Queries(__package__, "objects.sql")


class AsyncObjects(TenantStore):
    """The objects of one tenant."""

    async def put(self, contents: Sequence[bytes], *, holder: str) -> Sequence[str]:
        """Store these bodies and hold them; return the digest of each, in their order. Can be repeated.

        Raises:
            LimitExceeded: a body is over ``content_bytes``, there are more than ``batch_rows``, or all of the tenant's objects
                would take more than ``object_bytes``.
            Unavailable: the pack storage cannot be reached.
        """
        packed = [bodies.pack(self._content(content)) for content in self._batch(contents, "contents")]
        name = self._holder(holder)
        await self._put(packed, name, await packs.stage(self._engine, self._scope, packed))
        return [body.digest.hex() for body in packed]

    @writes
    async def _put(self, connection: Connection, packed: Sequence[Packed], holder: str, staged: Staged | None) -> None:
        await register_tenant(connection, self._scope.params(now_at=self._scope.clock.now_us()))
        await keep(connection, self._scope, packed, holder=holder, staged=staged)

    @only_reads
    async def get(self, digests: Sequence[str]) -> Sequence[bytes]:
        """Return the bodies with these digests, in their order.

        Raises:
            NotFound: one of them does not exist.
            Corrupt: one of them is damaged.
            Unavailable: one of them is in a pack, and the pack storage cannot be reached.
        """
        binary = self._digests(digests)

        async def read() -> list[bytes]:
            items = await self._get(binary)
            in_packs = [item for item in items if isinstance(item, InPack)]
            fetched = await packs.fetch(self._engine, self._scope, in_packs) if in_packs else {}
            return [fetched[item.digest] if isinstance(item, InPack) else item for item in items]

        return await packs.retry_moved(read)

    @reads
    async def _get(self, connection: Connection, digests: Sequence[bytes]) -> list[bytes | InPack]:
        return await fetch(connection, self._scope, digests)

    @reads
    async def has(self, connection: Connection, digests: Sequence[str]) -> Sequence[bool]:
        """Return, for each digest, whether the object exists."""
        keys = [self._scope.params(digest=digest) for digest in self._digests(digests)]
        return [await queries.has.one(connection, key) is not None for key in keys]

    @writes
    async def release(self, connection: Connection, holder: str, *, digests: Sequence[str] | None = None) -> int:
        """Release these objects, or all that the holder holds, and return how many were released. ``prune`` removes them."""
        params = self._scope.params(holder=self._holder(holder))
        if digests is None:
            return len(await queries.release_all.all(connection, params))
        return await release(connection, params, self._digests(digests))

    async def prune(self, *, grace_s: int = GRACE_S) -> Pruned:
        """Remove the objects that had no holder for ``grace_s`` seconds, and condemn those that have none now.

        Empty packs are removed, too, and mostly unused ones are rewritten.

        Raises:
            Unavailable: the pack storage cannot be reached; the next prune does the rest.
        """
        if not isinstance(grace_s, int) or isinstance(grace_s, bool) or not 0 <= grace_s < 2**31:
            raise InvalidInput(
                f"grace_s must be a whole number of at least 0 seconds, not {grace_s!r}", field="grace_s"
            )
        pruned = await self._prune(grace_s)
        if await packs.repack(self._engine, self._scope):
            await self._prune(grace_s)
        return structs.replace(pruned, packs=await packs.clear(self._engine, self._scope))

    async def _prune(self, grace_s: int) -> Pruned:
        """Prune page by page, in short transactions, so that no writer waits for long."""
        total, after = Pruned(0, 0, 0), _NO_DIGEST
        while True:
            until = await self._page_end(after)
            page = await self._prune_page(grace_s, after, until)
            condemned, removed = total.condemned + page.condemned, total.removed + page.removed
            total = Pruned(condemned, removed, total.removed_bytes + page.removed_bytes)
            if until is None:
                return total
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
        size_bytes, stored_bytes = sum(row[0] for row in removed), sum(row[1] for row in removed)
        if removed:
            counts = self._scope.params(count=-len(removed), size_bytes=-size_bytes, stored_bytes=-stored_bytes)
            await queries.count.all(connection, counts)
        if until is None:
            await packs.condemn(connection, self._scope, params)
        return Pruned(len(condemned), len(removed), size_bytes)

    @only_reads
    async def verify(self, *, limit: int | None = None, after: str | None = None) -> Checked:
        """Read up to ``limit`` objects in the order of their digests, and compare each with its digest.

        ``limit`` defaults to ``page_rows``, at most 1,000.

        Raises:
            Unavailable: some of them are in packs, and the pack storage cannot be reached.
        """
        page_rows = self._scope.limits.page_rows
        most = rows_to_read(min(page_rows, MAX_VERIFIED) if limit is None else limit, self._scope.limits) - 1
        start = self._digests([after])[0] if after is not None else _NO_DIGEST
        rows = await self._page(start, most)
        reasons = {bytes(row[0]): reason for row in rows if (reason := await self._check(*row))}
        last = bytes(rows[-1][0]).hex() if len(rows) == most else None
        return Checked(len(rows), await self._damage(reasons) if reasons else [], last)

    @reads
    async def _page(self, connection: Connection, after: bytes, limit: int) -> Sequence[Row]:
        return await queries.page.all(connection, self._scope.params(after=after, limit=limit))

    async def _check(
        self, digest: bytes, codec: int, body: bytes | None, pack: str | None, start: int, length: int, size: int
    ) -> str | None:
        """Return why an object is damaged, or ``None`` if it is intact."""
        try:
            if pack is not None:
                reference = InPack(bytes(digest), codec, pack, start, length)
                body = (await packs.read_stored(self._engine, self._scope, [reference]))[reference.digest]
            if len(bodies.unpack(digest, codec, body or b"")) != size or len(body or b"") != length:
                return "its size differs from the recorded size"
        except (Corrupt, NotFound) as error:
            return str(error)
        return None

    @reads
    async def _damage(self, connection: Connection, reasons: Mapping[bytes, str]) -> list[Damage]:
        damaged = []
        for digest, reason in reasons.items():
            params = self._scope.params(digest=digest, limit=MAX_HOLDERS)
            holders = [text.unescape(row[0]) for row in await queries.holders.all(connection, params)]
            damaged.append(Damage(digest.hex(), reason, holders))
        return damaged

    @reads
    async def usage(self, connection: Connection) -> ObjectUsage:
        """Return the number and size of the tenant's objects."""
        row = await queries.usage.one(connection, self._scope.params())
        return ObjectUsage(*map(int, row)) if row is not None else ObjectUsage(0, 0, 0, 0)

    def _batch(self, values: Sequence[Any], field: str) -> Sequence[Any]:
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            raise InvalidInput(f"{field} must be a list, not {type(values).__name__}", field=field)
        self._scope.limits.check("batch_rows", len(values), field)
        return values

    def _content(self, content: object) -> bytes:
        if not isinstance(content, (bytes, bytearray, memoryview)):
            message = f"the content of an object must be bytes, not {type(content).__name__}"
            raise InvalidInput(message, field="contents")
        self._scope.limits.check("content_bytes", memoryview(content).nbytes, "content")
        return bytes(content)

    def _holder(self, holder: str) -> str:
        return scopes.name(holder, "holder", self._scope.limits, limit="key_bytes")

    def _digests(self, digests: Sequence[str]) -> list[bytes]:
        return [_digest(digest) for digest in self._batch(digests, "digests")]


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
    """Store compressed bodies and hold them, in the transaction of the rows that refer to them; return the new stored bytes.

    Raises:
        LimitExceeded: all of the tenant's objects would take more than ``object_bytes``.
        Stale: the pack that contains the bodies was removed, because it was not sealed in time.
    """
    staged = await packs.seal(connection, scope, staged)
    new: list[Packed] = []
    # Sorted, so that two writers of the same bodies do not deadlock.
    for body in sorted({body.digest: body for body in packed}.values(), key=lambda body: body.digest):
        if await _store(connection, scope, body, staged):
            new.append(body)
        await queries.hold.all(connection, scope.params(digest=body.digest, holder=holder))
    stored_bytes = sum(body.length for body in new)
    if new:
        size_bytes = sum(body.size_bytes for body in new)
        counts = scope.params(count=len(new), size_bytes=size_bytes, stored_bytes=stored_bytes)
        row = await queries.count.one(connection, counts)
        assert row is not None
        scope.limits.check("object_bytes", int(row[0]), "the objects of this tenant")
    return stored_bytes


async def hold(connection: Connection, scope: scopes.Scope, digests: Iterable[bytes], *, holder: str) -> None:
    """Hold existing objects, in the transaction of the rows that refer to them.

    Raises:
        Stale: one of them was removed.
    """
    for digest in sorted(digests):
        params = scope.params(digest=digest, holder=holder)
        if await queries.revive.one(connection, params) is None:
            raise Stale(f"object {digest.hex()} was removed concurrently; store it again")
        await queries.hold.all(connection, params)


async def _store(connection: Connection, scope: scopes.Scope, packed: Packed, staged: Staged | None) -> bool:
    """Store a body if it does not exist; return whether it is new."""
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
            message = (
                f"object {packed.digest.hex()} was removed, or its pack was not sealed in time; repeat the operation"
            )
            raise Stale(message)
        if await queries.put.one(connection, params) is not None:
            return True
    return False


async def fetch(connection: Connection, scope: scopes.Scope, digests: Sequence[bytes]) -> list[bytes | InPack]:
    """Return the verified bodies with these digests, or their location if they are in a pack; also used by other stores.

    Raises:
        NotFound: one of them does not exist.
        Corrupt: one of them is damaged.
    """
    items = await read_stored(connection, scope, digests)
    return [item if isinstance(item, InPack) else bodies.unpack(item.digest, item.codec, item.body) for item in items]


async def read_stored(connection: Connection, scope: scopes.Scope, digests: Sequence[bytes]) -> list[Packed | InPack]:
    """Return bodies in their stored form. The caller unpacks them: a large one would block an event loop for too long.

    Raises:
        NotFound: one of them does not exist.
    """
    items: list[Packed | InPack] = []
    for digest in digests:
        row = await queries.get.one(connection, scope.params(digest=digest))
        if row is None:
            raise NotFound(f"object {digest.hex()} does not exist", noun="object", key=digest.hex())
        _, codec, body, pack, start, length = row
        items.append(
            Packed(bytes(digest), codec, body, 0) if pack is None else InPack(bytes(digest), codec, pack, start, length)
        )
    return items


async def release(connection: Connection, params: Mapping[str, Any], digests: Iterable[bytes]) -> int:
    """Release objects of a holder, and return how many it held; also used by other stores."""
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
        message = f"a digest must have {2 * bodies.DIGEST_BYTES} hexadecimal digits, not {str(value)[:80]!r}"
        raise InvalidInput(message, field="digests")
    return digest
