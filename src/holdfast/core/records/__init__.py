"""Record stores: a plain store is declared by its row type and inherits everything it does."""

from .fields import Filterable, Key, Limited, Metadata, Names, Natural, Searchable, Tags
from .store import AsyncRecords, AsyncSoftRecords, Records, SoftRecords
from .values import check_version

__all__ = [
    "AsyncRecords",
    "AsyncSoftRecords",
    "Filterable",
    "Key",
    "Limited",
    "Metadata",
    "Names",
    "Natural",
    "Records",
    "Searchable",
    "SoftRecords",
    "Tags",
    "check_version",
]
