"""Encryption keys and secrets, for programs that store credentials.

A key encrypts the values that are stored as ``Secret``::

    from holdfast import Holdfast
    from holdfast.encryption import Secret, new_key

    hf = Holdfast("agents.db", encryption_key=new_key())

``encryption_key`` also accepts several keys: the first one encrypts, and all of them decrypt. ``rotate_secrets`` re-encrypts
every secret with the first key; afterwards the other keys can be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from .core import rotation
from .core.crypto import MASK, KeyRing, Keys, Secret, mask_secret, new_key
from .core.encrypted_columns import EncryptedColumn, encrypted_columns
from .core.scope import Scope
from .core.text import unescape
from .handles import Holdfast
from .sync_runner import step

Progress = Callable[[int, int], None]

FAILURES_SHOWN = 20
"""How many of the values that could not be decrypted are listed in the result of a rotation; the others are only counted."""


class Rotation(Struct, frozen=True):
    """The result of a rotation."""

    renewed: int
    """Values that were re-encrypted with the first key."""
    failed: int
    """Values that no key of the ring could decrypt; they are unchanged."""
    failures: list[str]
    """A description of each of the first ``FAILURES_SHOWN`` failures."""


def rotate_secrets(hf: Holdfast, *, on_progress: Progress = lambda rows, total: None) -> Rotation:
    """Re-encrypt every secret of all tenants with the first key of the ring, in small transactions.

    Plain values that were stored before a key was configured are encrypted as well. To resume an interrupted rotation, run it
    again. Other writers are not blocked.

    Args:
        hf: opened with the new key first, followed by all older keys.
        on_progress: called after every transaction with the number of values it processed, and the total number of values.

    Raises:
        MissingKey: no key is configured.
        MissingExtra: the package ``cryptography`` is not installed.
    """
    engine, setting = hf._engine, hf._setting
    setting.keys.require()
    work = [
        (column, *tenant_and_count)
        for column in encrypted_columns()
        for tenant_and_count in step(engine.read(partial(rotation.count_outdated, column=column, keys=setting.keys)))
    ]
    total = sum(count for _, _, count in work)
    renewed = failed = 0
    failures: list[str] = []
    for column, tenant, _ in work:
        scope = Scope(unescape(tenant), setting)
        after: Sequence[str] | None = None
        while True:
            batch = step(engine.write(partial(rotation.renew_batch, column=column, scope=scope, after=after)))
            renewed, failed = renewed + batch.renewed, failed + len(batch.failures)
            failures += [f"{scope.tenant}: {failure}" for failure in batch.failures][: FAILURES_SHOWN - len(failures)]
            on_progress(batch.rows, total)
            if batch.rows < rotation.ROWS_PER_TRANSACTION:
                break
            after = batch.after
    return Rotation(renewed, failed, failures)


__all__ = [
    "MASK",
    "EncryptedColumn",
    "KeyRing",
    "Keys",
    "Rotation",
    "Secret",
    "encrypted_columns",
    "mask_secret",
    "new_key",
    "rotate_secrets",
]
