"""Limits of the server, each with a name and a default."""

from __future__ import annotations

from msgspec import Struct

KIB = 1024
MIB = 1024 * KIB


class ServerLimits(Struct, frozen=True, kw_only=True):
    """Limits on the size and duration of requests. Limits of store calls are in ``holdfast.Limits``."""

    request_bytes: int = 32 * MIB
    """Bytes of a request's body."""
    body_values: int = 250_000
    """JSON values in a request's body; eight numbers, or four strings, count as one."""
    header_bytes: int = 64 * KIB
    """Bytes of a request's URL and headers."""
    response_bytes: int = 64 * MIB
    """Bytes of a response's body."""
    archive_bytes: int = 1_024 * MIB
    """Bytes of an uploaded archive."""
    archive_s: float = 1_800.0
    """Maximum duration of an archive's upload."""
    archives: int = 8
    """Archives that are uploaded or downloaded at once; each is a file in the temporary directory during the transfer."""
    connections: int = 2_048
    """Open connections; further ones are answered 503. Fewer if the process may not open that many files."""
    reserved_files: int = 256
    """File descriptors that connections leave free for the database, archives and everything else."""
    idle_s: int = 75
    """Time after which an idle connection is closed, even with incomplete headers: longer than the timeout of proxies."""
    stall_s: float = 30.0
    """Time for which a transfer may fall behind ``transfer_bytes_per_s`` before its connection is closed."""
    transfer_bytes_per_s: int = 1_024
    """Bytes per second, averaged over ``stall_s``, that a client must read of a response and send of an archive."""
    half_closed_s: float = 10.0
    """Time for which a request continues after its client closed its sending side or disconnected."""
    grace_s: int = 30
    """Maximum wait for accepted requests when the server stops."""
    answer_s: float = 60.0
    """Maximum duration of a request, including its body; streams are exempt."""
    ready_s: float = 5.0
    """Maximum wait for the database in the readiness check."""
    retry_after_s: int = 1
    """The ``Retry-After`` of responses when the database is unavailable."""
    key_s: float = 0.5
    """Time for which a verified key is accepted without another lookup."""
    requests_per_s: float = 0.0
    """Average requests per second of one key; 0 for no limit."""
    requests_at_once: int = 100
    """Burst of requests of one key, if ``requests_per_s`` is set."""
    refusals_per_s: float = 1.0
    """Average refusals per second of one address, above which keys from there are not looked up; 0 for no limit."""
    refusals_at_once: int = 60
    """Burst of refusals of one address."""
    tenant_share: float = 0.5
    """Fraction of ``archives``, ``streams`` and concurrent requests (``connections``) that one tenant may use."""
    streams: int = 1_000
    """Open event streams."""
    stream_bytes: int = 1_048_576
    """Bytes of events that a stream buffers for a client; a single event may be larger."""
    stream_poll_s: float = 0.5
    """Interval at which a stream looks for writes of other servers; writes of this server wake it immediately."""
    stream_beat_s: float = 15.0
    """Interval of the comments that a stream sends while it has no events, so that proxies do not close it."""
