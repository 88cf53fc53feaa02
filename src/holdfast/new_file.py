"""Safe creation of output files: they appear only when complete, with mode 0600, and never follow a planted symlink."""

from __future__ import annotations

import errno
import os
import tempfile
from typing import BinaryIO

from .errors import InvalidInput, NotFound


class NewFile:
    """A file that is written under a temporary name in the same directory, and moved to its path by ``finish``.

    The temporary name is unguessable and must not exist yet, so a symlink that another user placed in a shared directory is
    never followed. The file has mode 0600.

    Raises:
        InvalidInput: the file exists and ``replace`` is false, or it cannot be created.
        NotFound: the directory does not exist.
    """

    def __init__(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        self._path, self._replace = os.fspath(path), replace
        refuse_existing(path, replace=replace)
        folder, name = os.path.split(os.path.abspath(self._path))
        try:
            handle, self._part = tempfile.mkstemp(prefix=f"{name[:100]}.", suffix=".part", dir=folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"the directory of {self._path!r} does not exist", noun="directory", key=folder) from error
        except OSError as error:
            raise self._failed(error) from error
        self.file: BinaryIO = os.fdopen(handle, "wb")

    def finish(self) -> None:
        """Sync the file to disk and move it to its path.

        Raises:
            InvalidInput: another file was created at the path in the meantime.
        """
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            if self._replace or not self._link():
                if not self._replace:
                    os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # a rename would replace
                os.replace(self._part, self._path)
        except FileExistsError as error:
            raise _exists(self._path) from error
        except OSError as error:
            raise self._failed(error) from error

    def _link(self) -> bool:
        """Hard-link the file to its path, which, unlike a rename, replaces nothing. ``False`` if the file system has no links."""
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
        """Close the file and remove its temporary name. A finished file stays at its path."""
        self.file.close()
        try:
            os.unlink(self._part)
        except OSError:
            return  # already finished, or removed together with its directory

    def _failed(self, error: OSError) -> InvalidInput:
        return InvalidInput(f"{self._path!r} cannot be written: {error.strerror or error}", field="path")


def refuse_existing(path: str | os.PathLike[str], *, replace: bool) -> None:
    """Raise if a path exists and must not be replaced.

    Raises:
        InvalidInput: the path exists, even if it is a dangling symlink.
    """
    if not replace and os.path.lexists(path):
        raise _exists(os.fspath(path))


def _exists(path: str) -> InvalidInput:
    return InvalidInput(f"{path} already exists: choose another name, or allow it to be replaced", field="path")
