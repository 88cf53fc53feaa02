"""Pairing: an unknown sender on a channel gets a code, and becomes a paired device when an operator approves the code.

A code is stored in plain text and wrong codes are not counted: a code grants nothing to the sender who has it, and a caller who
may approve codes may list them, so guessing one of the 2^40 codes gives no access that the caller does not have.

Expired requests and devices are invisible at once. The next request or approval of their tenant removes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from ...clock import MICROSECONDS, from_us
from ...core import text
from ...core.actor_context import ActorContext
from ...core.blocking import Blocking, blocking
from ...core.filters import Filter, column
from ...core.paging import Page
from ...core.queries import Queries
from ...core.records import Limited
from ...core.registration import register_tenant
from ...core.rows import Column
from ...core.store import TenantStore, reads, writes_with_actor
from ...core.tables import ListTable
from ...engines.protocol import Connection
from ...errors import InvalidInput, LimitExceeded, NotFound, Unavailable
from ...ids import CODE_CHARS, CODE_SYMBOLS, Id, new_code
from ..objects.activity import log_change

_TRIES = 100
"""How often a request is tried again after concurrent requests took its place; each time, one of them succeeded."""

Sender = Annotated[str, Column("sender_id"), Limited("name_bytes", empty=False)]
Channel = Annotated[str, Limited("name_bytes", empty=False)]
Chat = Annotated[str, Column("chat_id"), Limited("name_bytes")]


class PairingRequest(Struct, frozen=True):
    """A sender who waits for approval. ``account`` is the account of the channel on which the sender wrote."""

    id: Id
    code: Annotated[str, Limited("name_bytes", empty=False)]
    sender: Sender
    channel: Channel
    chat: Chat
    account: Annotated[str, Column("account_id"), Limited("name_bytes", empty=False)]
    metadata: Annotated[dict[str, Any], Limited("metadata_bytes")]
    created_at: datetime
    expires_at: datetime


class PairedDevice(Struct, frozen=True):
    """A sender who was approved, on one channel."""

    id: Id
    sender: Sender
    channel: Channel
    chat: Chat
    paired_by: Annotated[str, Limited("name_bytes")]
    """The user that approved the sender; empty if unknown."""
    metadata: Annotated[dict[str, Any], Limited("metadata_bytes")]
    paired_at: datetime
    expires_at: datetime


REQUESTS = ListTable("pairing_requests", PairingRequest, noun="pairing request", descending=True)
DEVICES = ListTable("paired_devices", PairedDevice, noun="paired device", order=("paired_at", "id"), descending=True)
queries = Queries(__package__, "pairing.sql", PairingRequest, PairedDevice)


class AsyncPairing(TenantStore):
    """The pairing requests and the paired devices of one tenant."""

    @writes_with_actor
    async def request(
        self,
        connection: Connection,
        acting: ActorContext,
        sender: str,
        channel: str,
        *,
        chat: str = "",
        account: str = "default",
        metadata: Mapping[str, Any] | None = None,
    ) -> PairingRequest:
        """Return a request with a new code, or the current request of this sender on this channel.

        Raises:
            LimitExceeded: the account has ``pairing_requests`` other requests.
        """
        values: dict[str, Any] = {"sender": sender, "channel": channel, "chat": chat, "account": account}
        values |= {"metadata": {} if metadata is None else metadata}
        params = self._now(self._scope.limits.pairing_code_s, **REQUESTS.params(values, self._scope.limits))
        for _ in range(_TRIES):
            row = await queries.find_request.one(connection, params)
            if row is not None:
                return REQUESTS.rows(connection, [row])[0]
            await self._prune(connection, params)
            slot = await self._free_slot(connection, params, account)
            new = {"id": self._scope.ids.new(), "code": new_code(self._scope.ids), "slot": slot}
            row = await queries.request.one(connection, params | new)
            if row is not None:
                await register_tenant(connection, params)
                await self._log(connection, acting, "requested", sender, channel, {"account": account})
                return REQUESTS.rows(connection, [row])[0]
        raise Unavailable("other callers keep requesting pairings; nothing was changed, and a retry is safe")

    @writes_with_actor
    async def approve(
        self, connection: Connection, acting: ActorContext, code: str, by: str | None = None
    ) -> PairedDevice:
        """Pair the sender who has this code, for ``paired_device_s`` from now; a sender who is paired already is renewed.

        Args:
            by: who approves; by default the actor.

        Raises:
            NotFound: no request has this code, or it has expired, or another call has approved or denied it.
        """
        taken = await self._take(connection, code)
        values = {"chat": taken.chat, "sender": taken.sender, "channel": taken.channel, "metadata": taken.metadata}
        values["paired_by"] = acting.actor()[1] if by is None else by
        params = self._now(self._scope.limits.paired_device_s, **DEVICES.params(values, self._scope.limits))
        await self._prune(connection, params)
        row = await queries.pair.one(connection, params | {"id": self._scope.ids.new()})
        assert row is not None  # an upsert always returns its row
        await self._log(connection, acting, "approved", taken.sender, taken.channel, {} if by is None else {"by": by})
        return DEVICES.rows(connection, [row])[0]

    @writes_with_actor
    async def deny(self, connection: Connection, acting: ActorContext, code: str) -> None:
        """Remove the request with this code.

        Raises:
            NotFound: no request has this code, or it has expired, or another call has approved or denied it.
        """
        taken = await self._take(connection, code)
        await self._log(connection, acting, "denied", taken.sender, taken.channel, {})

    @writes_with_actor
    async def revoke(self, connection: Connection, acting: ActorContext, sender: str, channel: str) -> None:
        """Remove a paired device.

        Raises:
            NotFound: the sender is not paired on this channel.
        """
        row = await queries.revoke.one(connection, self._device(sender, channel))
        if row is None or not row[0]:
            raise NotFound(f"sender {sender!r} is not paired on channel {channel!r}", noun="paired device", key=sender)
        await self._log(connection, acting, "revoked", sender, channel, {})

    @reads
    async def is_paired(self, connection: Connection, sender: str, channel: str) -> bool:
        """Return whether a sender is paired on a channel. Every failure to find out raises an error and never returns ``False``.

        Raises:
            Unavailable: the database cannot be reached.
        """
        return await queries.is_paired.one(connection, self._device(sender, channel)) is not None

    @reads
    async def pending(
        self,
        connection: Connection,
        *,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[PairingRequest]:
        """List the requests that wait for approval, newest first. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor does not belong to this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        return await REQUESTS.list(
            connection, self._scope, {}, where=[*where, self._is_live()], limit=limit, cursor=cursor
        )

    @reads
    async def paired(
        self,
        connection: Connection,
        *,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[PairedDevice]:
        """List the paired devices, the one paired last first. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor does not belong to this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        return await DEVICES.list(
            connection, self._scope, {}, where=[*where, self._is_live()], limit=limit, cursor=cursor
        )

    async def _free_slot(self, connection: Connection, params: Mapping[str, Any], account: str) -> int:
        maximum = self._scope.limits.pairing_requests
        taken = {slot for (slot,) in await queries.slots.all(connection, params)}
        if len(taken) >= maximum:
            raise LimitExceeded(
                f"account {account!r} has {len(taken)} pairing requests, and the limit pairing_requests is {maximum}: "
                "approve or deny one, or wait until one expires",
                field="account",
                limit="pairing_requests",
                maximum=maximum,
            )
        return next(slot for slot in range(1, maximum + 1) if slot not in taken)

    async def _take(self, connection: Connection, code: str) -> PairingRequest:
        """Remove and return the request with this code."""
        given = code.upper() if isinstance(code, str) else ""
        if len(given) != CODE_CHARS or not {*given} <= {*CODE_SYMBOLS}:
            raise InvalidInput(
                f"a pairing code is {CODE_CHARS} letters and digits, without I, O, 0 and 1, not {code!r:.40}",
                field="code",
            )
        row = await queries.take_request.one(connection, self._now(0, code=given))
        if row is None:
            raise NotFound(
                f"no pairing request has the code {given}: it was approved or denied, or it has expired",
                noun="pairing request",
                key=given,
            )
        return REQUESTS.rows(connection, [row])[0]

    async def _prune(self, connection: Connection, params: Mapping[str, Any]) -> None:
        limited = {**params, "limit": self._scope.limits.batch_rows}
        await queries.prune_requests.all(connection, limited)
        await queries.prune_devices.all(connection, limited)

    async def _log(
        self,
        connection: Connection,
        acting: ActorContext,
        action: str,
        sender: str,
        channel: str,
        details: Mapping[str, Any],
    ) -> None:
        subject = text.cut(f"{channel}/{sender}", self._scope.limits.key_bytes)
        await log_change(connection, self._scope, acting, f"pairing.{action}", "pairing", subject, details)

    def _is_live(self) -> Filter:
        return column("expires_at").gt(from_us(self._scope.clock.now_us()))

    def _device(self, sender: str, channel: str) -> dict[str, Any]:
        values = {"sender": sender, "channel": channel}
        return self._now(0, **DEVICES.params(values, self._scope.limits))

    def _now(self, seconds: int, **values: Any) -> dict[str, Any]:
        """Return parameters with the current time, and with the time after so many seconds as ``expires_at``."""
        now = self._scope.clock.now_us()
        return self._scope.params(now_at=now, expires_at=now + seconds * MICROSECONDS, **values)


class Pairing(Blocking[AsyncPairing]):
    """The pairing requests and the paired devices of one tenant."""

    request = blocking(AsyncPairing.request)
    approve = blocking(AsyncPairing.approve)
    deny = blocking(AsyncPairing.deny)
    revoke = blocking(AsyncPairing.revoke)
    is_paired = blocking(AsyncPairing.is_paired)
    pending = blocking(AsyncPairing.pending)
    paired = blocking(AsyncPairing.paired)
