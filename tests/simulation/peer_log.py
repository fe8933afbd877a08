"""The message log of another slot, read as it grows."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.loop import current_process
from tests.simulation.message_log import RETRY_S, LogServer

from embermq.ports.peer_logs import PeerLog, PeerRecords, Take

PIECES = (1, 3, 500)
"""Records that are read at a time."""


class SimulatedPeerLog(PeerLog):
    """Of the process that makes it. `name` is by which the log's writer knows it."""

    def __init__(self, server: LogServer, name: str) -> None:
        process = current_process()
        assert process is not None, "a broker runs in a process"
        self._process = process
        self._server = server
        self._loop = server.loop
        self._name = name
        self._at = 0
        self._take: Take
        self._catching_up: list[tuple[int, Callable[[], None]]] = []

    def start(self, at: int, take: Take) -> None:
        self._at, self._take = at, take
        self._read_on()

    def _read_on(self) -> None:
        self._loop.call_later(self._loop.delay_s(), self._read)

    def _read(self) -> None:
        server = self._server
        self._process.step()
        if not server.reaches(self._process):
            self._loop.call_later(RETRY_S, self._read)
            return
        if self._at < server.start:
            raise AssertionError(
                f"{self._name} was to read from {self._at}, and {server.start} is the oldest record"
            )
        records = server.records_from(self._at, server.random.choice(PIECES))
        if not records:
            server.wait(self._read_on, self._process)
            return
        end = records[-1][0] + 1
        self._take(PeerRecords(records, end), lambda: self._taken(end))

    def _taken(self, end: int) -> None:
        self._at = end
        there = [then for wanted, then in self._catching_up if wanted <= end]
        self._catching_up = [one for one in self._catching_up if one[0] > end]
        for then in there:
            then()
        self._read_on()

    def catch_up(self, then: Callable[[], None]) -> None:
        self._loop.call_later(self._loop.delay_s(), self._ask, then)

    def _ask(self, then: Callable[[], None]) -> None:
        self._process.step()
        if not self._server.reaches(self._process):
            self._loop.call_later(RETRY_S, self._ask, then)
            return
        end = self._server.end
        if self._at >= end:
            then()
        else:
            self._catching_up.append((end, then))

    def told(self, position: int) -> None:
        self._process.step()
        if self._server.reaches(self._process):
            self._server.hear(self._name, position)

    @property
    def failing(self) -> str:
        return "" if self._server.reaches(self._process) else "away"

    def close(self) -> None:
        """The process ends."""
