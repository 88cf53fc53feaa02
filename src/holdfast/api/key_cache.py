"""Checks whether the API key of an open stream is still valid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import monotonic_s, to_us
from holdfast.errors import NotFound
from holdfast.types import ApiKey

if TYPE_CHECKING:
    from .state import Service

_MAX_KEYS = 1_000


class KeyCache:
    """API keys by id, each read from the database at most once per ``key_s``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cached: dict[str, tuple[float, ApiKey | None]] = {}

    async def is_valid(self, key_id: str) -> bool:
        """Return whether this key is valid now. The empty id, of a caller from a trusted network, is always valid."""
        if not key_id:
            return True
        read_s, key = self._cached.get(key_id, (-1.0, None))
        now_s = monotonic_s()
        if read_s < 0 or now_s - read_s > self._service.limits.key_s:
            if len(self._cached) >= _MAX_KEYS:
                self._cached.clear()
            key = await self._read(key_id)
            self._cached[key_id] = now_s, key
        if key is None or key.revoked_at is not None:
            return False
        return key.expires_at is None or to_us(key.expires_at) > self._service.clock.now_us()

    async def _read(self, key_id: str) -> ApiKey | None:
        try:
            return await self._service.holdfast.api_keys.get(key_id)
        except NotFound:
            return None
