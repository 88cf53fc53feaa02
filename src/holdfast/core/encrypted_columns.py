"""Columns whose values are secrets.

A store declares each encrypted column once. The declaration also makes the column known to the rotation of keys and to exports::

    CREDENTIALS = EncryptedColumn("channel_instances", "credentials", json=True).declare()

    stored = CREDENTIALS.encrypt(self._scope, row_id, Secret({"token": "..."}))  # text for the column; None stays None
    row.credentials = CREDENTIALS.load(self._scope, row_id, stored)  # a Secret, decrypted when it is revealed
    row.credentials.reveal()  # {"token": "..."}
    stored = CREDENTIALS.renew(self._scope, row_id, stored)  # in every update that leaves the secret as it is

Tenant, table, row and column are the associated data of a value, so it decrypts only where it was stored. A value that was stored
before there was a key is read as it is. ``renew`` returns what the column should hold from now on: the same text, or its
encryption with the first key of the ring if it was plain or encrypted with an older key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..errors import Corrupt, InvalidInput
from . import text
from .crypto import MASK, PREFIX, Secret, place_of
from .scope import Scope


class EncryptedColumn(Struct, frozen=True):
    """A column whose values are encrypted: what it is called, and what identifies its rows within a tenant.

    ``row`` names columns of text or uuid. With ``json``, a secret is a dictionary; otherwise it is a string.
    """

    table: str
    column: str
    row: tuple[str, ...] = ("id",)
    json: bool = False

    def declare(self) -> EncryptedColumn:
        """Make the column known to the rotation of keys and to exports, and return it.

        Raises:
            ValueError: it was declared differently before.
        """
        if _DECLARED.setdefault((self.table, self.column), self) != self:
            raise ValueError(f"{self.table}.{self.column} is declared twice")
        return self

    def encrypt(self, scope: Scope, row: str | Sequence[str], secret: Secret[Any] | None) -> str | None:
        """The text to store.

        Raises:
            InvalidInput: the secret is of the wrong type, or the mask.
            LimitExceeded: it is longer than ``secret_bytes``.
            MissingKey: there is no key.
            MissingExtra: the package ``cryptography`` is not installed.
        """
        if secret is None:
            return None
        self._check(secret)
        plain = Secret(self._written(secret, scope.limits.json_depth))
        scope.limits.check("secret_bytes", len(plain.reveal().encode("utf-8", "surrogatepass")), self.column)
        return scope.keys.encrypt(plain, self._context(scope, row))

    def load(self, scope: Scope, row: str | Sequence[str], stored: str | None) -> Secret[Any] | None:
        """The secret behind a stored text. It is decrypted when it is revealed, so a list decrypts nothing."""
        if stored is None:
            return None
        secret: Secret[Any] = Secret("")
        secret._reveal = lambda: self._read(Secret(self._decrypted(scope, row, stored)), self._context(scope, row))
        return secret

    def renew(self, scope: Scope, row: str | Sequence[str], stored: str | None) -> str | None:
        """The text to store from now on: encrypted with the first key.

        Raises:
            DecryptionFailed: it is encrypted, and cannot be decrypted.
        """
        if stored is None or scope.keys.is_current(stored):
            return stored
        return scope.keys.encrypt(Secret(self._decrypted(scope, row, stored)), self._context(scope, row))

    def _check(self, secret: object) -> None:
        wanted, name = (Mapping, "dictionary") if self.json else (str, "string")
        if not isinstance(secret, Secret):
            raise InvalidInput(f"{self.column} must be a Secret with a {name} in it, not {type(secret).__name__}")
        if secret == _MASKED:
            raise InvalidInput(f"{self.column} is {MASK}, which is shown in place of a secret: leave it out to keep it")
        if not isinstance(secret.reveal(), wanted):
            raise InvalidInput(f"{self.column} must be a Secret with a {name} in it, not another type")

    def _written(self, secret: Secret[Any], depth: int) -> str:
        """A secret as the text that is encrypted."""
        if not self.json:
            return str.__str__(secret.reveal())
        try:
            return text.dump(dict(secret.reveal()), depth=depth)
        except InvalidInput as error:
            refused = type(error)(f"{self.column}: {error}")
        raise refused  # not the first error: its traceback leads to frames that hold the secret

    def _decrypted(self, scope: Scope, row: str | Sequence[str], stored: str) -> str:
        if stored.startswith(PREFIX):
            return scope.keys.decrypt(stored, self._context(scope, row))
        return stored if self.json else text.unescape(stored)

    def _read(self, plain: Secret[str], context: Sequence[str]) -> Any:
        """What ``_written`` wrote."""
        value = _json_object(plain) if self.json else plain.reveal()
        if value is None:
            raise Corrupt(f"{place_of(context)} is not a JSON object")
        return value

    def _context(self, scope: Scope, row: str | Sequence[str]) -> list[str]:
        return [scope.stored_tenant, self.table, *([row] if isinstance(row, str) else row), self.column]


_MASKED = Secret(MASK)


def _json_object(plain: Secret[str]) -> dict[str, Any] | None:
    """The object in a text, or ``None``: the caller raises, so that no error leads to a frame that holds the text."""
    try:
        value = text.load(plain.reveal())
    except Corrupt:
        return None
    return value if isinstance(value, dict) else None


_DECLARED: dict[tuple[str, str], EncryptedColumn] = {}


def encrypted_columns() -> list[EncryptedColumn]:
    """Every column that was declared, by table and name."""
    return [_DECLARED[name] for name in sorted(_DECLARED)]
