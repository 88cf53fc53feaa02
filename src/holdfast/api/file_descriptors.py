"""File descriptors: how many connections fit into what the process may open, and whether any are left."""

from __future__ import annotations

import errno
import os

from holdfast.errors import InvalidInput, Unavailable

from .limits import ServerLimits

BACKLOG = 128
"""Connections that wait to be accepted. The event loop accepts all of them before it counts them, so they come out of the
reserve."""
NEEDED = 8
"""Descriptors that must be free for the server to be ready: a request opens a few for the database and for archives."""
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)


def connections(limits: ServerLimits) -> int:
    """Connections that are accepted: ``connections``, or fewer where ``RLIMIT_NOFILE`` minus ``reserved_files`` is less.

    Raises the soft limit of the process as far as it may.

    Raises:
        InvalidInput: no connection fits.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return limits.connections
    wanted = limits.connections + limits.reserved_files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits.connections
    if soft <= limits.reserved_files:
        raise InvalidInput(
            f"the process may open {soft:,} files, and reserved_files = {limits.reserved_files:,} of them are reserved: "
            "raise RLIMIT_NOFILE (ulimit -n), or lower reserved_files"
        )
    return soft - limits.reserved_files


def check_free() -> None:
    """Check that a request could open what it needs.

    Raises:
        Unavailable: it could not.
    """
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(NEEDED))
    except OSError as error:
        raise Unavailable(f"no file descriptors are left: {error.strerror}") from error
    finally:
        for each in opened:
            os.close(each)
