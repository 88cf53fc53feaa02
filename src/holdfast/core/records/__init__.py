"""Record stores: a store that needs only a row type and inherits all of its methods."""

from .fields import Filterable, Key, Limited, Merged, Metadata, Names, Natural, Searchable, Tags
from .soft import AsyncSoftRecords
from .store import AsyncRecords
from .sync import Records, SoftRecords
from .values import check_version

__all__ = [
    "AsyncRecords",
    "AsyncSoftRecords",
    "Filterable",
    "Key",
    "Limited",
    "Merged",
    "Metadata",
    "Names",
    "Natural",
    "Records",
    "Searchable",
    "SoftRecords",
    "Tags",
    "check_version",
]
