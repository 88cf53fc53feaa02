"""Objects: large bodies, each kept once for a tenant under the BLAKE3 digest of its content.

Somebody holds an object, under a name of its own choosing; several may. What nobody holds is removed in two steps: ``prune``
first marks it, and a later ``prune`` removes what was marked long enough ago and is still held by nobody. Whoever puts the same
body again in between holds it again, in the same transaction as what refers to it. So references decide, a writer at
the same moment loses nothing, and a process that dies at any point leaves nothing worse than a mark. Objects are never shared
between tenants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...clock import MICROSECONDS
from ...core import objects as bodies
from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
from ...core.objects import Packed
from ...core.paging import rows_to_read
from ...core.queries import Queries
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection
from ...errors import Corrupt, InvalidInput, NotFound

GRACE_S = 3_600
"""How long an object that nobody holds is kept before it is removed."""
HOLDERS_MOST = 20
"""Holders of a damaged object that are named."""
_NO_DIGEST = b""


class Usage(Struct, frozen=True):
    """What a tenant's objects amount to."""

    count: int
    size_bytes: int
    """As they were put."""
    stored_bytes: int
    """As they are stored."""
    condemned: int
    """Held by nobody, and waiting to be removed."""


class Pruned(Struct, frozen=True):
    """What one ``prune`` did."""

    condemned: int
    removed: int
    removed_bytes: int


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

    @writes
    async def put(self, connection: Connection, contents: Sequence[bytes], *, holder: str) -> Sequence[str]:
        """Keep these bodies and hold them; the digest of each, in their order. Doing it again changes nothing.

        Raises:
            LimitExceeded: a body is over ``content_bytes``, or there are more than ``batch_rows``.
        """
        packed = [bodies.pack(self._content(each)) for each in self._batch(contents, "contents")]
        name = self._holder(holder)
        await queries.register_tenant.all(connection, self._scope.params(now_at=self._scope.clock.now_us()))
        await keep(connection, self._scope, packed, holder=name)
        return [each.digest.hex() for each in packed]

    @reads
    async def get(self, connection: Connection, digests: Sequence[str]) -> Sequence[bytes]:
        """The bodies under these digests, in their order.

        Raises:
            NotFound: one of them is not here.
            Corrupt: one of them is not what was put.
        """
        return await fetch(connection, self._scope, self._digests(digests))

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

    @writes
    async def prune(self, connection: Connection, *, grace_s: int = GRACE_S) -> Pruned:
        """Remove what nobody has held for ``grace_s`` seconds, and mark what nobody holds from now on."""
        if not isinstance(grace_s, int) or isinstance(grace_s, bool) or not 0 <= grace_s < 2**31:
            raise InvalidInput(f"grace_s is a whole number of seconds from 0 on, not {grace_s!r}")
        now = self._scope.clock.now_us()
        params = self._scope.params(now_at=now, before_at=now - grace_s * MICROSECONDS)
        condemned = await queries.condemn.all(connection, params)
        removed = await queries.remove.all(connection, params)
        return Pruned(len(condemned), len(removed), sum(row[0] for row in removed))

    @reads
    async def verify(self, connection: Connection, *, limit: int = 1_000, after: str | None = None) -> Checked:
        """Read objects in the order of their digests and compare each with its digest, ``limit`` of them at a time."""
        most = rows_to_read(limit, self._scope.limits) - 1
        start = self._digests([after])[0] if after is not None else _NO_DIGEST
        rows = await queries.page.all(connection, self._scope.params(after=start, limit=most))
        damaged = [found for row in rows if (found := await self._damage(connection, *row)) is not None]
        last = bytes(rows[-1][0]).hex() if len(rows) == most else None
        return Checked(len(rows), damaged, last)

    @reads
    async def usage(self, connection: Connection) -> Usage:
        """How many objects there are, and how large they are."""
        row = await queries.usage.one(connection, self._scope.params())
        assert row is not None
        return Usage(*map(int, row))

    async def _damage(self, connection: Connection, digest: bytes, codec: int, body: bytes) -> Damage | None:
        try:
            bodies.unpack(digest, codec, body)
        except Corrupt as error:
            params = self._scope.params(digest=digest, limit=HOLDERS_MOST)
            holders = [row[0] for row in await queries.holders.all(connection, params)]
            return Damage(bytes(digest).hex(), str(error), holders)
        return None

    def _batch(self, values: Sequence[Any], what: str) -> Sequence[Any]:
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
            raise InvalidInput(f"{what} come as a list")
        self._scope.limits.check("batch_rows", len(values), what)
        return values

    def _content(self, content: object) -> bytes:
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise InvalidInput(f"the content of an object is bytes, not {type(content).__name__}")
        self._scope.limits.check("content_bytes", len(content), "content")
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


async def keep(connection: Connection, scope: scopes.Scope, packed: Iterable[Packed], *, holder: str) -> None:
    """Keep packed bodies and hold them; for other stores, in the transaction of what refers to them."""
    now = scope.clock.now_us()
    # In one order, so that two writers of the same bodies wait for each other instead of each for the other.
    for each in sorted(packed, key=lambda each: each.digest):
        params = scope.params(
            digest=each.digest,
            codec=each.codec,
            size_bytes=each.size_bytes,
            body=each.body,
            now_at=now,
            holder=holder,
        )
        await queries.put.all(connection, params)
        await queries.hold.all(connection, params)


async def fetch(connection: Connection, scope: scopes.Scope, digests: Sequence[bytes]) -> list[bytes]:
    """The bodies under these digests, each looked at; for other stores too.

    Raises:
        NotFound: one of them is not here.
        Corrupt: one of them is not what was put.
    """
    found = []
    for digest in digests:
        row = await queries.get.one(connection, scope.params(digest=digest))
        if row is None:
            raise NotFound(f"there is no object {digest.hex()} here")
        found.append(bodies.unpack(digest, row[0], row[1]))
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
