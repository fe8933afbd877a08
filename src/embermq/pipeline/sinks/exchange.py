"""Two directories change places in one step, so that a name leads to the one or to the other and never to nothing."""

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_ABSENT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV)


class NoExchangeError(OSError):
    """This system, or the file system of the two, cannot do it."""


def exchange(one: Path, other: Path) -> None:
    """Both are there, on one file system. Raises NoExchangeError, OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        raise NoExchangeError(errno.ENOSYS, "the C library has no renameat2", str(one))
    if library.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        kind = NoExchangeError if number in _ABSENT else OSError
        raise kind(number, os.strerror(number), str(one), None, str(other))
