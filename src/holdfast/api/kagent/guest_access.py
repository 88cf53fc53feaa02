"""Guests: a caller with the token of a share link has access to the session of the link's owner."""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import Forbidden, NotFound

from .request import KagentRequest


class GuestAccess(Struct, frozen=True):
    """The access that a share link grants: one session of another user."""

    user: str
    session_key: str
    read_only: bool


async def guest_access(request: KagentRequest, *, writing: bool) -> GuestAccess | None:
    """Return the access granted by the request's share token, or ``None`` if the request has none.

    Raises:
        Forbidden: the link does not exist, belongs to another session, or is read-only.
    """
    if request.share_token is None:
        return None
    try:
        link = await request.tenant.session_shares.use(request.share_token, user=request.user)
    except NotFound:
        raise Forbidden("this share link is invalid", reason="invalid") from None
    session = await request.tenant.sessions.get(link.session_id)
    if request.names.get("session_id", session.key) != session.key:
        raise Forbidden("this share link belongs to another session", reason="other_session")
    if writing and link.read_only:
        raise Forbidden("this share link is read-only", reason="read_only")
    return GuestAccess(link.user, session.key, link.read_only)
