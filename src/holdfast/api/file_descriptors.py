"""File descriptors: limits the number of connections to what the process may open, and checks that some are free."""

from __future__ import annotations

import errno
import os

from holdfast.errors import InvalidInput, Unavailable

from .limits import ServerLimits

BACKLOG = 128
"""Connections that wait to be accepted. The event loop accepts all of them before they are counted, so they use the reserved
descriptors."""
NEEDED = 8
"""Descriptors that must be free for the server to be ready: a request opens a few for the database and for archives."""
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)


def connections(limits: ServerLimits) -> int:
    """Return the maximum number of connections: ``connections``, or ``RLIMIT_NOFILE`` minus ``reserved_files`` if that is less.

    Raises the soft limit of the process up to its hard limit if necessary.

    Raises:
        InvalidInput: no connection is possible.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return limits.connections
    required = limits.connections + limits.reserved_files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < required:
        soft = required if hard == resource.RLIM_INFINITY else min(required, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= required:
        return limits.connections
    if soft <= limits.reserved_files:
        raise InvalidInput(
            f"the process may open {soft:,} files, and reserved_files = {limits.reserved_files:,} of them are reserved: "
            "raise RLIMIT_NOFILE (ulimit -n) or lower reserved_files",
            field="reserved_files",
        )
    return soft - limits.reserved_files


def check_free() -> None:
    """Check that a request could open the descriptors it needs.

    Raises:
        Unavailable: not enough are free.
    """
    descriptors: list[int] = []
    try:
        descriptors.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(NEEDED))
    except OSError as error:
        raise Unavailable(f"no file descriptors are free: {error.strerror}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
