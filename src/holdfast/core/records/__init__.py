"""Record stores: a store that needs only a row type and inherits all of its methods.

Markers on the fields of the row type declare the key, the limits, and the fields that can be filtered or searched
(``fields``). The statements are generated from that declaration as the text of a ``.sql`` file, so every check of the
statements includes them (``statements``). One generic class is the synchronous form of all record stores (``sync``),
one line declares the HTTP operations of a store (``api/record_routes.py``), and one contract test checks every promise
on each store.
"""

from .fields import (
    AtLeast,
    AtMostOne,
    DefaultsTo,
    Filterable,
    Format,
    Key,
    KeyOptional,
    Limited,
    Merged,
    Metadata,
    Names,
    Natural,
    OnlyFor,
    References,
    Searchable,
    Tags,
    Url,
)
from .revealing import AsyncSecretRecords
from .soft import AsyncSoftRecords
from .store import AsyncRecords
from .sync import Records, SecretRecords, SoftRecords
from .values import check_version

__all__ = [
    "AsyncRecords",
    "AsyncSecretRecords",
    "AsyncSoftRecords",
    "AtLeast",
    "AtMostOne",
    "DefaultsTo",
    "Filterable",
    "Format",
    "Key",
    "KeyOptional",
    "Limited",
    "Merged",
    "Metadata",
    "Names",
    "Natural",
    "OnlyFor",
    "Records",
    "References",
    "Searchable",
    "SecretRecords",
    "SoftRecords",
    "Tags",
    "Url",
    "check_version",
]
