"""Files that are handed out: there when they are whole, for their owner alone, and never through somebody else's link."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import BinaryIO

from .errors import InvalidInput, NotFound


class NewFile:
    """A file that is written beside its place under a name of its own, and put there by ``finish``.

    The name cannot be guessed and is never opened if something is there, so that a link which somebody put into a shared
    directory leads nowhere. The file has mode 0600.

    Raises:
        InvalidInput: the file is there already and not to be replaced, or cannot be made.
        NotFound: there is no directory for it.
    """

    def __init__(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        self._path, self._replace = os.fspath(path), replace
        refuse_existing(path, replace=replace)
        folder, name = os.path.split(os.path.abspath(self._path))
        try:
            handle, self._part = tempfile.mkstemp(prefix=f"{name[:100]}.", suffix=".part", dir=folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"there is no directory for the file {self._path!r}") from error
        except OSError as error:
            raise self._failed(error) from error
        self.file: BinaryIO = os.fdopen(handle, "wb")

    def finish(self) -> None:
        """Put it where it belongs, once it is on the disk.

        Raises:
            InvalidInput: something else is there by now.
        """
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            if self._replace or not self._linked():
                if not self._replace:
                    os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # a rename would replace
                os.replace(self._part, self._path)
        except FileExistsError as error:
            raise _there(self._path) from error
        except OSError as error:
            raise self._failed(error) from error

    def _linked(self) -> bool:
        """Give it its name as a second one, which, unlike a rename, replaces nothing; ``False`` where there are no such links."""
        try:
            os.link(self._part, self._path)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                return False
            raise
        return True

    def discard(self) -> None:
        """Close it and remove its first name; where it belongs it stays."""
        self.file.close()
        try:
            os.unlink(self._part)
        except OSError:
            return  # finished, or gone with its directory

    def _failed(self, error: OSError) -> InvalidInput:
        return InvalidInput(f"{self._path!r} cannot be written: {error.strerror or error}")


def refuse_existing(path: str | os.PathLike[str], *, replace: bool) -> None:
    """Refuse a file that is there already, unless it is to be replaced.

    Raises:
        InvalidInput: it is there, be it a link that leads nowhere.
    """
    if not replace and os.path.lexists(path):
        raise _there(os.fspath(path))


def _there(path: str) -> InvalidInput:
    return InvalidInput(f"{path} is there already; choose another name, or say that it is to be replaced")
