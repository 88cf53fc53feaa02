"""Keys and secrets: what programs use that store credentials.

A key encrypts what is stored as a ``Secret``::

    from holdfast import Holdfast
    from holdfast.encryption import Secret, new_key

    hf = Holdfast("agents.db", encryption_key=new_key())

``encryption_key`` takes several keys as well: the first one encrypts, all of them decrypt. ``rotate_secrets`` encrypts everything
with the first one, after which the others can go.
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
"""Values that could not be decrypted and are named in the result of a rotation; the others are only counted."""


class Rotation(Struct, frozen=True):
    """What came of a rotation."""

    renewed: int
    """Values that the first key has encrypted now."""
    failed: int
    """Values that no key of the ring could decrypt; they stay as they are."""
    failures: list[str]
    """Which these are, ``FAILURES_SHOWN`` at most."""


def rotate_secrets(hf: Holdfast, *, on_progress: Progress = lambda rows, total: None) -> Rotation:
    """Encrypt every secret of all tenants with the first key of the ring, in small transactions.

    What was stored before there was a key is encrypted as well. A rotation that was broken off is finished by starting another;
    other writers go on beside it.

    Args:
        hf: opened with the new key first, and with all older keys behind it.
        on_progress: called after every transaction with the number of values it looked at, and of all there are to look at.

    Raises:
        MissingKey: there is no key.
        MissingExtra: the package ``cryptography`` is not installed.
    """
    engine, setting = hf._engine, hf._setting
    setting.keys.require()
    work = [
        (column, *found)
        for column in encrypted_columns()
        for found in step(engine.read(partial(rotation.count_outdated, column=column, keys=setting.keys)))
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
            failures += [f"{scope.tenant}: {each}" for each in batch.failures][: FAILURES_SHOWN - len(failures)]
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
