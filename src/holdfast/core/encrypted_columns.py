"""Columns whose values are secrets.

A store declares each encrypted column once. The declaration also registers the column for key rotation and exports::

    CREDENTIALS = EncryptedColumn("channel_instances", "credentials", json=True).declare()

    stored = CREDENTIALS.encrypt(self._scope, row_id, Secret({"token": "..."}))  # text for the column; None stays None
    row.credentials = CREDENTIALS.load(self._scope, row_id, stored)  # a Secret, decrypted when it is revealed
    row.credentials.reveal()  # {"token": "..."}
    stored = CREDENTIALS.renew(self._scope, row_id, stored)  # in every update that keeps the secret

Tenant, table, row and column are the associated data of a value, so it decrypts only in the row and column it was stored in. A
value that was stored before a key was configured is returned unchanged. ``renew`` returns the text to store from now on: the
same text, or its encryption with the first key of the ring if it was plain or encrypted with an older key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ..errors import Corrupt, InvalidInput
from . import text
from .crypto import MASK, PREFIX, Secret, describe_location
from .scope import Scope


class EncryptedColumn(Struct, frozen=True):
    """A column whose values are encrypted: its name, and the columns that identify its rows within a tenant.

    ``row`` names columns of text or uuid. With ``json``, a secret is a dictionary; otherwise it is a string. With ``strings``,
    the values of the dictionary are strings. Without ``needs_key``, a secret is stored as plain text while no encryption key is
    configured.
    """

    table: str
    column: str
    row: tuple[str, ...] = ("id",)
    json: bool = False
    strings: bool = False
    needs_key: bool = True

    def declare(self) -> EncryptedColumn:
        """Register the column for key rotation and exports, and return it.

        Raises:
            ValueError: the column was declared before with other attributes.
        """
        if _DECLARED.setdefault((self.table, self.column), self) != self:
            raise ValueError(f"{self.table}.{self.column} is declared twice")
        return self

    def encrypt(self, scope: Scope, row: str | Sequence[str], secret: Secret[Any] | None) -> str | None:
        """Return the text to store.

        Raises:
            InvalidInput: the secret is of the wrong type, or the mask.
            LimitExceeded: it is longer than ``secret_bytes``.
            MissingKey: no encryption key is configured.
            MissingExtra: the package ``cryptography`` is not installed.
        """
        if secret is None:
            return None
        self._check(secret)
        plain = Secret(self._to_text(secret, scope.limits.json_depth))
        scope.limits.check("secret_bytes", len(plain.reveal().encode("utf-8", "surrogatepass")), self.column)
        if not scope.keys and not self.needs_key:
            return plain.reveal() if self.json else text.escape(plain.reveal())
        return scope.keys.encrypt(plain, self._context(scope, row))

    def load(self, scope: Scope, row: str | Sequence[str], stored: str | None) -> Secret[Any] | None:
        """Return the secret of a stored text. ``reveal`` decrypts it, so a list of rows decrypts nothing."""
        if stored is None:
            return None
        secret: Secret[Any] = Secret("")
        secret._reveal = lambda: self._from_text(Secret(self._decrypted(scope, row, stored)), self._context(scope, row))
        return secret

    def renew(self, scope: Scope, row: str | Sequence[str], stored: str | None) -> str | None:
        """Return the text to store from now on: the value encrypted with the first key.

        Raises:
            DecryptionFailed: the stored value is encrypted, and cannot be decrypted.
        """
        if stored is None or scope.keys.is_current(stored):
            return stored
        return scope.keys.encrypt(Secret(self._decrypted(scope, row, stored)), self._context(scope, row))

    def _check(self, secret: object) -> None:
        expected, name = (Mapping, "dictionary") if self.json else (str, "string")
        if not isinstance(secret, Secret):
            raise InvalidInput(
                f"{self.column} must be a Secret that holds a {name}, not {type(secret).__name__}", field=self.column
            )
        if secret == _MASKED:
            raise InvalidInput(
                f"{self.column} is {MASK}, the text shown in place of a secret: leave it out to keep the secret",
                field=self.column,
            )
        if not isinstance(secret.reveal(), expected):
            raise InvalidInput(f"{self.column} must be a Secret that holds a {name}", field=self.column)
        if self.strings and not all(isinstance(value, str) for value in secret.reveal().values()):
            raise InvalidInput(f"{self.column} must be a Secret that holds a dictionary of strings", field=self.column)

    def _to_text(self, secret: Secret[Any], depth: int) -> str:
        """Return a secret as the text to encrypt."""
        if not self.json:
            return str.__str__(secret.reveal())
        try:
            return text.dump(dict(secret.reveal()), depth=depth)
        except InvalidInput as error:
            own_error = type(error)(f"{self.column}: {error}", field=self.column)
        raise own_error  # not the original error: its traceback leads to frames that hold the secret

    def _decrypted(self, scope: Scope, row: str | Sequence[str], stored: str) -> str:
        if stored.startswith(PREFIX):
            return scope.keys.decrypt(stored, self._context(scope, row))
        return stored if self.json else text.unescape(stored)

    def _from_text(self, plain: Secret[str], context: Sequence[str]) -> Any:
        """Return the value that ``_to_text`` turned into text."""
        value = _json_object(plain) if self.json else plain.reveal()
        if value is None:
            raise Corrupt(f"{describe_location(context)} is not a JSON object")
        return value

    def _context(self, scope: Scope, row: str | Sequence[str]) -> list[str]:
        return [scope.stored_tenant, self.table, *([row] if isinstance(row, str) else row), self.column]


_MASKED = Secret(MASK)


def _json_object(plain: Secret[str]) -> dict[str, Any] | None:
    """Return the object in a text, or ``None``: the caller raises, so that no error leads to a frame that holds the text."""
    try:
        value = text.load(plain.reveal())
    except Corrupt:
        return None
    return value if isinstance(value, dict) else None


_DECLARED: dict[tuple[str, str], EncryptedColumn] = {}


def encrypted_columns() -> list[EncryptedColumn]:
    """Return all declared columns, sorted by table and name."""
    return [_DECLARED[name] for name in sorted(_DECLARED)]
