"""Up to where the data of each server is complete: the dispatcher's floor, as the servers themselves have been told it.

A mark is set when all that it speaks of is confirmed, so a server that has it has that too; one that comes back with
an older mark has lost something [repositories 4]. In a cluster there are so many marks that each master has some.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from embermq.adapters.redis.answers import Answer, Refused
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.script import read_script
from embermq.adapters.redis.slots import spread_key

LOG = logging.getLogger("embermq.redis")
MARK_KEY = "embermq:floor"
MARK = read_script("mark", writes=False)
"""A server that has lost a mark is not sent it again, but the next one."""
INCOMPLETE = b"incomplete"
"""Instead of a position: the server was emptied, and has not got yet what memory has."""
MARK_S = 0.5
"""Marks are set at most this often."""
LOOK_S = 1.0
"""How often it is asked whether they are there, while nothing is set."""


def mark_keys(prefix: str, *, cluster: bool) -> tuple[str, ...]:
    """The keys of all marks; in a cluster `embermq:floor:{tag}`, evenly over the slots."""
    key = prefix + MARK_KEY
    return spread_key(key) if cluster else (key,)


class FloorMarks:
    """Sets the marks, at most every `every_s`, and calls `then` when all are confirmed.

    `floor` is the last one that every server has confirmed, 0 before the first; `trouble` says that a server has lost
    more than the link could send it again.
    """

    def __init__(self, link: RedisLink, then: Callable[[], None], every_s: float = MARK_S) -> None:
        self._link = link
        self._then = then
        self._every_s = every_s
        self._keys = mark_keys(link.prefix, cluster=link.is_cluster)
        self._open = 0
        self._wanted = 0
        self._refused = False
        self._is_old = False
        """A server has lost something since the mark was asked for, before or after it was set."""
        self._set_s = float("-inf")
        self._confirmed: deque[tuple[float, int]] = deque([(0.0, 0)])
        """When, and what: the last one that is older than `settle_s`, and those after it."""
        self.trouble = ""
        self.on_emptied: Callable[[str], None] | None = None
        """Told a mark that is gone, which is there from the first start on: the server that has it was emptied."""
        self._asked: set[str] = set()
        """Marks that are looked for, without an answer."""
        self._incomplete: set[str] = set()
        """Marks of servers that have been emptied, and have not got everything anew."""
        self._putting: set[str] = set()
        """Those of them that may not be there yet."""
        self._looked_s = float("-inf")
        link.on_lost = self._compare

    @property
    def floor(self) -> int:
        return self._confirmed[-1][1]

    @property
    def settled_floor(self) -> int:
        """One that no server has lost by a hair: it was confirmed `settle_s` before an answer that came since."""
        return self._confirmed[0][1]

    def put(self, floor: int) -> None:
        """Every record below `floor` is delivered, stored or owed to nobody. To be called again until that is settled:
        marks are few, and time passes for them with the answers to marks alone."""
        self._wanted = floor
        now_s = time.monotonic()
        link = self._link
        if (
            self._open
            or self._incomplete
            or link.is_resending
            or link.failing
            or self.trouble
            or now_s - self._set_s < self._every_s
        ):
            return
        self._set_s = now_s
        self._put(floor)

    def put_last(self) -> None:
        """The broker ends, in order: what was wanted last is put, however soon after the one before."""
        is_whole = not (self._incomplete or self._link.is_resending or self._link.failing or self.trouble)
        if is_whole and self._wanted > self.floor:
            self._put(self._wanted)

    def _put(self, floor: int) -> None:
        self._open = len(self._keys)
        self._refused = self._is_old = False
        for key in self._keys:
            self._link.ask(key, MARK, (key,), (floor, self.settled_floor), partial(self._answered, floor))

    def _answered(self, floor: int, answer: Answer) -> None:
        self._open -= 1
        if answer is None and not self._is_old:
            self._compare()  # it lacks an older mark, and nobody has restarted it: see what it knows
        self._refused = self._refused or answer is None or isinstance(answer, Refused)
        if self._open or self._refused or self._is_old or self.trouble:
            return
        now_s = time.monotonic()
        settled_s = now_s - self._link.settle_s
        self._confirmed.append((now_s, floor))
        while len(self._confirmed) > 1 and self._confirmed[1][0] <= settled_s:
            self._confirmed.popleft()
        # What is below the floor is not known any more when it comes again, so it must not be sent again.
        self._link.forget_settled(self._set_s - self._link.settle_s)
        self._then()

    def look(self) -> None:
        """Every now and then: a server that nobody asks anything may have been emptied, too."""
        if time.monotonic() - self._looked_s < LOOK_S or self.on_emptied is None:
            return
        self._looked_s = time.monotonic()
        for key in self._keys:
            if key not in self._asked:
                self._ask(key, self.settled_floor)

    def look_at(self, key: str, then: Callable[[], None]) -> None:
        """What is about `key` is not as it was stored: see whether its server was emptied, which is told before `then`
        is called."""
        marks = self._at_server_of(key) if self.on_emptied is not None else []
        if marks:
            self._ask(marks[0], self.settled_floor, then)
        else:
            then()

    def begin_anew(self, key: str) -> None:
        """The server of this mark was emptied. It is found out if that happens once more, and a start refuses it."""
        for mark in self._at_server_of(key):
            self._incomplete.add(mark)
            self._putting.add(mark)
            self._link.command(mark, ("SET", mark, INCOMPLETE), partial(self._begun_anew, mark))

    def _begun_anew(self, mark: str, _answer: Answer) -> None:
        self._putting.discard(mark)

    def end_anew(self) -> None:
        """Servers that were emptied have everything again: they know what nobody doubts."""
        for mark in self._incomplete:
            self._link.command(mark, ("SET", mark, self.settled_floor), partial(self._ended_anew, mark))

    def _ended_anew(self, mark: str, _answer: Answer) -> None:
        if mark not in self._putting:  # else it was emptied once more
            self._incomplete.discard(mark)

    def _at_server_of(self, key: str) -> list[str]:
        server = self._link.server_of(key)
        return [mark for mark in self._keys if self._link.server_of(mark) is server]

    def _compare(self) -> None:
        """A server was restarted or replaced: see whether it knows the mark that it cannot have lost by a hair."""
        self._is_old = True
        required = self.settled_floor
        for key in self._keys:
            self._ask(key, required)

    def _ask(self, key: str, required: int, then: Callable[[], None] | None = None) -> None:
        self._asked.add(key)
        self._link.command(key, ("GET", key), partial(self._compared, key, required, then))

    def _compared(self, key: str, required: int, then: Callable[[], None] | None, answer: Answer) -> None:
        self._asked.discard(key)
        known = int(answer) if isinstance(answer, bytes) and answer.isdigit() else 0
        if answer is None and self.on_emptied is not None:
            if key not in self._putting:
                self.on_emptied(key)
        elif key in self._incomplete or isinstance(answer, Refused):
            pass  # it says nothing
        elif known < required and not self.trouble:
            self.trouble = (
                f"has lost session data older than redis.settle_s: it knows of the log up to {known}, and had "
                f"confirmed it up to {required}; start the broker again, it repairs from the log"
            )
            LOG.error("the session store %s", self.trouble)
        if then is not None:
            then()


class ReadMarks:
    """What the masters say at start."""

    def __init__(self, redis: BlockingRedis) -> None:
        self._by_master: dict[int, int] = {}
        self.newest = 0
        """Some master knows of every record below it."""
        for key in mark_keys(redis.prefix, cluster=redis.is_cluster):
            value = redis.command(key, "GET", key)
            master = id(redis.at(key))
            floor = int(value) if isinstance(value, bytes) and value.isdigit() else 0
            self._by_master[master] = min(floor, self._by_master.get(master, floor))
            self.newest = max(floor, self.newest)

    @property
    def oldest(self) -> int:
        """The data of all masters is there for every record below it."""
        return min(self._by_master.values())

    def complete_to(self, master: Any) -> int:
        """The data of this master is there for every record below it. A master without a mark, as one may be that has
        just been given its slots, is believed what all others say."""
        return self._by_master.get(id(master), self.oldest)
