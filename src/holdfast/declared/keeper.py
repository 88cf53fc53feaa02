"""Keeping the rows of a tenant in step with a source, until it is stopped.

Every time, the whole source is compared with the rows: a change that was missed, by a broken connection or because a row was
changed by hand, is made up for by the next one. An unchanged source costs a few statements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event

from holdfast import TenantHandle
from holdfast.errors import Conflict, HoldfastError, InvalidInput
from holdfast.types import AppliedChange

from .applying import declarations, known_models
from .sources import RETRY_S, ResourceSource, Retries

RESYNC_S = 300.0
"""Seconds after which the rows are compared again although nothing has changed."""
SETTLE_S = 0.5
"""Seconds without a further change after which changes are applied."""
MAX_SETTLES = 20
"""Number of times that a further change delays the application."""


class Keeper:
    """Applies a source whenever it changes.

    Args:
        on_applied: called with the changes of each application, even if there are none.
        on_error: called with each error; it may be called by several threads. A source with an error changes nothing, and
            nothing of a resource with an error is changed.
    """

    def __init__(
        self,
        tenant: TenantHandle,
        source: ResourceSource,
        *,
        on_applied: Callable[[Sequence[AppliedChange]], None],
        on_error: Callable[[Exception], None],
        take_over: bool = False,
        dry_run: bool = False,
        resync_s: float = RESYNC_S,
        settle_s: float = SETTLE_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._tenant, self._source = tenant, source
        self._on_applied, self._on_error = on_applied, on_error
        self._take_over, self._dry_run = take_over, dry_run
        self._resync_s, self._settle_s, self._retry_s = resync_s, settle_s, retry_s
        self._changed, self._stop = Event(), Event()

    def run(self) -> None:
        """Apply the source and every later change until ``stop`` is called."""
        self._source.start(self._changed, self._stop, self._on_error)
        retries = Retries(self._retry_s)
        wait_s = 0.0
        while not self._stop.is_set():
            if self._changed.wait(wait_s):
                self._settle()
            if self._stop.is_set():
                return
            try:
                self.apply()
            except (InvalidInput, Conflict) as error:
                self._on_error(error)
                wait_s = self._resync_s
            except (HoldfastError, OSError) as error:
                self._on_error(error)
                wait_s = retries.next()
                continue
            else:
                wait_s = self._resync_s
            retries = Retries(self._retry_s)

    def apply(self) -> None:
        """Apply the source once, if its resources are known."""
        snapshot = self._source.snapshot()
        if snapshot is None:
            return
        models = known_models(self._tenant, snapshot.resources)
        ready, refused = declarations(snapshot.resources, snapshot.values, models)
        errors: dict[str, HoldfastError] = {**snapshot.errors, **refused}
        for error in errors.values():
            if snapshot.is_whole:
                raise error
            self._on_error(error)
        changes = self._tenant.declared.apply(
            ready,
            source=self._source.name,
            prune=snapshot.prune,
            keep=[*errors],
            take_over=self._take_over,
            dry_run=self._dry_run,
        )
        self._on_applied(changes)

    def stop(self) -> None:
        """Let ``run`` return after the current application."""
        self._stop.set()
        self._changed.set()

    def _settle(self) -> None:
        """Wait until nothing changes any more, but not forever."""
        for _ in range(MAX_SETTLES):
            self._changed.clear()
            if self._stop.is_set() or not self._changed.wait(self._settle_s):
                return
