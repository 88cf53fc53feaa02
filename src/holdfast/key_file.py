"""The file of encryption keys: readable by its owner only, created once, never overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .core.crypto import KeyRing, new_key
from .errors import InvalidInput
from .new_file import NewFile

NAME = "encryption.key"
"""Name of the key file in a data directory."""
MAX_BYTES = 64 * 1024
"""Maximum size of a key file."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read(path: Path) -> KeyRing:
    """Read the keys of a file, one on each line, the current one first. A missing file is an empty ring.

    Raises:
        InvalidInput: other users can access the file, or a line is not a key.
    """
    if not os.path.lexists(path):
        return KeyRing()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidInput(f"key file {path} cannot be read: {error.strerror}", field="key_file") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidInput(f"key file {path} is not a regular file", field="key_file")
        if mode & _OTHERS:
            raise InvalidInput(
                f"key file {path} is accessible to other users (mode {stat.S_IMODE(mode):04o}): run chmod 600 {path}",
                field="key_file",
            )
        data = os.read(descriptor, MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES or not data.isascii():
        raise InvalidInput(
            f"key file {path} is invalid: each line must be a key of 64 hexadecimal digits", field="key_file"
        )
    return KeyRing(data.decode(), source=str(path))


def make(path: Path) -> bool:
    """Create a key file with a new key, unless the file exists. The new file is durable: it survives a power cut.

    Returns:
        Whether the file was created by this call.

    Raises:
        InvalidInput: the file cannot be written.
        NotFound: the directory does not exist.
    """
    if os.path.lexists(path):
        return False
    try:
        _write_new_key(path)
    except InvalidInput:
        if os.path.lexists(path):
            return False  # another process created it first
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def _write_new_key(path: Path) -> None:
    new = NewFile(path)
    try:
        new.file.write(f"{new_key()}\n".encode())
        new.finish()
    finally:
        new.discard()
