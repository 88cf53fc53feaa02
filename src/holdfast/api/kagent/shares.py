"""Share links. Clients compare the statuses exactly: 201 for a new one, 200 for everything else."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct
from starlette.responses import Response

from holdfast.errors import Forbidden, NotFound
from holdfast.ids import new_token
from holdfast.types import Session, SessionShare

from .request import Ask, enveloped, route
from .sessions import found_session


class NewShare(Struct):
    """A link to make."""

    read_only: bool = True


class ShareShown(Struct, frozen=True):
    """A link as kagent shows it."""

    id: int
    token: str
    session_id: str
    user_id: str
    read_only: bool
    created_at: datetime


_NEW = msgspec.json.Decoder(NewShare)
_ALL = "/api/sessions/{session_id}/shares"


@route("POST", _ALL)
async def create_share(ask: Ask) -> Response:
    """A link to a session of one's own."""
    session = await _own_session(ask)
    token = new_token()
    share = await ask.tenant.session_shares.create(
        session.id, token=token, read_only=ask.body(_NEW).read_only, shows_token=True
    )
    return enveloped(_shown(share, token, session.key), "Successfully created share", 201)


@route("GET", _ALL)
async def list_shares(ask: Ask) -> Response:
    """The links to a session of one's own that were made here: ``/v1`` promises to show a token once."""
    session = await _own_session(ask)
    found = await ask.tenant.session_shares.list(session.id)
    shown = [_shown(share, share.token, session.key) for share in found if share.token is not None]
    return enveloped(shown, "Successfully listed shares")


@route("DELETE", _ALL + "/{token}")
async def delete_share(ask: Ask) -> Response:
    """Remove a link to a session of one's own."""
    session = await _own_session(ask)
    if not await ask.tenant.session_shares.delete(session.id, token=ask.names["token"]):
        raise NotFound("Share not found")
    return enveloped({}, "Successfully deleted share")


async def _own_session(ask: Ask) -> Session:
    if ask.share_token is not None:
        raise Forbidden("only the owner of a session may share it")
    return await found_session(ask, None)


def _shown(share: SessionShare, token: str, key: str) -> ShareShown:
    return ShareShown(share.number, token, key, share.user, share.read_only, share.created_at)
