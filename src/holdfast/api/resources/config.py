"""Routes of the configuration: channels and pairing, model providers and models, and secrets."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from holdfast.errors import DecryptionFailed, NotFound
from holdfast.types import AsyncChannels, AsyncModels, AsyncPairing, AsyncProviders, AsyncSecrets

from ..operations import operation
from ..pagination import PAGE_ROWS, Cursor, Limit
from ..record_routes import records
from ..state import Service
from ..store_routes import route
from .conversation import T

_PAIRING = T + "/pairing"
_SECRETS = T + "/secrets"


class SecretNames(Struct, frozen=True):
    """A page of the names of secrets, in order."""

    items: list[str]
    next: Annotated[str | None, Meta(description="The cursor of the next page, or null on the last page.")]


class SecretValue(Struct, frozen=True):
    """The value of a secret."""

    value: str


class PairingState(Struct, frozen=True):
    """Whether a sender is paired on a channel."""

    is_paired: bool


@operation("GET", _SECRETS)
async def list_secrets(
    service: Service, *, tenant: str, limit: Limit = PAGE_ROWS, cursor: Cursor = None
) -> SecretNames:
    """List the names of the secrets."""
    names = await service.tenant(tenant).secrets.list(limit=limit, cursor=cursor)
    return SecretNames(names, names.next)


@operation("POST", _SECRETS + "/{key}/reveal", need="admin", raises=[NotFound, DecryptionFailed])
async def reveal_secret(service: Service, *, tenant: str, key: str) -> SecretValue:
    """Return the value of a secret. The activity log gets an entry."""
    return SecretValue((await service.tenant(tenant).secrets.get(key)).reveal())


@operation("GET", _PAIRING + "/state")
async def get_pairing_state(service: Service, *, tenant: str, sender: str, channel: str) -> PairingState:
    """Return whether a sender is paired on a channel. A failure to find out is an error, never `false`."""
    return PairingState(await service.tenant(tenant).pairing.is_paired(sender, channel))


ROUTES = [
    *records(T + "/channels", "channels", AsyncChannels),
    # Pairing
    route("POST", _PAIRING + "/requests", "pairing", AsyncPairing.request, "request_pairing"),
    route("GET", _PAIRING + "/requests", "pairing", AsyncPairing.pending, "list_pairing_requests"),
    route("POST", _PAIRING + "/approve", "pairing", AsyncPairing.approve, "approve_pairing"),
    route("POST", _PAIRING + "/deny", "pairing", AsyncPairing.deny, "deny_pairing"),
    route("GET", _PAIRING + "/devices", "pairing", AsyncPairing.paired, "list_paired_devices"),
    route("DELETE", _PAIRING + "/devices", "pairing", AsyncPairing.revoke, "revoke_pairing"),
    # Models
    *records(T + "/providers", "providers", AsyncProviders),
    *records(T + "/models", "models", AsyncModels),
    route("GET", T + "/models/default", "models", AsyncModels.default, "get_default_model"),
    # Secrets
    route("PUT", _SECRETS + "/{key}", "secrets", AsyncSecrets.set, "set_secret", need="admin"),
    route("DELETE", _SECRETS + "/{key}", "secrets", AsyncSecrets.delete, "delete_secret", need="admin"),
]
