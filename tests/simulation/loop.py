"""Time, the network and the processes of a simulation: one event loop that waits for nothing and does all in one order.

What a process does runs in a context that names it. So it can be killed: nothing of it runs any more, and what it had
under way in the kernel arrives or does not, as the seed has it. And it can be paused: what it has to do waits. Where it
waits for an answer itself, as a start does, all others go on within its call.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from math import inf
from random import Random
from typing import Any, TypeVarTuple, cast
from unittest.mock import patch

START_S = 1_000.0
DAY_ONE_MS = 1_800_000_000_000
"""The wall clock when the simulation begins: in 2027."""
STEPS_MAX = 2_000_000
SYN_AGAIN_S = 0.2
DELAYS_S = 0.0001, 0.0003, 0.001, 0.004


Told = TypeVarTuple("Told")


class Killed(BaseException):
    """Thrown where a process is when it is killed: no `except Exception` gets it."""


class Stuck(Exception):
    """The run does not come to its end."""


class Call:
    """In place of asyncio's handles: what is to be run, in which context, and whose it is."""

    __slots__ = ("_when_s", "args", "callback", "context", "is_off", "process")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, when_s: float
    ) -> None:
        self.callback = callback
        self.args = args
        self._when_s = when_s
        self.is_off = False
        if context is None:
            self.context, self.process = copy_context(), _PROCESS.get()
        else:
            self.context, self.process = context, context.get(_PROCESS)

    def cancel(self) -> None:
        """It is passed over when its time comes."""
        self.is_off = True

    def cancelled(self) -> bool:
        return self.is_off

    def when(self) -> float:
        return self._when_s

    @property
    def is_over(self) -> bool:
        """It will not be run."""
        return self.is_off or (self.process is not None and self.process.is_dead)


class Process:
    """What can be killed and paused. `kill_at` is the number of the step from now on before which it dies; a step is
    whatever others can see of it: something sent, something asked for."""

    def __init__(self, name: str, machine: str = "") -> None:
        self.name = name
        self.machine = machine
        """On which it runs, as the network knows it."""
        self.is_dead = False
        self.is_paused = False
        self.is_blocked = False
        """It waits for an answer, in the middle of something."""
        self.goes_on: Callable[..., object] | None = None
        """What a thread of its own does meanwhile."""
        self.waiting: list[Call] = []
        self.steps = 0
        self.kill_at = 0
        self.at_kill: list[Callable[[], None]] = []
        """What its machine does then: connections end."""
        self.is_mute = False
        """Whether the machine has died with it: nobody is told that connections have ended."""

    def step(self) -> None:
        """Something is about to leave the process."""
        if self.is_dead:
            raise Killed
        self.steps += 1
        if self.kill_at and self.steps >= self.kill_at:
            self.kill()
            raise Killed

    def kill(self) -> None:
        """As by SIGKILL."""
        if not self.is_dead:
            self.is_dead = True
            self.waiting.clear()
            for call in self.at_kill:
                call()

    def pause(self) -> None:
        """As by SIGSTOP."""
        self.is_paused = True

    def wake(self, loop: SimulatedLoop) -> None:
        """As by SIGCONT."""
        self.is_paused = False
        if not self.is_blocked:
            loop.give_back(self)


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    """Whose code runs."""
    return _PROCESS.get()


def context_of(process: Process) -> Context:
    """In which what is run belongs to it."""
    context = copy_context()
    context.run(_PROCESS.set, process)
    return context


