"""The database of a saver, which its clones share: LangGraph clones a saver to allow the types of a graph's schemas."""

from __future__ import annotations

from threading import Lock

from holdfast import Holdfast, TenantHandle


class Opening:
    """A handle of a tenant: the caller's own, or one that is opened when it is first needed."""

    def __init__(self, where: str | TenantHandle, tenant: str) -> None:
        self._where, self._tenant = where, tenant
        self._lock = Lock()
        self._opened: Holdfast | None = None
        self.handle = where if isinstance(where, TenantHandle) else None
        """The handle, if there is one already."""

    def open(self) -> TenantHandle:
        """The handle."""
        if self.handle is None:
            with self._lock:
                if self.handle is None:
                    self._opened = Holdfast(str(self._where), auto_migrate=True)
                    self.handle = self._opened.tenant(self._tenant)
        return self.handle

    def close(self) -> None:
        """Close the database, if it was opened here."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                self.handle = None
                opened.close()
