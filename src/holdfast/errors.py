"""Every error Holdfast raises.

One base class, few subclasses, each named after the situation. The docstring of a class is its default message,
so the documentation and the message cannot differ. Driver errors never leave the library bare: they become one of
these, with the original kept as ``__cause__``.
"""

from __future__ import annotations

import inspect


class HoldfastError(Exception):
    """Something went wrong in Holdfast."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.getdoc(type(self)))


class InvalidInput(HoldfastError):
    """An argument is not acceptable; nothing was changed."""

    def __init__(self, message: str | None = None, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field
        """The argument, field or option that was refused."""


class InvalidText(InvalidInput):
    """A value cannot be stored as text or JSON; nothing was changed."""


class InvalidFilter(InvalidInput):
    """A filter, its value or a page cursor is not part of the filter language; nothing was read."""


class LimitExceeded(InvalidInput):
    """A named limit was exceeded; nothing was changed."""

    def __init__(
        self, message: str | None = None, *, field: str = "", limit: str = "", maximum: int | None = None
    ) -> None:
        super().__init__(message, field=field)
        self.limit, self.maximum = limit, maximum


class DimensionMismatch(InvalidInput):
    """An embedding has another number of dimensions than those it would be compared with; nothing was changed."""

    def __init__(self, message: str | None = None, *, field: str = "", stored: int = 0, given: int = 0) -> None:
        super().__init__(message, field=field)
        self.stored, self.given = stored, given


class NotFound(HoldfastError):
    """No such object exists in this tenant."""

    def __init__(self, message: str | None = None, *, noun: str = "", key: str = "") -> None:
        super().__init__(message)
        self.noun, self.key = noun, key


class AlreadyExists(HoldfastError):
    """An object with this key already exists; nothing was changed."""

    def __init__(self, message: str | None = None, *, noun: str = "", key: str = "") -> None:
        super().__init__(message)
        self.noun, self.key = noun, key


class Conflict(HoldfastError):
    """Somebody else changed it first, or the same id came with other content; nothing was changed."""


class Fenced(Conflict):
    """A newer holder has taken over; this one may no longer write."""


class Stale(Conflict):
    """What the caller remembers is no longer there; nothing was changed. Read it again."""


class NothingToCompact(Conflict):
    """A compaction would not make this session smaller; nothing was changed."""


class Forbidden(HoldfastError):
    """This caller may not do that."""


class ReadOnly(Forbidden):
    """The database can be read but not written: check the permissions of the file and its folder."""


class CrossTenant(Forbidden):
    """Something of another tenant would have been removed; it was not."""

    def __init__(self, message: str | None = None, *, tenant: str = "", path: str = "") -> None:
        super().__init__(message)
        self.tenant, self.path = tenant, path


class Corrupt(HoldfastError):
    """Stored data is damaged: what was read is not what was written."""


class DecryptionFailed(Corrupt):
    """A stored secret cannot be decrypted: it was changed, copied from another place, or encrypted with another key."""


class MissingKey(HoldfastError):
    """No secret can be stored without an encryption key: set HOLDFAST_ENCRYPTION_KEY; `holdfast secrets new-key` makes one."""


class Closed(HoldfastError):
    """This Holdfast is not open: it was closed, or never opened with `async with`."""


class Unavailable(HoldfastError):
    """The database cannot be reached or is busy; nothing was changed, and a retry is safe."""


class PackStorageMissing(Unavailable):
    """Large objects are stored in packs, whose location is unknown: pass --packs (HOLDFAST_PACKS), or packs= in Python."""


class StorageFull(Unavailable):
    """The disk is full; nothing was changed. Free some space and retry."""


class OutcomeUnknown(HoldfastError):
    """The answer to a commit was lost: it may or may not have happened. Retry with the same id to settle it."""

    def __init__(self, message: str | None = None, *, id: str | None = None) -> None:
        super().__init__(message)
        self.id = id


class SchemaMismatch(HoldfastError):
    """The database schema does not fit this release of Holdfast."""


class MissingExtra(HoldfastError, ImportError):
    """A library that an extra of Holdfast brings is not installed."""

    def __init__(self, message: str | None = None, *, extra: str = "", name: str | None = None) -> None:
        super().__init__(message)
        self.extra, self.name = extra, name
