"""Share links of sessions. The token that opens a link is part of the response that creates it, and of no other."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from holdfast.errors import NotFound
from holdfast.ids import new_token
from holdfast.types import SessionShare

from ..operations import operation
from ..schemas import Name, Uuid
from ..state import Service
from .conversation import S, T

_OF_SESSION = S + "/shares"
_ALL = T + "/shares"
_AREA = "sessions"


class NewSessionShare(Struct, frozen=True, forbid_unknown_fields=True):
    """A share link to create."""

    read_only: bool = True
    expires_at: Annotated[datetime | None, Meta(description="When it expires; never, if omitted.")] = None


class ShareToken(Struct, frozen=True, forbid_unknown_fields=True):
    """The token of a share link."""

    token: Name


class UsedShareToken(ShareToken, frozen=True, forbid_unknown_fields=True):
    """The token of a share link, and the user who used it."""

    user: Name


class Share(Struct, frozen=True):
    """A share link of a session, without its token."""

    session_id: Uuid
    number: Annotated[int, Meta(description="Its number among the session's links.")]
    user: Annotated[str, Meta(description="The user of the session.")]
    read_only: bool
    created_at: datetime
    expires_at: datetime | None


class CreatedShare(Struct, frozen=True):
    """A new share link. Its token is not shown again."""

    token: str
    share: Share


class ShareList(Struct, frozen=True):
    """A list of share links."""

    items: list[Share]


@operation("POST", _OF_SESSION, status=201, raises=[NotFound], area=_AREA)
async def create_share(service: Service, *, tenant: str, session_id: Uuid, body: NewSessionShare) -> CreatedShare:
    """Create a share link of a session. Its token is only shown in this response."""
    token = new_token()
    share = await service.tenant(tenant).session_shares.create(
        session_id, token=token, read_only=body.read_only, expires_at=body.expires_at
    )
    return CreatedShare(token, _share(share))


@operation("GET", _OF_SESSION, area=_AREA)
async def list_shares(service: Service, *, tenant: str, session_id: Uuid) -> ShareList:
    """List the share links of a live session, the oldest first."""
    return ShareList([_share(share) for share in await service.tenant(tenant).session_shares.list(session_id)])


@operation("DELETE", _OF_SESSION + "/{number}", status=204, raises=[NotFound], area=_AREA)
async def delete_share(
    service: Service, *, tenant: str, session_id: Uuid, number: Annotated[int, Meta(ge=0, le=2**53)]
) -> None:
    """Delete a share link. It can no longer be used."""
    if not await service.tenant(tenant).session_shares.delete(session_id, number=number):
        raise NotFound(f"share {number} of session {session_id} does not exist", noun="share", key=str(number))


@operation("POST", _ALL + "/find", raises=[NotFound], need="read", area=_AREA)
async def find_share(service: Service, *, tenant: str, body: ShareToken) -> Share:
    """Find the share link with a token."""
    share = await service.tenant(tenant).session_shares.find(body.token)
    if share is None:
        raise NotFound("no share has this token, or its session is deleted", noun="share")
    return _share(share)


@operation("POST", _ALL + "/use", raises=[NotFound], area=_AREA)
async def use_share(service: Service, *, tenant: str, body: UsedShareToken) -> Share:
    """Find the share link with a token, and record that the user has used it."""
    return _share(await service.tenant(tenant).session_shares.use(body.token, user=body.user))


@operation("GET", _ALL, area=_AREA)
async def list_used_shares(service: Service, *, tenant: str, user: Annotated[str, Meta(min_length=1)]) -> ShareList:
    """List the share links of live sessions that a user has used, the newest first."""
    return ShareList([_share(share) for share in await service.tenant(tenant).session_shares.used_by(user)])


def _share(share: SessionShare) -> Share:
    return Share(share.session_id, share.number, share.user, share.read_only, share.created_at, share.expires_at)
