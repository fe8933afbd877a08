"""No memory is left: the process ends at once, with an exit code of its own.

A broker that goes on after a MemoryError has left something half done, and serves some and not others. What it has
acknowledged is durable, so its end is no worse than that by SIGKILL, and whoever supervises it starts it anew.
"""

import asyncio
import os
import sys
import threading
from types import TracebackType
from typing import Any

EXIT_OUT_OF_MEMORY = 4
_TOLD = b"embermq: no memory is left, the process ends; what it has acknowledged is kept\n"
_CHAIN_MAX = 16
"""Causes of an error that are looked at: a MemoryError may have led to another error."""


def end() -> None:
    """Say so and end. Nothing is closed, since that may need memory."""
    try:
        os.write(2, _TOLD)
    finally:
        os._exit(EXIT_OUT_OF_MEMORY)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error is a MemoryError or comes of one."""
    for _ in range(_CHAIN_MAX):
        if error is None or isinstance(error, MemoryError):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, MemoryError)


def end_when_out_of_memory(loop: asyncio.AbstractEventLoop) -> None:
    """From now on a MemoryError that nobody catches ends the process: in a callback of the loop, in a task, in any
    thread, in a destructor."""

    def in_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if is_out_of_memory(context.get("exception")):
            end()
        loop.default_exception_handler(context)

    def in_thread(found: threading.ExceptHookArgs) -> None:
        if is_out_of_memory(found.exc_value):
            end()
        threading.__excepthook__(found)

    def unraisable(found: "sys.UnraisableHookArgs") -> None:
        if is_out_of_memory(found.exc_value):
            end()
        sys.__unraisablehook__(found)

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_out_of_memory(error):
            end()
        sys.__excepthook__(kind, error, trace)

    loop.set_exception_handler(in_loop)
    threading.excepthook = in_thread
    sys.unraisablehook = unraisable
    sys.excepthook = uncaught
