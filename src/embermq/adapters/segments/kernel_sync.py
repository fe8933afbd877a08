"""Syncing a file without a thread: the kernel does it beside everything else, and says when it has.

It is Linux's own asynchronous I/O (io_submit(2), IOCB_CMD_FDSYNC), by libc's `syscall`. A thread would do as well, but
waits for the interpreter before and after its call, each time, while the event loop has it.
"""

import ctypes
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Protocol

_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Numbers of io_setup, io_destroy, io_getevents and io_submit."""
_REQUEST = Struct("=QIIHhIQQqQII")
"""struct iocb: data, key, flags of a write, opcode, priority, file, buffer, bytes, offset, reserved, flags, descriptor
to be told."""
_EVENT = Struct("=QQqq")
"""struct io_event: data, request, result, second result."""
_FDSYNC = 3
_TELL = 1
_ONE = ctypes.c_long(1)


class Watch(Protocol):
    """What is asked of an event loop. What it returns says nothing: asyncio and uvloop differ there, and compiled code
    holds each call to the type that is written here."""

    def add_reader(self, descriptor: int, callback: Callable[[], None], /) -> object: ...

    def remove_reader(self, descriptor: int, /) -> object: ...


class KernelSync:
    """One sync at a time. `descriptor` can be read from when it is over. Raises OSError where the kernel has no such
    thing, or gives us none."""

    def __init__(self) -> None:
        has_64_bits = ctypes.sizeof(ctypes.c_void_p) == 8  # calls of a program of 32 are others
        numbers = _CALLS.get(platform.machine() if has_64_bits else "", (-1, -1, -1, -1))
        setup, self._destroy, self._get, self._submit = map(ctypes.c_long, numbers)
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._context = ctypes.c_ulong(0)
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._checked(self._call(setup, _ONE, ctypes.byref(self._context)))
        except OSError:
            os.close(self.descriptor)
            raise
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._event = ctypes.create_string_buffer(_EVENT.size)

    def begin(self, file: int) -> None:
        """Have the file's data synced, as fdatasync(2) does it. Raises OSError when it could not begin."""
        self._request.raw = _REQUEST.pack(0, 0, 0, _FDSYNC, 0, file, 0, 0, 0, 0, _TELL, self.descriptor)
        self._checked(self._call(self._submit, self._context, _ONE, self._requests))

    def wait(self) -> None:
        """Return when it is over. Raises OSError when it failed."""
        ended = 0
        while ended != 1:
            with suppress(InterruptedError):  # by a signal, of which this call is not begun again by itself
                ended = self._checked(self._call(self._get, self._context, _ONE, _ONE, self._event, None))
        os.eventfd_read(self.descriptor)
        result = _EVENT.unpack(self._event.raw)[2]
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def close(self) -> None:
        """Release it; nothing is under way."""
        self._call(self._destroy, self._context)
        os.close(self.descriptor)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
