"""The first words on a connection: who we are, whether this is the Redis that is meant, and which scripts it needs.

Which broker may write into a Redis: the one with the highest epoch.

Who takes over raises the epoch at every master, and then ends the connections of all who came with a lower one. A
broker says its epoch on each connection before anything else. So what one before has asked for takes effect before its
successor reads anything, or never, whatever the clocks say. A server that has lost the epoch, emptied or promoted too
early, is told it again by the first connection of a broker that has it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from embermq.adapters.redis.address import RedisAddress
from embermq.adapters.redis.answers import ErrorReply
from embermq.adapters.redis.script import Script, read_script
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


LOG = logging.getLogger("embermq.redis")
MAJOR_MIN = 7
Ask = Callable[[Sequence[Word]], Awaitable[object]]


class NodeUnusable(Exception):
    """It answers, but cannot be used now; the text says why, without credentials."""


class EpochPassed(NodeUnusable):
    """It knows a broker with a higher epoch."""


class Greeting(Struct, frozen=True):
    """By what a server knows a connection: its process, the history of its data and a number there; empty when it does
    not tell."""

    run_id: bytes = b""
    client_id: int = 0
    history: bytes = b""
    is_first: bool = True

    def is_another(self, before: Greeting) -> bool:
        """Whether the server may have other data than when it greeted before."""
        if before.is_first:
            return False
        return not self.run_id or (self.run_id, self.history) != (before.run_id, before.history)


async def log_in(
    ask: Ask,
    place: str,
    address: RedisAddress,
    scripts: Sequence[Script],
    before: Greeting,
    *,
    epoch: int = 0,
) -> Greeting:
    """Log in, look, load the scripts. `before` is what the last connection to this node was known by: if the server is
    the same, what it may still hold of that connection is discarded, so that nothing old takes effect after what is
    new. `place` is the server's name in the log, `epoch` that of the broker. Raises NodeUnusable."""
    first = [("AUTH", *filter(None, (address.username, address.password)))] if address.password else []
    if address.database:
        first.append(("SELECT", str(address.database)))
    asked: list[Sequence[Word]] = [
        *first,
        ("PING",),
        ("INFO", "server", "replication", "cluster", "memory", "persistence"),
        ("CLIENT", "ID"),
        # Before the epoch is asked: who raises it later finds the connection by its name.
        ("CLIENT", "SETNAME", connection_name(address, epoch)),
        *(("SCRIPT", "LOAD", script.source) for script in scripts),
    ]
    told = [("EVAL", EPOCH.source, 1, key, epoch) for key in epoch_keys(address)]
    answers = await asyncio.gather(*map(ask, [*asked, *told]))
    for words, answer in zip(asked, answers[: len(asked)], strict=True):
        if isinstance(answer, ErrorReply) and words[0] in ("AUTH", "SELECT", "PING", "SCRIPT"):
            raise NodeUnusable(_explain(str(words[0]), str(answer)))
    about = _fields(answers[len(first) + 1])
    check_server(about, cluster=address.cluster)
    # Other nodes of a cluster have the other keys.
    if (highest := max(held for held in (*answers[len(asked) :], 0) if isinstance(held, int))) > epoch:
        raise EpochPassed(f"knows a broker with epoch {highest}, and this one has {epoch}")
    if epoch:
        await _end_older(ask, address, epoch)
    run_id, client_id = about.get(b"run_id", b""), answers[len(first) + 2]
    if before.run_id != run_id:
        _advise(place, about)
    if before.client_id and before.run_id == run_id:
        killed = await ask(("CLIENT", "KILL", "ID", str(before.client_id), "SKIPME", "yes"))
        if isinstance(killed, ErrorReply):
            LOG.warning("%s: a connection that was given up cannot be ended at the server: %s", place, killed)
    history = about.get(b"master_replid", b"")
    if not isinstance(client_id, int):
        return Greeting(is_first=False)
    return Greeting(run_id, client_id, history, is_first=False)


async def _end_older(ask: Ask, address: RedisAddress, epoch: int) -> None:
    listed = await ask(("CLIENT", "LIST"))
    for words in end_older(listed if isinstance(listed, bytes) else b"", address, epoch):
        await ask(words)


def _explain(command: str, text: str) -> str:
    match text.partition(" ")[0]:
        case "LOST":
            return "ends the connection at once (does it want TLS? then write rediss)"
        case "WRONGPASS":
            return "refuses the user or the password"
        case "NOAUTH":
            return "wants a password"
        case "LOADING":
            return "is still reading its data"
        case "NOPERM":
            return f"does not let this user do {command}"
    if command == "AUTH":
        return "refuses the password (does it have one?)"
    return f"{command}: {text}"


def _fields(answer: object) -> dict[bytes, bytes]:
    """INFO's lines; none when it is not allowed."""
    if not isinstance(answer, bytes):
        return {}
    pairs = (line.partition(b":") for line in answer.splitlines())
    return {name: value for name, _, value in pairs}


def check_server(about: Mapping[bytes, bytes], *, cluster: bool) -> None:
    """Raise NodeUnusable when INFO says that this cannot be the Redis that is meant."""
    version = about.get(b"redis_version", b"").decode(errors="replace")
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < MAJOR_MIN:
        raise NodeUnusable(f"is Redis {version}; {MAJOR_MIN}.0 or later is needed")
    if about.get(b"cluster_enabled") == b"1" and not cluster:
        raise NodeUnusable("is a node of a Redis Cluster; write redis+cluster:// in stores.session")
    if about.get(b"cluster_enabled") == b"0" and cluster:
        raise NodeUnusable("is no node of a Redis Cluster; write redis:// in stores.session")
    if about.get(b"role") == b"slave" and not cluster:
        raise NodeUnusable("is a replica, which stores nothing by itself")


def _advise(place: str, about: dict[bytes, bytes]) -> None:
    """Tell of settings of the server with which acknowledged messages can be lost."""
    policy = about.get(b"maxmemory_policy", b"noeviction").decode(errors="replace")
    if policy != "noeviction":
        LOG.warning(
            "%s: maxmemory-policy is %s: a full server would throw stored messages away", place, policy
        )
    if about.get(b"aof_enabled") == b"0":
        LOG.warning("%s: appendonly is off: what is stored there is lost when it ends", place)
