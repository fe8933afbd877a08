"""How much memory the process may have, and the limits that follow from it where the settings name none."""

import os
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

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
