"""Every limit has a name and a number. All of them can be changed when a Holdfast is opened."""

from __future__ import annotations

from msgspec import Struct

from .errors import LimitExceeded

KIB = 1024
MIB = 1024 * KIB
SEARCH_CHARS = 100
"""Characters, in one case, of the beginning of a name that can be searched for. It is stored with the names, so it is fixed."""


class Limits(Struct, frozen=True, kw_only=True):
    """What one call may carry. A call over a limit raises ``LimitExceeded`` and changes nothing."""

    tenant_bytes: int = 255
    """Bytes of a tenant's name as UTF-8. Names are limited in bytes because PostgreSQL limits what an index can hold."""
    key_bytes: int = 500
    """Bytes of a session key as UTF-8."""
    name_bytes: int = 255
    """Bytes of a user, agent or other name as UTF-8."""
    display_bytes: int = KIB
    """Bytes of a name that is only shown, such as a contact's, as UTF-8."""
    url_bytes: int = 2 * KIB
    """Bytes of an address, such as that of a picture, as UTF-8."""
    text_bytes: int = 64 * KIB
    """Bytes of a text that people write beside the conversation, such as feedback, as UTF-8."""
    content_bytes: int = 16 * MIB
    """Bytes of one message's content as JSON."""
    metadata_bytes: int = 256 * KIB
    """Bytes of one metadata object as JSON."""
    json_depth: int = 100
    """Levels of nesting in one JSON value; 200 at most."""
    batch_rows: int = 10_000
    """Rows one call may write."""
    page_rows: int = 1_000
    """Rows one page may ask for."""
    list_rows: int = 10_000
    """Rows a list without ``limit`` may return before it must be paged."""
    filters: int = 32
    """Filters in one call."""
    filter_values: int = 1_000
    """Values in one membership filter."""

    def check(self, name: str, value: int, what: str) -> None:
        """Raise ``LimitExceeded`` when ``value`` is over the limit called ``name``."""
        most: int = getattr(self, name)
        if value > most:
            raise LimitExceeded(f"{what}: {value:,} is over the limit {name} = {most:,}")
