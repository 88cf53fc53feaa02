"""Reading tar: ustar, pax and GNU long names, member by member from a stream.

The input is considered hostile, so the length of every number is checked before it is converted, the size of every
extension is checked before it is read, and nothing recurses. Work and memory are proportional to the bytes read.
``tarfile`` guarantees none of that: an exponent in a time, a chain of extensions or a sparse map can stall it for
minutes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Literal

from msgspec import Struct

from ..errors import InvalidInput, LimitExceeded
from ..limits import MIB
from .entries import path_text

BLOCK = 512
"""Bytes of a header, and of the blocks that contents are padded to."""
EXTENSION_BYTES = MIB
"""Maximum bytes of all extensions (pax records, GNU long names) of one member."""
MAX_SIZE = 2**63 - 1
MAX_TIME_NS = 2**63 - 1
_NUMBER_CHARS = 40
"""Maximum characters of a number in a pax record. 64 bits need 20."""
_SECONDS = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?")
_SECOND_NS = 1_000_000_000
_KEPT = frozenset(("path", "linkpath", "size", "mtime"))
"""Keywords of pax records that are used. All others are skipped without conversion."""
_SPARSE = "GNU.sparse."
_ZERO_BLOCK = bytes(BLOCK)

MemberKind = Literal["file", "dir", "symlink", "hardlink", "other"]
_KINDS: dict[bytes, MemberKind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hardlink",
    b"2": "symlink",
    b"5": "dir",
}
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = (b"x", b"X"), b"g", b"L", b"K"


class Member(Struct):
    """A member as described by the archive. Only its numbers are checked, for their range."""

    name: str
    kind: MemberKind
    mode: int
    mtime_ns: int
    size: int
    target: str


class TarReader:
    """Reads the members of a tar stream.

    Args:
        read: returns the next bytes of the stream, at most the requested number; empty at the end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._global: dict[str, str] = {}
        self._unread = 0
        self._padding = 0

    def members(self) -> Iterator[Member]:
        """Yield every member, up to the first block of zeros. A file's content can be read until the next member is
        requested.

        Raises:
            InvalidInput: the stream is not tar, or is truncated.
            LimitExceeded: a member has too many extensions.
        """
        while (header := self._block()) != _ZERO_BLOCK:
            member = self._member(header)
            self._unread = member.size if member.kind == "file" else 0
            self._padding = -self._unread % BLOCK
            yield member
            self._skip()

    def content(self, maximum: int) -> bytes:
        """Return the next bytes of the last file, exactly ``maximum`` unless it ends before."""
        content = self._exactly(min(maximum, self._unread))
        self._unread -= len(content)
        return content

    def _member(self, header: bytes) -> Member:
        """Return the member that starts with this block; preceding extensions are read and applied."""
        records = dict(self._global)
        long: dict[str, str] = {}
        extension_bytes = 0
        while (kind := header[156:157]) in (*_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK):
            size = _checked_header(header)
            extension_bytes += size
            if extension_bytes > EXTENSION_BYTES:
                raise LimitExceeded(
                    f"the extensions of a member of the archive exceed {EXTENSION_BYTES:,} bytes",
                    maximum=EXTENSION_BYTES,
                )
            body = self._exactly(size)
            self._exactly(-size % BLOCK)
            if kind in _PAX:
                records |= _pax_records(body)
            elif kind == _PAX_GLOBAL:
                self._global |= _pax_records(body)
                records = self._global | records
            else:
                long["path" if kind == _LONG_NAME else "linkpath"] = _text(body)
            header = self._block()
        return _build_member(header, {**long, **records})

    def _skip(self) -> None:
        while self._unread:
            self.content(64 * 1024)
        self._exactly(self._padding)

    def _block(self) -> bytes:
        return self._exactly(BLOCK)

    def _exactly(self, size: int) -> bytes:
        first = self._read(size) if size else b""
        if len(first) == size:
            return first
        parts, missing = [first], size - len(first)
        while missing and (more := self._read(missing)):
            parts.append(more)
            missing -= len(more)
        if missing:
            raise InvalidInput("the archive is truncated")
        return b"".join(parts)


