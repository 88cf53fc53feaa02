"""Authentication and authorization.

Everybody comes with an API key, in ``Authorization: Bearer hf_...`` or in ``X-API-Key``. A key is asked of the database at most
every ``ServerLimits.key_s``, so one that is revoked is refused within a second. Where clients cannot send a key, an address
range can be trusted by name: who comes from there without a key may read and write in one tenant, and nothing else. The address
is that of the connection; what a header says about it is not believed.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.types import Scope

from holdfast import Clock, SystemClock
from holdfast.clock import monotonic_s, to_us
from holdfast.errors import Forbidden, HoldfastError, InvalidInput, Unavailable
from holdfast.types import ApiKey

from .audit import AuditLog, Denial
from .limits import ServerLimits
from .operations import Need
from .problems import NotAuthenticated, TooManyRequests
from .rate_limit import RateLimit
from .state import Service

Network = IPv4Network | IPv6Network

DEFAULT_TENANT = "default"
TOUCH_S = 60.0
"""Seconds between two notes of when a key was used."""
AWAY_S = 1.0
"""Seconds after which a database that has not said what it knows about a key counts as away, where its last word will do."""
_MAX_KEYS = 10_000
_PREFIX = "hf_"
_MAPPED, _MAPPED_BITS = "::ffff:", 96
_WANTED = {"admin": "admin", "root": "admin, without a tenant", "watch": "read, without a tenant"}
"""The scopes that there are for everything at once only."""


class AccessOptions(Struct, frozen=True, kw_only=True):
    """Who is let in besides those with a key.

    Raises:
        InvalidInput: the tenant has no name, which of a caller would mean all tenants.
    """

    trusted: tuple[Network, ...] = ()
    """Address ranges whose callers need no key."""
    tenant: str = DEFAULT_TENANT
    """The tenant of callers without a key, and of addresses that name none."""
    hosts: tuple[str, ...] = ()
    """Names of this server that a request without a key may have in ``Host``, besides ``localhost`` and IP addresses. A web page
    whose own name is made to mean this server would otherwise ask with the address of whoever looks at it."""

    def __post_init__(self) -> None:
        if not self.tenant:
            raise InvalidInput(f"the default tenant must have a name; {DEFAULT_TENANT!r} is the usual one")


class Caller(Struct, frozen=True):
    """Who asks. ``tenant`` is empty for one who may speak of all tenants."""

    name: str
    tenant: str
    scopes: frozenset[str]
    address: str = ""
    key_id: str = ""

    def may(self, need: Need, area: str) -> bool:
        """Whether the scopes are enough for something of this kind."""
        if self.tenant and need in ("watch", "root"):
            return False
        if need == "open" or "admin" in self.scopes:
            return True
        if need in ("admin", "root"):
            return False
        need = "read" if need == "watch" else need
        return need in self.scopes or f"{area}:{need}" in self.scopes


def networks(written: Sequence[str]) -> tuple[Network, ...]:
    """Address ranges as they are written: ``10.0.0.0/8``, ``127.0.0.1``, ``fd00::/8``; ``::ffff:10.0.0.1`` is ``10.0.0.1``.

    Raises:
        InvalidInput: one is no address range.
    """
    try:
        return tuple(_network(each.strip()) for each in written if each.strip())
    except ValueError as error:
        raise InvalidInput(f"an address range is written like 10.0.0.0/8: {error}") from None


def _network(written: str) -> Network:
    found = ipaddress.ip_network(written)
    first = getattr(found.network_address, "ipv4_mapped", None)
    return found if first is None else IPv4Network((first, found.prefixlen - _MAPPED_BITS))


class _Known(Struct):
    key: ApiKey
    caller: Caller
    checked_s: float
    touched_s: float


class Access:
    """Lets callers in, or says why not, and has every refusal noted."""

    def __init__(
        self, service: Service, options: AccessOptions, audit: AuditLog, *, clock: Clock | None = None
    ) -> None:
        self._service, self._options, self._audit = service, options, audit
        self._clock = clock or SystemClock()
        self._known: dict[bytes, _Known] = {}
        limits: ServerLimits = service.limits
        self._requests = RateLimit(limits.requests_per_s, limits.requests_at_once)
        # Two counts for each address. Without a key nothing is looked up: such requests cost hardly anything, and must not use up
        # what those with a key are given, since behind a proxy all come from one address. A key that is not known yet is looked
        # up in the database: after too many wrong ones from its address, one at a time. Guessed it cannot be, with 192 bits of
        # chance in it. A key that was good before is slowed down by neither.
        self._without_key = RateLimit(limits.refusals_per_s, limits.refusals_at_once)
        self._wrong_keys = RateLimit(limits.refusals_per_s, limits.refusals_at_once)
        self._lookups = asyncio.Lock()
        self._foreign = RateLimit(limits.refusals_per_s, limits.refusals_at_once)

    @property
    def tenant(self) -> str:
        """The tenant of callers and addresses that name none."""
        return self._options.tenant

    async def caller(self, scope: Scope, headers: Mapping[bytes, bytes], *, though_away: bool = False) -> Caller:
        """Who has sent a request.

        Args:
            though_away: take a key that was good before for good as long as the database does not answer: whether it does is
                what is asked.

        Raises:
            NotAuthenticated: there is no key, or it is not good (any more).
            TooManyRequests: this caller, or somebody at this address without a good key, has asked too often.
        """
        address, given = address_of(scope), _given_key(headers)
        try:
            found = (
                self._of_network(address, headers) if given is None else await self._of_key(given, address, though_away)
            )
        except NotAuthenticated as refusal:
            self._refuse(scope, refusal, address, self._without_key if given is None else self._wrong_keys)
            raise
        wait_s = self._requests.take(found.key_id or found.name)
        if wait_s:
            raise TooManyRequests(found.name, wait_s)
        return found

    def check(self, caller: Caller, need: Need, area: str, tenant: str | None, scope: Scope) -> None:
        """Whether a caller may do this.

        Raises:
            Forbidden: it may not speak of this tenant, or its scopes are not enough. Whether the tenant exists is not told.
        """
        if tenant is not None and caller.tenant not in ("", tenant):
            message = f"this key is good for the tenant {caller.tenant!r} only"
        elif not caller.may(need, area):
            wanted = _WANTED.get(need) or f"{need} or {area}:{need}"
            message = f"this key has not the scope it takes: {wanted}"
        else:
            return
        self.forbid(caller, message, scope)
        raise Forbidden(message)

    def forbid(self, caller: Caller, message: str, scope: Scope) -> None:
        """Have it noted that somebody who was let in may not do this."""
        self._audit.note(_denial(scope, message, caller.tenant, caller.key_id, caller.address))

    def turn_away(self, message: str, scope: Scope) -> None:
        """Have it noted that a request is answered without asking who sent it; too many of one address are counted only."""
        address = address_of(scope)
        if self._foreign.take(address):
            self._audit.count()
        else:
            self._audit.note(_denial(scope, message, "", "", address))

    def _of_network(self, address: str, headers: Mapping[bytes, bytes]) -> Caller:
        seen = unmapped(address)
        if seen is not None and any(seen in network for network in self._options.trusted):
            name = host_name(headers.get(b"host", b""))
            if name not in ("", "localhost", *self._options.hosts) and unmapped(name) is None:
                raise NotAuthenticated(
                    f"requests without a key must not name this server {name!r}: use its address, or start it with "
                    f"--allowed-host {name}"
                )
            return Caller(f"network {address}", self._options.tenant, frozenset(("read", "write")), address)
        raise NotAuthenticated("send an API key, as Authorization: Bearer hf_...")

    async def _of_key(self, key: str, address: str, though_away: bool) -> Caller:
        digest = _digest(key)
        known = self._known.get(digest)
        now_s = monotonic_s()
        key_s = self._service.limits.key_s
        if known is None and self._wrong_keys.wait_s(address):
            # This may be a good key all the same. A flood from one address takes up one connection to the database at most.
            async with self._lookups:
                known = await self._asked(digest, key, now_s, None)
        elif known is None:
            known = await self._asked(digest, key, now_s, None)
        elif now_s - known.checked_s > key_s:
            known = await (self._last_word if though_away else self._asked)(digest, key, now_s, known)
        if known.key.expires_at is not None and to_us(known.key.expires_at) <= self._clock.now_us():
            raise NotAuthenticated("this API key has expired", key=known.key)
        if now_s - known.touched_s > TOUCH_S and now_s - known.checked_s <= key_s:
            known.touched_s = now_s
            await self._touch(known.key)
        return known.caller if known.caller.address == address else _at(known.caller, address)

    async def _last_word(self, digest: bytes, key: str, now_s: float, before: _Known) -> _Known:
        """What the database knows about a key or, if it does not answer, knew when it was asked last."""
        try:
            async with asyncio.timeout(AWAY_S):
                return await self._asked(digest, key, now_s, before)
        except (Unavailable, TimeoutError):
            return before

    async def _asked(self, digest: bytes, key: str, now_s: float, before: _Known | None) -> _Known:
        """What the database knows about a key."""
        try:
            found = await self._service.holdfast.api_keys.verify(key)
        except Forbidden as error:
            self._known.pop(digest, None)
            raise NotAuthenticated(str(error), key=None if before is None else before.key) from None
        caller = Caller(f"key {found.prefix}", found.tenant, frozenset(found.scopes), key_id=found.id)
        touched_s = now_s - 2 * TOUCH_S if before is None else before.touched_s
        self._known.pop(digest, None)
        if len(self._known) >= _MAX_KEYS:
            del self._known[next(iter(self._known))]
        self._known[digest] = _Known(found, caller, now_s, touched_s)
        return self._known[digest]

    async def _touch(self, key: ApiKey) -> None:
        try:
            await self._service.holdfast.api_keys.touch(key.id)
        except HoldfastError:
            return  # a note that is missing keeps nobody out

    def _slow_down(self, wait_s: float, address: str) -> None:
        """Tell who was refused too often to wait. That is counted and not noted: a flood must not fill the log."""
        if wait_s:
            self._audit.count()
            raise TooManyRequests(f"address {address}", wait_s) from None

    def _refuse(self, scope: Scope, refusal: NotAuthenticated, address: str, rates: RateLimit) -> None:
        self._slow_down(rates.take(address), address)
        key = refusal.key
        self._audit.note(
            _denial(scope, str(refusal), "" if key is None else key.tenant, "" if key is None else key.id, address)
        )


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def address_of(scope: Scope) -> str:
    """The address a request comes from. One of IPv4 is written as such, also where a socket for both kinds has taken it in."""
    client = scope.get("client")
    address = str(client[0]) if client else ""
    return address if not address.lower().startswith(_MAPPED) else str(unmapped(address) or address)


def unmapped(written: str) -> IPv4Address | IPv6Address | None:
    """The address that is written there, if one is: ``::ffff:10.0.0.1`` is ``10.0.0.1``."""
    try:
        address = ipaddress.ip_address(written)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def host_name(host: bytes) -> str:
    """The name in a ``Host`` header, without its port."""
    try:
        return urlsplit(f"//{host.decode('latin-1')}").hostname or ""
    except ValueError:
        return "?"


def _given_key(headers: Mapping[bytes, bytes]) -> str | None:
    """The key in a request. A token of somebody else's is none: clients send theirs along wherever they go."""
    bearer = _bearer_key(headers.get(b"authorization", b""))
    other = headers.get(b"x-api-key")
    if bearer is not None or other is None:
        return bearer
    return other.strip().decode("utf-8", "surrogateescape")


def _bearer_key(header: bytes) -> str | None:
    scheme, _, token = header.partition(b" ")
    if scheme.lower() == b"bearer" and token.strip().startswith(_PREFIX.encode()):
        return token.strip().decode("utf-8", "surrogateescape")
    return None


def _denial(scope: Scope, reason: str, tenant: str, key_id: str, address: str) -> Denial:
    return Denial(tenant, reason, key_id, address, scope["method"], scope["path"])


def _at(caller: Caller, address: str) -> Caller:
    return Caller(caller.name, caller.tenant, caller.scopes, address, caller.key_id)
