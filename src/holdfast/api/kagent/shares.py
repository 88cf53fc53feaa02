"""Share links. Clients compare the statuses exactly: 201 for a new link, 200 for everything else."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct
from starlette.responses import Response

from holdfast.errors import Forbidden, NotFound
from holdfast.ids import new_token
from holdfast.types import Session, SessionShare

from .request import KagentRequest, route, success
from .sessions import session_of


class _NewShare(Struct):
    """A share link to create."""

    read_only: bool = True


class _WireShare(Struct, frozen=True):
    """A share link in a response."""

    id: int
    token: str
    session_id: str
    user_id: str
    read_only: bool
    created_at: datetime


_NEW = msgspec.json.Decoder(_NewShare)
_ALL = "/api/sessions/{session_id}/shares"


@route("POST", _ALL)
async def create_share(request: KagentRequest) -> Response:
    """Create a share link of the user's session."""
    session = await _own_session(request)
    token = new_token()
    share = await request.tenant.session_shares.create(
        session.id, token=token, read_only=request.body(_NEW).read_only, shows_token=True
    )
    return success(_wire_share(share, token, session.key), "Successfully created share", 201)


@route("GET", _ALL)
async def list_shares(request: KagentRequest) -> Response:
    """List the share links of the user's session that were created over this API: ``/v1`` shows a token only once."""
    session = await _own_session(request)
    shares = await request.tenant.session_shares.list(session.id)
    listed = [_wire_share(share, share.token, session.key) for share in shares if share.token is not None]
    return success(listed, "Successfully listed shares")


@route("DELETE", _ALL + "/{token}")
async def delete_share(request: KagentRequest) -> Response:
    """Delete a share link of the user's session."""
    session = await _own_session(request)
    if not await request.tenant.session_shares.delete(session.id, token=request.names["token"]):
        raise NotFound("Share not found", noun="share")
    return success({}, "Successfully deleted share")


async def _own_session(request: KagentRequest) -> Session:
    if request.share_token is not None:
        raise Forbidden("only the owner of a session can share it", reason="not_owner")
    return await session_of(request, None)


def _wire_share(share: SessionShare, token: str, key: str) -> _WireShare:
    return _WireShare(share.number, token, key, share.user, share.read_only, share.created_at)
