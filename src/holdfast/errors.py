"""Every error that Holdfast raises.

There is one base class and a few subclasses, each named after the situation. The docstring of a class is its default message,
so the documentation and the message cannot differ. Errors of database drivers are never raised as such: they are translated
into one of these, with the original as ``__cause__``.
"""

from __future__ import annotations

import inspect


class HoldfastError(Exception):
    """A Holdfast operation failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.getdoc(type(self)))


class InvalidInput(HoldfastError):
    """An argument is invalid; nothing was changed."""

    def __init__(self, message: str | None = None, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field
        """The argument, field or option that was refused."""


class InvalidText(InvalidInput):
    """A value cannot be stored as text or JSON; nothing was changed."""


class InvalidManifest(InvalidInput):
    """A manifest of declared resources is invalid; nothing was changed."""

    def __init__(self, message: str | None = None, *, file: str = "", document: int = 0, path: str = "") -> None:
        super().__init__(message, field=path)
        self.file, self.document, self.path = file, document, path


class InvalidFilter(InvalidInput):
    """A filter, the value of a filter or a page cursor is invalid; nothing was read."""


class LimitExceeded(InvalidInput):
    """A named limit was exceeded; nothing was changed."""

    def __init__(
        self, message: str | None = None, *, field: str = "", limit: str = "", maximum: int | None = None
    ) -> None:
        super().__init__(message, field=field)
        self.limit, self.maximum = limit, maximum


class DimensionMismatch(InvalidInput):
    """An embedding does not have the same number of dimensions as the stored embeddings; nothing was changed."""

    def __init__(self, message: str | None = None, *, field: str = "", stored: int = 0, given: int = 0) -> None:
        super().__init__(message, field=field)
        self.stored, self.given = stored, given


class NotFound(HoldfastError):
    """The object does not exist in this tenant."""

    def __init__(self, message: str | None = None, *, noun: str = "", key: str = "") -> None:
        super().__init__(message)
        self.noun, self.key = noun, key


class AlreadyExists(HoldfastError):
    """An object with this key already exists; nothing was changed."""

    def __init__(self, message: str | None = None, *, noun: str = "", key: str = "") -> None:
        super().__init__(message)
        self.noun, self.key = noun, key


class Conflict(HoldfastError):
    """Another caller changed it first, or the same id was used with other content; nothing was changed."""

    def __init__(self, message: str | None = None, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """Which conflict, for programs: ``"version"`` or ``"not_finished"``, for example."""


class Fenced(Conflict):
    """A newer lease holder has taken over; this one can no longer write."""


class Stale(Conflict):
    """The state the caller refers to no longer exists; nothing was changed. Read it again and retry."""


class NothingToCompact(Conflict):
    """Compaction would not make this session smaller; nothing was changed."""


class Forbidden(HoldfastError):
    """The caller is not allowed to do this."""

    def __init__(self, message: str | None = None, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """Why, for programs: ``"expired"``, for example."""


class CommandRefused(Forbidden):
    """The configuration of a program does not allow this command: do not run it."""

    def __init__(self, message: str | None = None, *, rule: str = "", pattern: str = "") -> None:
        super().__init__(message, reason=rule)
        self.rule = rule
        """The rule that refused it: ``operator``, ``path``, ``deny_args`` or ``deny_verbose``."""
        self.pattern = pattern
        """The operator, path or regular expression of the rule."""


class ReadOnly(Forbidden):
    """The database can be read but not written: check the permissions of the file and its directory."""


class CrossTenant(Forbidden):
    """The operation would have removed data of another tenant; that data was not removed."""

    def __init__(self, message: str | None = None, *, tenant: str = "", path: str = "") -> None:
        super().__init__(message)
        self.tenant, self.path = tenant, path


class Corrupt(HoldfastError):
    """Stored data is damaged: it differs from the data that was written."""


class DecryptionFailed(Corrupt):
    """A stored secret cannot be decrypted: it was modified, copied from another row, or encrypted with another key."""


class MissingKey(HoldfastError):
    """Storing a secret requires an encryption key: set HOLDFAST_ENCRYPTION_KEY (`holdfast secrets new-key` generates one)."""


class Closed(HoldfastError):
    """This Holdfast is not open: it was closed, or never entered with `async with`."""

    def __init__(self, message: str | None = None, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """Why, for programs: ``"forked"`` if the process was forked after opening it."""


class Unavailable(HoldfastError):
    """The database cannot be reached or is busy; nothing was changed, and a retry is safe."""


class PackStorageMissing(Unavailable):
    """Large objects are stored in packs whose location is not configured: set --packs (HOLDFAST_PACKS), or packs= in Python."""


class StorageFull(Unavailable):
    """The disk is full; nothing was changed. Free some space and retry."""


class OutcomeUnknown(HoldfastError):
    """The connection was lost during a commit, which may or may not have been applied. Retry with the same id to be certain."""

    def __init__(self, message: str | None = None, *, id: str | None = None) -> None:
        super().__init__(message)
        self.id = id


class SchemaMismatch(HoldfastError):
    """The database schema does not match this release of Holdfast."""


class MissingExtra(HoldfastError, ImportError):
    """A library that belongs to an optional extra of Holdfast is not installed."""

    def __init__(self, message: str | None = None, *, extra: str = "", name: str | None = None) -> None:
        super().__init__(message)
        self.extra, self.name = extra, name
