"""Syncing a file on a thread of the C library, which knows nothing of Python's lock: aio_fsync(3) of POSIX.

A thread of Python's would wait for the interpreter before and after its call, each time, while the event loop has it.
The kernel's own asynchronous I/O would sync on the processor that asked, where it waits for the event loop to rest.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from errno import EINPROGRESS
from struct import Struct
from threading import main_thread
from typing import Protocol

_REQUEST = Struct("@iiiPNPii")
"""The beginning of struct aiocb: file, operation, priority, buffer, bytes; of struct sigevent: value, signal, kind."""
_REQUEST_BYTES = 512
"""More than struct aiocb has in any library."""
_SIGNAL_INFO_BYTES = 128
_MASK_BYTES = 128
_BY_SIGNAL = 0
SIGNAL = signal.SIGRTMIN + 7
"""Says that a sync is over."""


class Watch(Protocol):
    """What is asked of an event loop. What it returns says nothing: asyncio and uvloop differ there, and compiled code
    holds each call to the type that is written here."""

    def add_reader(self, descriptor: int, callback: Callable[[], None], /) -> object: ...

    def remove_reader(self, descriptor: int, /) -> object: ...


def hold_signal() -> None:
    """Have the signal wait until it is read, in the first thread, which calls this, and in those that it starts from
    now on. What another thread takes is handed to the first. Raises ValueError in any other."""
    signal.signal(SIGNAL, _hand_on)
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})


def _hand_on(number: int, _frame: object) -> None:
    signal.pthread_kill(main_thread().ident or 0, number)


class PosixSync:
    """One sync at a time. `loop` runs on the process's first thread, and calls `told` when it may be over. Raises
    OSError where there is no such thing."""

    def __init__(self, loop: Watch, told: Callable[[], None]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        try:
            self._fsync, self._error = library.aio_fsync, library.aio_error
            self._return, self._suspend = library.aio_return, library.aio_suspend
            signalfd = library.signalfd
            hold_signal()
        except (AttributeError, ValueError) as error:
            raise OSError(f"no aio_fsync here: {error}") from error
        mask = (1 << SIGNAL - 1).to_bytes(_MASK_BYTES, "little")
        self.descriptor = self._checked(signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))
        self._request = ctypes.create_string_buffer(_REQUEST_BYTES)
        self._is_busy = False
        self._loop = loop
        loop.add_reader(self.descriptor, told)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))

    def begin(self, file: int) -> None:
        """Have the file's data synced, as fdatasync(2) does it. Raises OSError when it could not begin."""
        self._request.raw = _REQUEST.pack(file, 0, 0, 0, 0, 0, SIGNAL, _BY_SIGNAL).ljust(
            _REQUEST_BYTES, b"\0"
        )
        self._checked(self._fsync(os.O_DSYNC, self._request))
        self._is_busy = True

    def is_over(self) -> bool:
        """Whether what has begun is over. Raises OSError when it failed."""
        with suppress(BlockingIOError):
            os.read(self.descriptor, _SIGNAL_INFO_BYTES)
        number = self._error(self._request)
        if number == EINPROGRESS:
            return False
        self._return(self._request)
        self._is_busy = False
        if number:
            raise OSError(number, os.strerror(number))
        return True

    def wait(self) -> None:
        """Return when it is over. Raises OSError when it failed."""
        while not self.is_over():
            self._suspend(self._requests, 1, None)  # a signal ends it as well

    def close(self) -> None:
        """Release it when what is under way is over."""
        self._loop.remove_reader(self.descriptor)
        if self._is_busy:
            with suppress(OSError):
                self.wait()
        os.close(self.descriptor)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
