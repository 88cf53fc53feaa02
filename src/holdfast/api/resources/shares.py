"""Links to sessions. The token of a link opens it: it is in the answer that makes it and never again."""

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


class NewShare(Struct, frozen=True, forbid_unknown_fields=True):
    """A link to make."""

    read_only: bool = True
    expires_at: Annotated[datetime | None, Meta(description="When it stops working; never, if left out.")] = None


class Token(Struct, frozen=True, forbid_unknown_fields=True):
    """What opens a link."""

    token: Name


class UsedToken(Token, frozen=True, forbid_unknown_fields=True):
    """What opens a link, and who has used it."""

    user: Name


class Share(Struct, frozen=True):
    """A link to a session, without what opens it."""

    session_id: Uuid
    number: Annotated[int, Meta(description="Which of the session's links it is.")]
    user: Annotated[str, Meta(description="Whose session it is.")]
    read_only: bool
    created_at: datetime
    expires_at: datetime | None


class DrawnShare(Struct, frozen=True):
    """A new link. Its token is shown here and nowhere else."""

    token: str
    share: Share


class ShareList(Struct, frozen=True):
    """Links."""

    items: list[Share]


@operation("POST", _OF_SESSION, status=201, raises=[NotFound], area=_AREA)
async def create_share(service: Service, *, tenant: str, session_id: Uuid, body: NewShare) -> DrawnShare:
    """Make a link to a session. The answer is the only place its token is ever shown."""
    token = new_token()
    made = await service.tenant(tenant).session_shares.create(
        session_id, token=token, read_only=body.read_only, expires_at=body.expires_at
    )
    return DrawnShare(token, _shown(made))


@operation("GET", _OF_SESSION, area=_AREA)
async def list_shares(service: Service, *, tenant: str, session_id: Uuid) -> ShareList:
    """The links to a live session, in the order in which they were made."""
    return ShareList([_shown(each) for each in await service.tenant(tenant).session_shares.list(session_id)])


@operation("DELETE", _OF_SESSION + "/{number}", status=204, raises=[NotFound], area=_AREA)
async def delete_share(
    service: Service, *, tenant: str, session_id: Uuid, number: Annotated[int, Meta(ge=0, le=2**53)]
) -> None:
    """Let nobody use a link any more."""
    if not await service.tenant(tenant).session_shares.delete(session_id, number=number):
        raise NotFound(f"session {session_id} has no link {number}")


@operation("POST", _ALL + "/find", raises=[NotFound], need="read", area=_AREA)
async def find_share(service: Service, *, tenant: str, body: Token) -> Share:
    """The link that a token opens."""
    found = await service.tenant(tenant).session_shares.find(body.token)
    if found is None:
        raise NotFound("there is no link with this token, or its session is deleted")
    return _shown(found)


@operation("POST", _ALL + "/use", raises=[NotFound], area=_AREA)
async def use_share(service: Service, *, tenant: str, body: UsedToken) -> Share:
    """The link that a token opens, and from now on it is known that the user has used it."""
    return _shown(await service.tenant(tenant).session_shares.use(body.token, user=body.user))


@operation("GET", _ALL, area=_AREA)
async def list_used_shares(service: Service, *, tenant: str, user: Annotated[str, Meta(min_length=1)]) -> ShareList:
    """The links that a user has used, to sessions that are live, the one made last first."""
    return ShareList([_shown(each) for each in await service.tenant(tenant).session_shares.used_by(user)])


def _shown(share: SessionShare) -> Share:
    return Share(share.session_id, share.number, share.user, share.read_only, share.created_at, share.expires_at)