def _build_member(header: bytes, records: dict[str, str]) -> Member:
    """Return a member from its own block and the extensions before it, which take precedence."""
    size = _checked_header(header)
    name, prefix = _text(header[:100]), _text(header[345:500])
    if prefix and header[257:263] == b"ustar\0":
        name = f"{prefix}/{name}"
    name = records.get("path", name)
    kind = _KINDS.get(header[156:157], "other")
    if kind == "file" and name.endswith("/") and header[156:157] == b"\0":
        kind = "dir"  # old tar programs had no type for directories
    return Member(
        name,
        "other" if any(key.startswith(_SPARSE) for key in records) else kind,
        _number(header[100:108], "mode"),
        _mtime_ns(records["mtime"]) if "mtime" in records else _header_time_ns(header[136:148]),
        _size(records["size"]) if "size" in records else size,
        records.get("linkpath", _text(header[157:257])),
    )


def _checked_header(header: bytes) -> int:
    """Check the checksum of a header block; return the size it states."""
    stated = _number(header[148:156], "checksum")
    unsigned = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    high = sum(1 for byte in header[:148] + header[156:] if byte > 127)
    if stated not in (unsigned, unsigned - 256 * high):  # some old programs add up signed bytes
        raise InvalidInput("this is not a tar archive, or it is damaged: the checksum of a header is wrong")
    size = _number(header[124:136], "size")
    if not 0 <= size <= MAX_SIZE:
        raise InvalidInput(f"the archive has a member of {size:,} bytes, which is not a possible file size")
    return size


def _number(field: bytes, what: str) -> int:
    """Return a number from a header: octal digits or, as GNU tar writes large ones, binary."""
    if field[0] in (0x80, 0xFF):
        value = int.from_bytes(field[1:], "big")
        return value if field[0] == 0x80 else value - 256 ** (len(field) - 1)
    digits = field.split(b"\0", 1)[0].strip()
    try:
        return int(digits or b"0", 8)
    except ValueError:
        raise InvalidInput(f"the {what} of a member of the archive is {digits!r}, which is not octal") from None


def _header_time_ns(field: bytes) -> int:
    return _in_range(_number(field, "time") * _SECOND_NS, field)


def _mtime_ns(value: str) -> int:
    """Convert seconds in a pax record to nanoseconds. A long number or exponent is refused before it is computed."""
    if len(value) > _NUMBER_CHARS or not _SECONDS.fullmatch(value):
        raise InvalidInput(f"the time of a member of the archive is {value[:60]!r}, which is not a number of seconds")
    return _in_range(int(Decimal(value).scaleb(9).to_integral_value()), value)


def _in_range(time_ns: int, value: object) -> int:
    if abs(time_ns) > MAX_TIME_NS:
        raise InvalidInput(f"the time of a member of the archive is {value!r}, which is out of range")
    return time_ns


def _size(value: str) -> int:
    if len(value) > _NUMBER_CHARS or not (value.isascii() and value.isdigit()) or int(value) > MAX_SIZE:
        raise InvalidInput(f"the size of a member of the archive is {value[:60]!r}, which is not a number of bytes")
    return int(value)


def _pax_records(body: bytes) -> dict[str, str]:
    """Return the used records of a pax extension, each ``length keyword=value`` and a newline."""
    records: dict[str, str] = {}
    at = 0
    while at < len(body) and body[at]:
        space = body.find(b" ", at, at + 8)
        length = body[at:space] if space > 0 else b""
        end = at + int(length) if length.isdigit() else 0
        equals = body.find(b"=", space, end)
        if not space < equals < end <= len(body) or body[end - 1] != 0x0A:
            raise InvalidInput("a pax record of the archive is damaged")
        keyword = body[space + 1 : equals].decode("ascii", "replace")
        if keyword in _KEPT or keyword.startswith(_SPARSE):
            records[keyword[:100]] = path_text(body[equals + 1 : end - 1])
        at = end
    return records


def _text(field: bytes) -> str:
    return path_text(field.split(b"\0", 1)[0])
