"""Guests: who comes with the token of a link sees the session it leads to as its owner does."""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import Forbidden, NotFound

from .request import Ask


class Visit(Struct, frozen=True):
    """What a link grants: one session of another user."""

    user: str
    session_key: str
    read_only: bool


async def visit(ask: Ask, *, writing: bool) -> Visit | None:
    """The link that a request came with, or ``None`` if it came without.

    Raises:
        Forbidden: there is no such link, it leads to another session, or it lets nobody write.
    """
    if ask.share_token is None:
        return None
    try:
        link = await ask.tenant.session_shares.use(ask.share_token, user=ask.user)
    except NotFound:
        raise Forbidden("this link is not good") from None
    session = await ask.tenant.sessions.get(link.session_id)
    if ask.names.get("session_id", session.key) != session.key:
        raise Forbidden("this link leads to another session")
    if writing and link.read_only:
        raise Forbidden("this link is for reading only")
    return Visit(link.user, session.key, link.read_only)
