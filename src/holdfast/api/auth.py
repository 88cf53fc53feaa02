"""Authentication and authorization.

A request carries an API key, in ``Authorization: Bearer hf_...`` or in ``X-API-Key``. A key is verified in the database at most
once per ``ServerLimits.key_s``, so a revoked key is refused within a second. Where clients cannot send a key, address ranges can
be trusted explicitly: callers from there may read and write in one tenant without a key. The address is that of the connection;
forwarding headers are ignored.
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
"""Seconds between two updates of a key's last use."""
AWAY_S = 1.0
"""Seconds to wait for the database before a cached verification of a key is used, where that is acceptable."""
_MAX_KEYS = 10_000
_PREFIX = "hf_"
_MAPPED, _MAPPED_BITS = "::ffff:", 96
_REQUIRED_SCOPE = {"admin": "admin", "root": "admin, without a tenant", "watch": "read, without a tenant"}
"""Required scopes that have no variant for one area."""


class AccessOptions(Struct, frozen=True, kw_only=True):
    """Which callers are accepted without a key.

    Raises:
        InvalidInput: the tenant is empty, which would grant access to all tenants.
    """

    trusted: tuple[Network, ...] = ()
    """Address ranges whose callers need no key."""
    tenant: str = DEFAULT_TENANT
    """The tenant of callers without a key, and of paths that name none."""
    hosts: tuple[str, ...] = ()
    """Host names that a request without a key may have in ``Host``, besides ``localhost`` and IP addresses. Without this check, a
    web page whose domain resolves to this server (DNS rebinding) could send requests from the address of its visitor."""

    def __post_init__(self) -> None:
        if not self.tenant:
            raise InvalidInput(
                f"the default tenant must not be empty; the usual name is {DEFAULT_TENANT!r}", field="tenant"
            )


class Caller(Struct, frozen=True):
    """An authenticated caller. ``tenant`` is empty if it has access to all tenants."""

    name: str
    tenant: str
    scopes: frozenset[str]
    address: str = ""
    key_id: str = ""

    def may(self, need: Need, area: str) -> bool:
        """Return whether its scopes permit an operation in this area."""
        if self.tenant and need in ("watch", "root"):
            return False
        if need == "open" or "admin" in self.scopes:
            return True
        if need in ("admin", "root"):
            return False
        need = "read" if need == "watch" else need
        return need in self.scopes or f"{area}:{need}" in self.scopes


def networks(ranges: Sequence[str]) -> tuple[Network, ...]:
    """Parse address ranges: ``10.0.0.0/8``, ``127.0.0.1``, ``fd00::/8``; ``::ffff:10.0.0.1`` equals ``10.0.0.1``.

    Raises:
        InvalidInput: one is not an address range.
    """
    try:
        return tuple(_network(text.strip()) for text in ranges if text.strip())
    except ValueError as error:
        raise InvalidInput(f"not an address range such as 10.0.0.0/8: {error}", field="ranges") from None


def _network(text: str) -> Network:
    network = ipaddress.ip_network(text)
    first = getattr(network.network_address, "ipv4_mapped", None)
    return network if first is None else IPv4Network((first, network.prefixlen - _MAPPED_BITS))


class _VerifiedKey(Struct):
    key: ApiKey
    caller: Caller
    checked_s: float
    touched_s: float


