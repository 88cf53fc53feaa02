"""Every limit of the server has a name and a number."""

from __future__ import annotations

from msgspec import Struct

MIB = 1024 * 1024


class ServerLimits(Struct, frozen=True, kw_only=True):
    """What one request may carry and how long things may take. What a store call may carry is in ``holdfast.Limits``."""

    request_bytes: int = 32 * MIB
    """Bytes of one request's body."""
    connections: int = 2_048
    """Connections at once; further ones are answered 503."""
    grace_s: int = 30
    """Longest wait, when told to stop, for requests that were accepted."""
    ready_s: float = 5.0
    """Longest wait for the database's answer to the question whether it is ready."""
    retry_after_s: int = 1
    """When to come back, as told to a caller whose request found the database unavailable."""
