"""How much memory the process may have, what follows from it, and what happens when there is none left.

No memory is left: the process ends at once, with an exit code of its own. A broker that goes on after a MemoryError
has left something half done, and serves some and not others. What it has acknowledged is durable, so its end is no
worse than that by SIGKILL, and whoever supervises it starts it anew.
"""

import asyncio
import os
import sys
import threading
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from embermq.sessions.quotas import SESSION_BYTES
from embermq.sessions.settings import MqttSettings

SHARE = 4
"""Kept sessions, and subscriptions likewise, may take one part in so many of the memory."""
CGROUPS = Path("/sys/fs/cgroup")


def memory_bytes(cgroups: Path = CGROUPS, own_groups: Path = Path("/proc/self/cgroup")) -> int:
    """Memory of the machine, or what the process is allowed of it when that is less: a control group, `ulimit -v`."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_group_limits(cgroups, own_groups)]
    soft, _ = getrlimit(RLIMIT_AS)
    if soft != RLIM_INFINITY:
        found.append(soft)
    return min(found)


def _group_limits(cgroups: Path, own_groups: Path) -> list[int]:
    """Of the process's control group and all above it, in version 2 and 1. In a container the mount begins at its own
    group, whatever the path says, so the topmost is looked at in any case."""
    places = [cgroups / "memory.max", cgroups / "memory" / "memory.limit_in_bytes"]
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = (
            (cgroups, "memory.max") if not controllers else (cgroups / "memory", "memory.limit_in_bytes")
        )
        group = root / path.lstrip("/")
        places += [each / name for each in (group, *group.parents) if each.is_relative_to(root)]
    limits = []
    for place in places:
        try:
            limits.append(int(place.read_text()))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return limits


def with_memory_limits(mqtt: MqttSettings, memory: int) -> MqttSettings:
    """The settings with numbers where they leave limits to the memory."""
    sessions_max = mqtt.sessions_total_max or memory // SHARE // SESSION_BYTES
    return replace(
        mqtt,
        subscriptions_bytes_total_max=mqtt.subscriptions_bytes_total_max or memory // SHARE,
        sessions_total_max=sessions_max,
        sessions_user_max=mqtt.sessions_user_max or max(1, sessions_max // 2),
    )


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
