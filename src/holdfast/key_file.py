"""A file with encryption keys: for its owner alone, made once, never overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .core.crypto import KeyRing, new_key
from .errors import InvalidInput
from .new_file import NewFile

NAME = "encryption.key"
"""The key file in a data folder."""
MAX_BYTES = 64 * 1024
"""Bytes of a key file; nothing longer is one."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read(path: Path) -> KeyRing:
    """The keys in a file, one in a line, the current one first; an empty ring if there is no file.

    Raises:
        InvalidInput: others than its owner may use the file, or something in it is not a key.
    """
    if not os.path.lexists(path):
        return KeyRing()
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidInput(f"the key file {path} cannot be read: {error.strerror}") from error
    try:
        mode = os.fstat(opened).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidInput(f"the key file {path} is not a file")
        if mode & _OTHERS:
            raise InvalidInput(
                f"the key file {path} is open to others than its owner (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}"
            )
        written = os.read(opened, MAX_BYTES + 1)
    finally:
        os.close(opened)
    if len(written) > MAX_BYTES or not written.isascii():
        raise InvalidInput(f"the key file {path} is not one: it holds a key of 64 hexadecimal digits in each line")
    return KeyRing(written.decode(), source=str(path))


def make(path: Path) -> bool:
    """Write a new key to a file, unless it is there already. When this returns, the file survives a power cut.

    Returns:
        Whether it was made now.

    Raises:
        InvalidInput: it cannot be written.
        NotFound: there is no directory for it.
    """
    if os.path.lexists(path):
        return False
    new = NewFile(path)
    try:
        new.file.write(f"{new_key()}\n".encode())
        new.finish()
    except InvalidInput:
        if os.path.lexists(path):
            return False  # another process was quicker
        raise
    finally:
        new.discard()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True
