"""The terminal that a process was started from: SIGHUP says that it is gone, or asks for files to be read again."""

from __future__ import annotations

import os
import signal


class Terminal:
    """The controlling terminal at the start of this process. Under `nohup`, which ignores SIGHUP, none counts."""

    def __init__(self) -> None:
        self._was_there = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _is_there()

    def is_gone(self) -> bool:
        """Whether there was one and there is none any more: the kernel takes it away before it sends SIGHUP."""
        return self._was_there and not _is_there()


def _is_there() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
