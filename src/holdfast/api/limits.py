"""Every limit of the server has a name and a number."""

from __future__ import annotations

from msgspec import Struct

KIB = 1024
MIB = 1024 * KIB


class ServerLimits(Struct, frozen=True, kw_only=True):
    """What one request may carry and how long things may take. What a store call may carry is in ``holdfast.Limits``."""

    request_bytes: int = 32 * MIB
    """Bytes of one request's body."""
    body_values: int = 250_000
    """JSON values in one request's body; eight numbers, or four strings, count as one."""
    header_bytes: int = 64 * KIB
    """Bytes of one request's address and headers."""
    response_bytes: int = 64 * MIB
    """Bytes of one answer's body."""
    archive_bytes: int = 1_024 * MIB
    """Bytes of an archive that is sent as a body."""
    archive_s: float = 1_800.0
    """Longest time an archive may take to arrive."""
    archives: int = 8
    """Archives that are taken in or handed out at once; each is a file in the temporary directory meanwhile."""
    connections: int = 2_048
    """Connections at once; further ones are answered 503. Fewer where the process may not open that many files."""
    reserved_files: int = 256
    """File descriptors that connections leave free for the database, archives and everything else."""
    idle_s: int = 75
    """How long a connection on which nothing is asked is kept, incomplete headers included: longer than proxies keep theirs."""
    stall_s: float = 30.0
    """How long a transfer may fall behind ``transfer_bytes_per_s`` before its connection is cut off."""
    transfer_bytes_per_s: int = 1_024
    """Bytes a second, averaged over ``stall_s``, that a client must read of its answer and send of an archive."""
    half_closed_s: float = 10.0
    """How long a request is still worked on after its client closed its sending side, or left."""
    grace_s: int = 30
    """Longest wait, when told to stop, for requests that were accepted."""
    answer_s: float = 60.0
    """Longest time one request may take, its body included; streams are not bound by it."""
    ready_s: float = 5.0
    """Longest wait for the database's answer to the question whether it is ready."""
    retry_after_s: int = 1
    """When to come back, as told to a caller whose request found the database unavailable."""
    key_s: float = 0.5
    """How long a key that was good is taken for good without asking again."""
    requests_per_s: float = 0.0
    """Requests of one key in a second, on average; 0 for any number."""
    requests_at_once: int = 100
    """Requests of one key that may come at once, where they are limited."""
    refusals_per_s: float = 1.0
    """Refusals of one address in a second, on average, until keys from there are no longer looked up; 0 for any number."""
    refusals_at_once: int = 60
    """Refusals of one address that may come at once."""
    tenant_share: float = 0.5
    """Part of ``archives``, ``streams`` and requests on all ``connections`` that one tenant may have under way."""
    streams: int = 1_000
    """Streams of events at once."""
    stream_bytes: int = 1_048_576
    """Bytes of events that a stream holds ready for a client; one event may have more."""
    stream_poll_s: float = 0.5
    """How often a stream looks for what was written elsewhere; what this server writes it knows at once."""
    stream_beat_s: float = 15.0
    """How often a stream that has nothing to say says so, so that nobody between takes it for dead."""
