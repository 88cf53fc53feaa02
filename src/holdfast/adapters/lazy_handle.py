"""Where something is kept: an address that is opened when it is first needed, or the handle of a tenant."""

from __future__ import annotations

from threading import Lock

from holdfast import Holdfast, TenantHandle
from holdfast.errors import InvalidInput


class Place:
    """A tenant of a database. One that was opened here is let go of by ``close``; a handle stays the caller's.

    Raises:
        InvalidInput: ``where`` is neither an address nor the handle of a tenant.
    """

    def __init__(self, where: str | TenantHandle | None, tenant: str) -> None:
        if where is not None and not isinstance(where, (str, TenantHandle)):
            raise InvalidInput(f"give a path, a URL or hf.tenant(name), not {type(where).__name__}")
        self._where, self._tenant = where, tenant
        self._opening = Lock()
        self._opened: Holdfast | None = None

    @property
    def address(self) -> str | None:
        """The address, if it was given by one."""
        return self._where if isinstance(self._where, str) else None

    @property
    def handle(self) -> TenantHandle:
        """The handle of the tenant.

        Raises:
            InvalidInput: this came out of a checkpoint, which cannot hold a handle.
        """
        if isinstance(self._where, TenantHandle):
            return self._where
        if self._where is None:
            raise InvalidInput(
                "this was restored from a checkpoint, and the handle it had could not be saved: give it a handle again, "
                "or use an address such as 'agents.db' from the beginning"
            )
        with self._opening:
            if self._opened is None:
                self._opened = Holdfast(self._where, auto_migrate=True)
            return self._opened.tenant(self._tenant)

    def close(self) -> None:
        """Let go of the database, if it was opened here. It is opened again when it is needed."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None

    def __deepcopy__(self, memo: object) -> Place:
        """Copies of whatever is kept here are kept here: CrewAI copies crews, flows and memories as it likes."""
        return self
