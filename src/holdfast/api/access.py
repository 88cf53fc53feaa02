"""Who asks, and what they may do.

Everybody comes with an API key, in ``Authorization: Bearer hf_...`` or in ``X-API-Key``. A key is asked of the database at most
every ``ServerLimits.key_s``, so one that is revoked is refused within a second. Where clients cannot send a key, an address
range can be trusted by name: who comes from there without a key may read and write in one tenant, and nothing else. The address
is that of the connection; what a header says about it is not believed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network

from msgspec import Struct
from starlette.types import Scope

from holdfast import ApiKey, Clock, SystemClock
from holdfast.clock import monotonic_s, to_us
from holdfast.errors import Forbidden, HoldfastError, InvalidInput

from .denials import Denial, Denials
from .limits import ServerLimits
from .operations import Need
from .problems import NotAuthenticated, TooManyRequests
from .rates import Rates
from .service import Service

Network = IPv4Network | IPv6Network

DEFAULT_TENANT = "default"
TOUCH_S = 60.0
"""Seconds between two notes of when a key was used."""
_KEYS_MOST = 10_000
_LATELY_MOST = 100
_PREFIX = "hf_"


class AccessOptions(Struct, frozen=True, kw_only=True):
    """Who is let in besides those with a key."""

    trusted: tuple[Network, ...] = ()
    """Address ranges whose callers need no key."""
    tenant: str = DEFAULT_TENANT
    """The tenant of callers without a key, and of addresses that name none."""


class Caller(Struct, frozen=True):
    """Who asks. ``tenant`` is empty for one who may speak of all tenants."""

    name: str
    tenant: str
    scopes: frozenset[str]
    address: str = ""
    key_id: str = ""

    def may(self, need: Need, area: str) -> bool:
        """Whether the scopes are enough for something of this kind."""
        if need == "open" or "admin" in self.scopes:
            return need != "root" or not self.tenant
        return need in self.scopes or f"{area}:{need}" in self.scopes


def networks(written: Sequence[str]) -> tuple[Network, ...]:
    """Address ranges as they are written: ``10.0.0.0/8``, ``127.0.0.1``, ``fd00::/8``.

    Raises:
        InvalidInput: one is no address range.
    """
    try:
        return tuple(ipaddress.ip_network(each.strip()) for each in written if each.strip())
    except ValueError as error:
        raise InvalidInput(f"an address range is written like 10.0.0.0/8: {error}") from None


class _Known(Struct):
    key: ApiKey
    caller: Caller
    checked_s: float
    touched_s: float


class Access:
    """Lets callers in, or says why not, and has every refusal noted."""

    def __init__(
        self, service: Service, options: AccessOptions, denials: Denials, *, clock: Clock | None = None
    ) -> None:
        self._service, self._options, self._denials = service, options, denials
        self._clock = clock or SystemClock()
        self._known: dict[bytes, _Known] = {}
        self._lately: dict[bytes, _Known] = {}
        limits: ServerLimits = service.limits
        self._requests = Rates(limits.requests_per_s, limits.requests_at_once)
        self._refusals = Rates(limits.refusals_per_s, limits.refusals_at_once)

    @property
    def tenant(self) -> str:
        """The tenant of callers and addresses that name none."""
        return self._options.tenant

    async def caller(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Caller:
        """Who has sent a request.

        Raises:
            NotAuthenticated: there is no key, or it is not good (any more).
            TooManyRequests: this caller, or somebody at this address without a good key, has asked too often.
        """
        address = address_of(scope)
        known = self._lately.get(headers.get(b"authorization", b""))
        if known is not None and monotonic_s() - known.checked_s <= self._service.limits.key_s:
            return self._counted(known.caller if known.caller.address == address else _at(known.caller, address))
        given = _given_key(headers)
        try:
            found = self._of_network(address) if given is None else await self._of_key(given, address)
        except NotAuthenticated as refusal:
            self._refuse(scope, refusal, address)
            raise
        self._remember(headers, given)
        return self._counted(found)

    def _counted(self, found: Caller) -> Caller:
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
            wanted = "admin, without a tenant" if need == "root" else f"{need} or {area}:{need}"
            message = f"this key has not the scope it takes: {wanted}"
        else:
            return
        self._denials.note(_denial(scope, message, caller.tenant, caller.key_id, caller.address))
        raise Forbidden(message)

    def _of_network(self, address: str) -> Caller:
        try:
            seen = ipaddress.ip_address(address)
        except ValueError:
            seen = None
        if seen is not None and any(seen in network for network in self._options.trusted):
            return Caller(f"network {address}", self._options.tenant, frozenset(("read", "write")), address)
        raise NotAuthenticated("send an API key, as Authorization: Bearer hf_...")

    async def _of_key(self, key: str, address: str) -> Caller:
        digest = _digest(key)
        known = self._known.get(digest)
        now_s = monotonic_s()
        if known is None or now_s - known.checked_s > self._service.limits.key_s:
            if known is None:
                self._slow_down(address)
            known = await self._asked(digest, key, now_s, known)
        if known.key.expires_at is not None and to_us(known.key.expires_at) <= self._clock.now_us():
            raise NotAuthenticated("this API key has expired", key=known.key)
        if now_s - known.touched_s > TOUCH_S:
            known.touched_s = now_s
            await self._touch(known.key)
        return known.caller if known.caller.address == address else _at(known.caller, address)

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
        if len(self._known) >= _KEYS_MOST:
            del self._known[next(iter(self._known))]
        self._known[digest] = _Known(found, caller, now_s, touched_s)
        return self._known[digest]

    async def _touch(self, key: ApiKey) -> None:
        try:
            await self._service.holdfast.api_keys.touch(key.id)
        except HoldfastError:
            return  # a note that is missing keeps nobody out

    def _remember(self, headers: Mapping[bytes, bytes], given: str | None) -> None:
        """Know the same header again for as long as the key is taken for good, if it has no end by then."""
        header = headers.get(b"authorization")
        if given is None or header is None:
            return
        known = self._known.get(_digest(given))
        if known is not None and known.key.expires_at is None:
            if len(self._lately) >= _LATELY_MOST:
                self._lately.clear()
            self._lately[header] = known

    def _slow_down(self, address: str) -> None:
        wait_s = self._refusals.wait_s(address)
        if wait_s:
            raise TooManyRequests(f"address {address}", wait_s)

    def _refuse(self, scope: Scope, refusal: NotAuthenticated, address: str) -> None:
        self._refusals.take(address)
        key = refusal.key
        self._denials.note(
            _denial(scope, str(refusal), "" if key is None else key.tenant, "" if key is None else key.id, address)
        )


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def address_of(scope: Scope) -> str:
    """The address a request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _given_key(headers: Mapping[bytes, bytes]) -> str | None:
    """The key in a request. A token of somebody else's is none: clients send theirs along wherever they go."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and token.strip().startswith(_PREFIX.encode()):
        return token.strip().decode("utf-8", "surrogateescape")
    other = headers.get(b"x-api-key")
    return None if other is None else other.strip().decode("utf-8", "surrogateescape")


def _denial(scope: Scope, reason: str, tenant: str, key_id: str, address: str) -> Denial:
    return Denial(tenant, reason, key_id, address, scope["method"], scope["path"])


def _at(caller: Caller, address: str) -> Caller:
    return Caller(caller.name, caller.tenant, caller.scopes, address, caller.key_id)
