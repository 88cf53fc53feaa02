"""Access to agents: the four steps that decide whether a user may use an agent."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...core import text
from ...engines.protocol import Row

AccessRole = Literal["owner", "user", "admin", "operator"]
AccessStep = Literal["exists", "default", "owner", "share"]


class AgentAccess(Struct, frozen=True):
    """Whether a user may use an agent."""

    allowed: bool
    role: AccessRole | None
    """``None`` if the user may not use the agent."""
    step: AccessStep
    """The step that decided: whether the agent ``exists``, is the ``default``, belongs to its ``owner``, or has a ``share``."""


def decide_access(row: Row | None, user: str) -> AgentAccess:
    """Decide about a user, from the owner of a live agent, whether it is the default, and the role of the user's share."""
    if row is None:
        return AgentAccess(allowed=False, role=None, step="exists")
    owner, is_default, role = row
    is_owner = text.unescape(owner) == user
    if is_default:
        return AgentAccess(allowed=True, role="owner" if is_owner else "user", step="default")
    if is_owner:
        return AgentAccess(allowed=True, role="owner", step="owner")
    return AgentAccess(allowed=role is not None, role=role, step="share")
