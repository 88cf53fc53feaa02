"""Hostile archives, by name. Each consists of members that would be written outside of the root if they were trusted."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import zstandard

LOOT = b"this must never be outside of the root"
Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, content: bytes = b"", **fields: Any) -> Member:
    """A member of an archive with the given defects."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def folder(name: str, **fields: Any) -> Member:
    return member(name, type=tarfile.DIRTYPE, mode=fields.pop("mode", 0o755), **fields)


def link(name: str, target: str, **fields: Any) -> Member:
    return member(name, type=tarfile.SYMTYPE, linkname=target, **fields)


def hard(name: str, target: str) -> Member:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def special(name: str, kind: bytes, **fields: Any) -> Member:
    return member(name, type=kind, **fields)


def raw(*members: Member) -> bytes:
    """Serialize members as tar does, without validation."""
    parts = []
    for info, content in members:
        parts.append(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        parts.append(content + bytes(-len(content) % 512))
    return b"".join(parts) + bytes(1024)


def packed(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def archive(*members: Member) -> bytes:
    return packed(raw(*members))


def _patched(name: str, at: int, value: bytes) -> bytes:
    """An archive of one file, whose header has something else at a place, and a checksum that is right."""
    info, content = member(name, LOOT)
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    block[at : at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    return packed(bytes(block[:512]) + content + bytes(-len(content) % 512) + bytes(1024))


def _pax(headers: dict[str, str], name: str = "inside", content: bytes = LOOT) -> bytes:
    return archive(member(name, content, pax_headers=headers))


def _extended(records: bytes, *, times: int = 1, rest: bytes = b"") -> bytes:
    """A file after pax extensions of these bytes, which ``tarfile`` would not write."""
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(records)
    extension = info.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512)
    return packed(extension * times + raw(member("a", LOOT))[:-1024] + rest)


def _record(keyword: str, value: str) -> bytes:
    body = f" {keyword}={value}\n".encode()
    length = len(body) + len(str(len(body)))
    return str(length + (len(str(length)) > len(str(len(body))))).encode() + body


def _chain(count: int) -> list[Member]:
    return [link(f"l{number}", f"l{number + 1}") for number in range(count)]


ESCAPES: dict[str, Sequence[Member]] = {
    "parent step": [member("../loot", LOOT)],
    "parent steps": [member("../../../../../../tmp/loot", LOOT)],
    "parent step in the middle": [folder("a"), member("a/../../loot", LOOT)],
    "parent step at the end": [folder("a/..")],
    "parent step that stays inside": [folder("a"), member("a/../loot", LOOT)],
    "only a parent step": [folder("..")],
    "a file called parent": [member("..", LOOT)],
    "parent step after here": [member("./../loot", LOOT)],
    "here in the middle": [folder("a"), member("a/./loot", LOOT)],
    "absolute": [member("/tmp/loot", LOOT)],
    "absolute with two slashes": [member("//tmp/loot", LOOT)],
    "absolute after here": [member(".//tmp/loot", LOOT)],
    "absolute directory": [folder("/tmp/loot")],
    "empty step": [folder("a"), member("a//loot", LOOT)],
    "no name": [member("", LOOT)],
    "a file called here": [member(".", LOOT)],
    "through a link": [link("a", "/tmp"), member("a/loot", LOOT)],
    "through a relative link": [link("a", ".."), member("a/loot", LOOT)],
    "through two links": [link("a", "b"), link("b", ".."), member("a/loot", LOOT)],
    "through a link that comes later": [member("a/loot", LOOT), link("a", "..")],
    "through a link in a directory": [folder("d"), link("d/a", "../.."), member("d/a/loot", LOOT)],
    "through a link to itself": [link("a", "a"), member("a/loot", LOOT)],
    "a link out of the root": [link("a", "/etc/passwd")],
    "a link up out of the root": [link("a", "../outside")],
    "a link that climbs out of a directory": [folder("d"), link("d/a", "../../outside")],
    "a link through a link": [folder("d/e"), link("up", "d/e"), link("out", "up/../../..")],
    "a link by way of a directory that is one": [link("here", "."), link("out", "here/here/../outside")],
    "a chain of links that ends outside": [*_chain(5), link("l5", "..")],
    "a chain of links without end": [*_chain(50), link("l50", "l0")],
    "a link to a link to the root of all": [link("a", "b"), link("b", "/")],
    "an empty link": [link("a", "")],
    "a hard link outside": [hard("a", "/etc/passwd")],
    "a hard link up": [hard("a", "../loot")],
    "a hard link to a link": [link("a", "x"), hard("b", "a")],
    "a hard link to a directory": [folder("a"), hard("b", "a")],
    "a hard link to what comes later": [hard("a", "b"), member("b", LOOT)],
    "a hard link to itself": [hard("a", "a")],
    "a device": [special("null", tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "a disk": [special("disk", tarfile.BLKTYPE, devmajor=8)],
    "a pipe": [special("pipe", tarfile.FIFOTYPE)],
    "a contiguous device": [special("x", b"S", size=0)],
    "set-uid": [member("sh", LOOT, mode=0o4755)],
    "set-gid": [member("sh", LOOT, mode=0o2755)],
    "both": [member("sh", LOOT, mode=0o6755)],
    "a set-gid directory": [folder("d", mode=0o2755)],
    "a set-uid link": [link("a", "b", mode=0o4777)],
    "the same twice": [member("a", LOOT), member("a", b"other")],
    "the same twice, once from here": [member("a", LOOT), member("./a", b"other")],
    "a directory twice": [folder("a"), folder("a/")],
    "a file that is a directory": [member("a", LOOT), member("a/b", LOOT)],
    "a directory that is a file later": [member("a/b", LOOT), member("a", LOOT)],
    "a file in a link in a directory": [folder("a"), link("a/b", "c"), member("a/b/c", LOOT)],
    "a name that is too long": [member("n" * 256, LOOT)],
    "a path that is too long": [member("/".join(["n" * 200] * 30), LOOT)],
    "a link that is too long": [link("a", "n" * 5_000)],
    "a file in 300 directories": [member("d/" * 300 + "loot", LOOT)],
    "a directory in 200 directories": [folder("/".join("d" * 201))],
}
"""Trees that must be refused, as members."""

BYTES: dict[str, Callable[[], bytes]] = {
    "a name with NUL, by extension": lambda: _pax({"path": "a\0b"}),
    "a parent step, by extension": lambda: _pax({"path": "../loot"}),
    "absolute, by extension": lambda: _pax({"path": "/tmp/loot"}),
    "a link outside, by extension": lambda: archive(link("a", "x", pax_headers={"linkpath": "/etc/passwd"})),
    "a size below zero": lambda: _patched("a", 124, b"\x80" + b"\xff" * 11),
    "an invalid size": lambda: _patched("a", 124, b"9" * 11 + b"\0"),
    "a size beyond all files": lambda: _patched("a", 124, b"\x80" + b"\x7f" * 11),
    "an invalid size in an extension": lambda: _pax({"size": "-1"}),
    "an unknown kind": lambda: _patched("a", 156, b"Z"),
    "a sparse file": lambda: _patched("a", 156, b"S"),
    "an extension without end": lambda: _patched("a", 156, b"x"),
    "an extension of gigabytes": lambda: packed(
        b"".join(
            (
                member("x", type=tarfile.XHDTYPE, size=8 * 1024**3)[0].tobuf(tarfile.GNU_FORMAT),
                bytes(4096),
            )
        )
    ),
    "a time with a giant exponent": lambda: _extended(_record("mtime", "1e500000"), rest=bytes(1024)),
    "a time of a million digits": lambda: _extended(_record("mtime", "9" * 1_000_000), rest=bytes(1024)),
    "a time that is no number": lambda: _pax({"mtime": "nan"}),
    "a time after the end of time": lambda: _pax({"mtime": "1e12"}),
    "a binary time after the end of time": lambda: _patched("a", 136, b"\x80" + b"\x7f" * 11),
    "a size of four thousand digits": lambda: _extended(_record("size", "9" * 4_000), rest=bytes(1024)),
    "a sparse map without end": lambda: _extended(
        _record("GNU.sparse.major", "1") + _record("GNU.sparse.minor", "0"), rest=b"9" * 512
    ),
    "a sparse map of many parts": lambda: _extended(_record("GNU.sparse.map", "0," * 100_000 + "0"), rest=bytes(1024)),
    "an extension of an extension of an extension": lambda: _extended(_record("comment", "x" * 700), times=2_000),
    "a record longer than its extension": lambda: _extended(b"999999 path=x\n", rest=bytes(1024)),
    "a record whose length is endless": lambda: _extended(b"9" * 100_000 + b" path=x\n", rest=bytes(1024)),
    "cut off in a file": lambda: packed(raw(member("a", LOOT * 1_000))[:2_000]),
    "cut off after a file": lambda: packed(raw(member("a", LOOT))[:-1024]),
    "cut off in its packing": lambda: archive(member("a", LOOT * 5_000))[:-9],
    "something after its end": lambda: packed(raw(member("a", LOOT)) + b"more" * 200),
    "nothing": lambda: b"",
    "no archive": lambda: b"PK\x03\x04 no ZIP archive",
    "packed, and no archive": lambda: packed(b"not tar" * 1_000),
    "a bomb of zeros": lambda: archive(member("bomb", bytes(60 * 1024 * 1024))),
    "a bomb after its end": lambda: packed(raw(member("a", LOOT)) + bytes(60 * 1024 * 1024)),
}
"""Archives that must be refused, as bytes."""


def hostile() -> Iterator[tuple[str, bytes]]:
    """Every archive that must be refused."""
    for name, members in ESCAPES.items():
        yield name, archive(*members)
    for name, made in BYTES.items():
        yield name, made()


def harmless() -> bytes:
    """An archive with entries of every kind, to be damaged."""
    members = [
        folder("d"),
        member("d/file", LOOT * 40),
        link("d/link", "file"),
        member("larger", bytes(range(256)) * 40, mode=0o755),
        hard("second", "larger"),
        member("äöü \udcff", b"names", pax_headers={"mtime": "1234567890.123456789"}),
        folder("empty", mode=0o700),
    ]
    return raw(*members)
