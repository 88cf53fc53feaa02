"""Keys and secrets: what programs use that store credentials.

A key encrypts what is stored as a ``Secret``::

    from holdfast import Holdfast
    from holdfast.encryption import Secret, new_key

    hf = Holdfast("agents.db", encryption_key=new_key())

``encryption_key`` takes several keys as well: the first encrypts, all decrypt.
"""

from __future__ import annotations

from .core.crypto import MASK, KeyRing, Keys, Secret, mask_secret, new_key
from .core.encrypted_columns import EncryptedColumn, encrypted_columns

__all__ = ["MASK", "EncryptedColumn", "KeyRing", "Keys", "Secret", "encrypted_columns", "mask_secret", "new_key"]