class Access:
    """Authenticates and authorizes callers, limits their rate, and records every refusal."""

    def __init__(
        self, service: Service, options: AccessOptions, audit: AuditLog, *, clock: Clock | None = None
    ) -> None:
        self._service, self._options, self._audit = service, options, audit
        self._clock = clock or SystemClock()
        self._verified: dict[bytes, _VerifiedKey] = {}
        limits: ServerLimits = service.limits
        self._requests = RateLimit(limits.requests_per_s, limits.requests_at_once)
        # Each address has two rate limits. A request without a key needs no lookup and costs little, so it must not use up the
        # limit of requests with a key: behind a proxy, all have the same address. An unknown key is looked up in the database;
        # after too many wrong keys from an address, its lookups run one at a time. Keys cannot be guessed: they have 192 random
        # bits. A key that was verified before is slowed down by neither limit.
        self._without_key = RateLimit(limits.refusals_per_s, limits.refusals_at_once)
        self._wrong_keys = RateLimit(limits.refusals_per_s, limits.refusals_at_once)
        self._lookups = asyncio.Lock()
        self._foreign = RateLimit(limits.refusals_per_s, limits.refusals_at_once)

    @property
    def tenant(self) -> str:
        """The tenant of callers and paths that name none."""
        return self._options.tenant

    async def caller(self, scope: Scope, headers: Mapping[bytes, bytes], *, accept_cached: bool = False) -> Caller:
        """Return the caller of a request.

        Args:
            accept_cached: accept a key that was verified before while the database does not answer. For operations that report
                whether the database answers.

        Raises:
            NotAuthenticated: the request has no key, or an invalid, revoked or expired one.
            TooManyRequests: this caller, or this address without a valid key, has sent too many requests.
        """
        address, key = address_of(scope), _key_in(headers)
        try:
            caller = (
                self._of_network(address, headers) if key is None else await self._of_key(key, address, accept_cached)
            )
        except NotAuthenticated as refusal:
            self._refuse(scope, refusal, address, self._without_key if key is None else self._wrong_keys)
            raise
        wait_s = self._requests.take(caller.key_id or caller.name)
        if wait_s:
            raise TooManyRequests(caller.name, wait_s)
        return caller

    def check(self, caller: Caller, need: Need, area: str, tenant: str | None, scope: Scope) -> None:
        """Check that a caller may do this.

        Raises:
            Forbidden: it has no access to this tenant, or its scopes do not suffice. Whether the tenant exists is not disclosed.
        """
        if tenant is not None and caller.tenant not in ("", tenant):
            message, reason = f"this key is valid for the tenant {caller.tenant!r} only", "tenant"
        elif not caller.may(need, area):
            scope_text = _REQUIRED_SCOPE.get(need) or f"{need} or {area}:{need}"
            message, reason = f"this key does not have the required scope: {scope_text}", "scope"
        else:
            return
        self.forbid(caller, message, scope)
        raise Forbidden(message, reason=reason)

    def forbid(self, caller: Caller, message: str, scope: Scope) -> None:
        """Record that an authenticated caller was refused."""
        self._audit.note(_denial(scope, message, caller.tenant, caller.key_id, caller.address))

    def record_unauthenticated_refusal(self, message: str, scope: Scope) -> None:
        """Record that a request was refused before authentication; above the rate limit of an address, only count it."""
        address = address_of(scope)
        if self._foreign.take(address):
            self._audit.count()
        else:
            self._audit.note(_denial(scope, message, "", "", address))

    def _of_network(self, address: str, headers: Mapping[bytes, bytes]) -> Caller:
        client = parse_address(address)
        if client is not None and any(client in network for network in self._options.trusted):
            name = host_name(headers.get(b"host", b""))
            if name not in ("", "localhost", *self._options.hosts) and parse_address(name) is None:
                raise NotAuthenticated(
                    f"the host name {name!r} is not allowed for requests without a key: use the server's address, or start the "
                    f"server with --allowed-host {name}"
                )
            return Caller(f"network {address}", self._options.tenant, frozenset(("read", "write")), address)
        raise NotAuthenticated("send an API key, as Authorization: Bearer hf_...")

    async def _of_key(self, key: str, address: str, accept_cached: bool) -> Caller:
        digest = _digest(key)
        verified = self._verified.get(digest)
        now_s = monotonic_s()
        key_s = self._service.limits.key_s
        if verified is None and self._wrong_keys.wait_s(address):
            # The key may still be valid. A flood from one address uses at most one database connection.
            async with self._lookups:
                verified = await self._verify(digest, key, now_s, None)
        elif verified is None:
            verified = await self._verify(digest, key, now_s, None)
        elif now_s - verified.checked_s > key_s:
            verify = self._verify_or_cached if accept_cached else self._verify
            verified = await verify(digest, key, now_s, verified)
        if verified.key.expires_at is not None and to_us(verified.key.expires_at) <= self._clock.now_us():
            raise NotAuthenticated("this API key has expired", key=verified.key)
        if now_s - verified.touched_s > TOUCH_S and now_s - verified.checked_s <= key_s:
            verified.touched_s = now_s
            await self._touch(verified.key)
        return verified.caller if verified.caller.address == address else _at(verified.caller, address)

    async def _verify_or_cached(self, digest: bytes, key: str, now_s: float, cached: _VerifiedKey) -> _VerifiedKey:
        """Verify a key; if the database does not answer, return the previous verification."""
        try:
            async with asyncio.timeout(AWAY_S):
                return await self._verify(digest, key, now_s, cached)
        except (Unavailable, TimeoutError):
            return cached

    async def _verify(self, digest: bytes, key: str, now_s: float, previous: _VerifiedKey | None) -> _VerifiedKey:
        """Verify a key in the database and cache the result."""
        try:
            api_key = await self._service.holdfast.api_keys.verify(key)
        except Forbidden as error:
            self._verified.pop(digest, None)
            raise NotAuthenticated(str(error), key=None if previous is None else previous.key) from None
        caller = Caller(f"key {api_key.prefix}", api_key.tenant, frozenset(api_key.scopes), key_id=api_key.id)
        touched_s = now_s - 2 * TOUCH_S if previous is None else previous.touched_s
        self._verified.pop(digest, None)
        if len(self._verified) >= _MAX_KEYS:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = _VerifiedKey(api_key, caller, now_s, touched_s)
        return self._verified[digest]

    async def _touch(self, key: ApiKey) -> None:
        try:
            await self._service.holdfast.api_keys.touch(key.id)
        except HoldfastError:
            return  # the time of the last use is not worth refusing the request for

    def _slow_down(self, wait_s: float, address: str) -> None:
        """Refuse an address over its rate limit. That is counted, not recorded: a flood must not fill the log."""
        if wait_s:
            self._audit.count()
            raise TooManyRequests(f"address {address}", wait_s) from None

    def _refuse(self, scope: Scope, refusal: NotAuthenticated, address: str, rate_limit: RateLimit) -> None:
        self._slow_down(rate_limit.take(address), address)
        key = refusal.key
        self._audit.note(
            _denial(scope, str(refusal), "" if key is None else key.tenant, "" if key is None else key.id, address)
        )


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def address_of(scope: Scope) -> str:
    """Return the client's IP address. An IPv4 address is written as such, even if it arrived on a dual-stack socket."""
    client = scope.get("client")
    address = str(client[0]) if client else ""
    return address if not address.lower().startswith(_MAPPED) else str(parse_address(address) or address)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, or return ``None`` if it is not one: ``::ffff:10.0.0.1`` becomes ``10.0.0.1``."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def host_name(host: bytes) -> str:
    """Return the host name of a ``Host`` header, without the port."""
    try:
        return urlsplit(f"//{host.decode('latin-1')}").hostname or ""
    except ValueError:
        return "?"


def _key_in(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the API key of a request, if any. Other bearer tokens are ignored: some clients send theirs to every server."""
    bearer = _bearer_key(headers.get(b"authorization", b""))
    api_key = headers.get(b"x-api-key")
    if bearer is not None or api_key is None:
        return bearer
    return api_key.strip().decode("utf-8", "surrogateescape")


def _bearer_key(header: bytes) -> str | None:
    scheme, _, token = header.partition(b" ")
    if scheme.lower() == b"bearer" and token.strip().startswith(_PREFIX.encode()):
        return token.strip().decode("utf-8", "surrogateescape")
    return None


def _denial(scope: Scope, reason: str, tenant: str, key_id: str, address: str) -> Denial:
    return Denial(tenant, reason, key_id, address, scope["method"], scope["path"])


def _at(caller: Caller, address: str) -> Caller:
    return Caller(caller.name, caller.tenant, caller.scopes, address, caller.key_id)