class SimulatedLoop(asyncio.BaseEventLoop):
    """Virtual time: when nothing is left to do it is the time of what is due next. `trace` is told what happens."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.now_s = START_S
        self.wall_offset_ms = DAY_ONE_MS - int(START_S * 1000)
        self.handled = 0
        self._soon: deque[Call] = deque()
        self._due: list[tuple[float, int, Call]] = []
        self._calls = 0
        self.slow = 1.0
        """How many times longer everything takes on its way."""
        self.hosts: dict[tuple[str, int], Host] = {}
        self._cuts: dict[tuple[str, str], list[Transport]] = {}
        """By the machines from which and to which nothing gets, with the ends that have sent something since."""
        self.bare = Context()
        """Of what is no process's: servers, the network."""
        self.unexpected: Callable[[BaseException], None] = _ignore
        """Told what was raised where nobody expects it."""
        self.set_exception_handler(lambda _, context: self._note(context))

    def _note(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, Killed):
            self.unexpected(error)

    def time(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        """Unix time, as the machines have it."""
        return int(self.now_s * 1000) + self.wall_offset_ms

    def call_soon(  # type: ignore[override]  # it is an own handle
        self, callback: Callable[[*Told], object], *args: *Told, context: Context | None = None
    ) -> Call:
        call = Call(callback, args, context, self.now_s)
        self._soon.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def give_back(self, process: Process) -> None:
        """It goes on with what has waited."""
        self._soon.extend(process.waiting)
        process.waiting = []

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _run_once(self) -> None:
        """All that there is to do, until somebody stops the loop."""
        while not self._stopping:  # type: ignore[attr-defined]
            self._go_on()

    def _go_on(self, until_s: float = inf) -> None:
        """What is to be done now; when that is nothing, what is due next, unless that is later than `until_s`."""
        soon, due = self._soon, self._due
        if not soon:
            while due and due[0][2].is_over:
                heapq.heappop(due)
            if not due:
                raise Stuck("nothing is left to happen")
            self.now_s = max(self.now_s, min(due[0][0], until_s))
        while due and due[0][0] <= self.now_s:
            soon.append(heapq.heappop(due)[2])
        for _ in range(len(soon)):
            if soon:  # else they were run within one of them
                self._run(soon.popleft())

    def block(self, process: Process, wait_s: float) -> None:
        """It waits for so long in the middle of a call, as who asks a server and waits for the answer."""
        until_s = self.now_s + wait_s
        process.is_blocked = True
        while (self.now_s < until_s or process.is_paused) and not process.is_dead:
            if self._stopping:  # type: ignore[attr-defined]
                raise Killed
            self._go_on(until_s if self.now_s < until_s else inf)
        process.is_blocked = False
        if process.is_dead:
            raise Killed
        self.give_back(process)

    def _run(self, call: Call) -> None:
        process = call.process
        if call.is_off or (process is not None and process.is_dead):
            return
        if process is not None and (
            process.is_paused or (process.is_blocked and process.goes_on != call.callback)
        ):
            process.waiting.append(call)
            return
        self.handled += 1
        if self.handled > STEPS_MAX:
            raise Stuck(f"{STEPS_MAX} callbacks, and no end")
        try:
            call.context.run(call.callback, *call.args)
        except Killed:
            pass
        except Exception as error:
            self.unexpected(error)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[[*Told], object], *args: *Told, context: Context | None = None
    ) -> Call:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[[*Told], object], *args: *Told, context: Context | None = None
    ) -> Call:
        """At one time in the order of the calls; Python compares tuples faster than calls."""
        call = Call(callback, args, context, when)
        self._calls += 1
        heapq.heappush(self._due, (when, self._calls, call))
        return call

    async def create_connection(  # type: ignore[override]  # all that else could be said of one means nothing here
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """To a host of the simulation."""
        process = current_process()
        assert process is not None, "clients connect by `connect`"
        process.step()
        await asyncio.sleep(self.delay_s())
        here = process.machine
        while self.is_cut(here, host) or self.is_cut(host, here) or self.hosts[host, port].is_mute:  # noqa: ASYNC110
            await asyncio.sleep(SYN_AGAIN_S)
        there = self.hosts[host, port]
        if there.is_away:
            raise ConnectionRefusedError(111, "Connection refused")
        mine, theirs = connect(self, process, there)
        protocol = factory()
        mine.begin(protocol)
        self.call_soon(theirs.be_accepted, there, context=theirs.context)
        return mine, protocol

    # Cuts

    def cut(self, here: str, there: str) -> None:
        """From now on nothing gets from one machine to the other; what is sent is sent again, until it arrives."""
        self._cuts.setdefault((here, there), [])

    def mend(self, here: str, there: str) -> None:
        """It arrives from now on."""
        for end in self._cuts.pop((here, there), ()):
            end.send_again()

    def is_cut(self, here: str, there: str) -> bool:
        """Whether nothing gets there."""
        return bool(self._cuts) and (here, there) in self._cuts

    def wait_for_mending(self, here: str, there: str, end: Transport) -> None:
        """`end` has something to send again then."""
        self._cuts[here, there].append(end)

    def delay_s(self) -> float:
        """How long something takes on its way: mostly short."""
        chance = self.random.random() * len(DELAYS_S)
        which = int(chance)
        return DELAYS_S[which] * (0.5 + chance - which) * self.slow


def _ignore(error: BaseException) -> None:
    """Nobody wants to know."""


class Host:
    """An address of a machine. `accept` makes the protocol of a connection, or None for one that is closed at once; who
    is `is_away` refuses."""

    def __init__(
        self,
        accept: Callable[[Transport], asyncio.Protocol | None],
        process: Process | None = None,
        machine: str = "",
    ) -> None:
        self.accept = accept
        self.process = process
        self.machine = machine
        self.is_closed = False

    @property
    def is_away(self) -> bool:
        """Whether nobody listens there."""
        return self.is_closed or (self.process is not None and self.process.is_dead)

    @property
    def is_mute(self) -> bool:
        """Whether there is no machine that could say so."""
        return self.process is not None and self.process.is_mute


class Transport(asyncio.Transport):
    """One end of a connection. What is written arrives in order, after a while, unless the connection is cut before."""

    def __init__(self, loop: SimulatedLoop, process: Process | None, machine: str) -> None:
        super().__init__()
        self._loop = loop
        self._process = process
        self._machine = machine
        self.context = context_of(process) if process is not None else Context()
        self.other: Transport
        self.protocol: asyncio.Protocol | None = None
        self._closing = False
        self._lost = False
        self._arrives_s = 0.0
        self._reading = True
        self._kept: deque[Callable[[], None]] = deque()
        """What has arrived and is not read."""
        self._stuck: deque[tuple[Callable[..., None], Any]] = deque()
        """What has been sent and gets nowhere."""
        if process is not None:
            process.at_kill.append(self._die)

    def begin(self, protocol: asyncio.Protocol) -> None:
        """The connection is there."""
        self.protocol = protocol
        self.context.run(protocol.connection_made, self)

    def be_accepted(self, host: Host) -> None:
        """By whoever listens there."""
        protocol = host.accept(self) if not host.is_away else None
        if protocol is None:
            self.close()
        elif not self._closing:
            self.protocol = protocol
            protocol.connection_made(self)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol | None:  # type: ignore[override]
        return self.protocol

    # Writing

    def write(self, data: Any) -> None:
        if self._process is not None:
            self._process.step()
        if not self._closing:
            self._send(self.other._arrive, bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        if self._process is not None:
            self._process.step()
        self._send(self.other._end)

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return sum(len(data) for _, args in self._stuck for data in args)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Buffers have room."""

    def _send(self, call: Callable[..., None], *args: object) -> None:
        loop, other = self._loop, self.other
        if self._stuck or loop.is_cut(self._machine, other._machine):
            if not self._stuck:
                loop.wait_for_mending(self._machine, other._machine, self)
            self._stuck.append((call, args))
            return
        self._arrives_s = max(self._arrives_s + 1e-6, loop.now_s + loop.delay_s())
        loop.call_at(self._arrives_s, call, *args, context=other.context)

    def send_again(self) -> None:
        """There is a way again."""
        stuck, self._stuck = self._stuck, deque()
        if self._process is not None and self._process.is_mute:
            return
        for call, args in stuck:
            self._send(call, *args)

    # Reading

    def _arrive(self, data: bytes) -> None:
        if self._lost or self._closing or self.protocol is None:
            return
        if not self._reading or self._kept:
            self._kept.append(partial(self._read, data))
            return
        self._read(data)

    def _read(self, data: bytes) -> None:
        assert self.protocol is not None
        self.protocol.data_received(data)

    def _end(self) -> None:
        if self._lost or self.protocol is None:
            return
        if not self._reading or self._kept:
            self._kept.append(self._read_end)
            return
        self._read_end()

    def _read_end(self) -> None:
        assert self.protocol is not None
        if not self.protocol.eof_received():
            self.close()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read_kept, context=self.context)

    def _read_kept(self) -> None:
        while self._kept and self._reading and not self._lost:
            self._kept.popleft()()

    # The end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send(self.other._hear_end)
            self._loop.call_soon(self._lose, None, context=self.context)

    def abort(self) -> None:
        self.close()

    def _hear_end(self) -> None:
        """The other end has closed, or reset."""
        if self._reading and not self._kept:
            self._read_close()
        else:
            self._kept.append(self._read_close)

    def _read_close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._lose, None, context=self.context)

    def cut(self) -> None:
        """The network ends the connection: what is on its way does not arrive."""
        for end in (self, self.other):
            if not end._closing:
                end._closing = True
                reset = ConnectionResetError(104, "Connection reset by peer")
                end._loop.call_soon(end._lose, reset, context=end.context)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost and self.protocol is not None:
            self._lost = True
            if self._process is not None and self._die in self._process.at_kill:
                self._process.at_kill.remove(self._die)
            self.protocol.connection_lost(error)

    def _die(self) -> None:
        """Its process was killed: the kernel closes, behind what was written before."""
        self._closing = self._lost = True
        assert self._process is not None
        if not self._process.is_mute:
            self._send(self.other._hear_end)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000) if name == "peername" else default


def connect(loop: SimulatedLoop, process: Process | None, there: Host) -> tuple[Transport, Transport]:
    """The two ends of a connection that is about to begin."""
    machine = process.machine if process is not None else ""
    mine, theirs = Transport(loop, process, machine), Transport(loop, there.process, there.machine)
    mine.other, theirs.other = theirs, mine
    return mine, theirs


@contextmanager
def simulated_time(loop: SimulatedLoop) -> Iterator[None]:
    """All clocks of Python are the simulation's, and the running loop is this one."""
    with (
        patch.object(time, "monotonic", loop.time),
        patch.object(time, "perf_counter", loop.time),
        patch.object(time, "monotonic_ns", lambda: int(loop.now_s * 1e9)),
        patch.object(time, "time_ns", lambda: loop.wall_ms() * 1_000_000),
        patch.object(time, "time", lambda: loop.wall_ms() / 1000),
    ):
        yield
