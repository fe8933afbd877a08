"""Which broker may write into a Redis: the one with the highest epoch.

Who takes over raises the epoch at every master, and then ends the connections of all who came with a lower one. A
broker says its epoch on each connection before anything else. So what one before has asked for takes effect before its
successor reads anything, or never, whatever the clocks say. A server that has lost the epoch, emptied or promoted too
early, is told it again by the first connection of a broker that has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from embermq.adapters.redis.address import RedisAddress
from embermq.adapters.redis.script import read_script
from embermq.adapters.redis.slots import spread_key
from embermq.adapters.redis.wire import Word

EPOCH = read_script("epoch", writes=False)
EPOCH_KEY = "embermq:epoch"
NAME = "embermq"
"""How connections of a running broker are called, with `-slot-` and its slot but for the first one, and then with `-`
and its epoch when it has one."""
_LISTED = re.compile(
    rb"^id=(\d+) .*? name=" + NAME.encode() + rb"(?:-slot-(\d+))?(?:-(\d+))? .*?\bdb=(\d+) ", re.MULTILINE
)


def epoch_keys(address: RedisAddress) -> tuple[str, ...]:
    """In a Redis Cluster so many that each master has some."""
    key = address.prefix + EPOCH_KEY
    return spread_key(key) if address.cluster else (key,)


def connection_name(address: RedisAddress, epoch: int) -> str:
    """What CLIENT SETNAME is told."""
    slot, number = f"-slot-{address.slot}" if address.slot else "", f"-{epoch}" if epoch else ""
    return f"{NAME}{slot}{number}"


def end_older(listed: bytes, address: RedisAddress, epoch: int) -> list[Sequence[Word]]:
    """Commands that end the connections of brokers of the same slot with a lower epoch, from what CLIENT LIST says."""
    return [
        ("CLIENT", "KILL", "ID", number.decode())
        for number, slot, theirs, used in _LISTED.findall(listed)
        if (int(slot or 0), int(used)) == (address.slot, address.database) and int(theirs or 0) < epoch
    ]
