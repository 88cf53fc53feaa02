"""A tenant handle that is opened on first use if it is given as an address."""

from __future__ import annotations

from threading import Lock

from holdfast import Holdfast, TenantHandle
from holdfast.errors import InvalidInput


class LazyHandle:
    """The handle of a tenant, given as an address or as a handle.

    ``close`` closes a database that was opened here; a handle that was passed in belongs to the caller.

    Raises:
        InvalidInput: ``where`` is neither an address nor a tenant handle.
    """

    def __init__(self, where: str | TenantHandle | None, tenant: str) -> None:
        if where is not None and not isinstance(where, (str, TenantHandle)):
            raise InvalidInput(
                f"where must be a path, a URL or hf.tenant(name), not {type(where).__name__}", field="where"
            )
        self._where, self._tenant = where, tenant
        self._opening = Lock()
        self._opened: Holdfast | None = None

    @property
    def address(self) -> str | None:
        """The address, if the database was given as one."""
        return self._where if isinstance(self._where, str) else None

    @property
    def handle(self) -> TenantHandle:
        """The handle of the tenant.

        Raises:
            InvalidInput: this object was restored from a checkpoint, which cannot contain a handle.
        """
        if isinstance(self._where, TenantHandle):
            return self._where
        if self._where is None:
            raise InvalidInput(
                "this object was restored from a checkpoint, which cannot contain its handle: pass a handle again, "
                "or use an address such as 'agents.db' instead of a handle",
                field="where",
            )
        with self._opening:
            if self._opened is None:
                self._opened = Holdfast(self._where, auto_migrate=True)
            return self._opened.tenant(self._tenant)

    def close(self) -> None:
        """Close the database, if it was opened here. The next use opens it again."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None

    def __deepcopy__(self, memo: object) -> LazyHandle:
        """Return the same object: CrewAI copies crews, flows and memories, and the copies must share the database."""
        return self
