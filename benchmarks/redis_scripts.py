"""What each script costs Redis, in microseconds of its CPU a message: `python -m benchmarks.redis_scripts`.

Starts a redis-server of its own on a free port, has the broker's session writer make the operations, and sends them in
pipelines of 250, as the broker does. CPU is the server's own (INFO cpu), network and parsing included.
"""

from __future__ import annotations

import argparse
import platform
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from embermq.adapters.redis import device_queue, state_writer
from embermq.adapters.redis.address import RedisSettings, parse_address
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.device_queue import RedisDeviceQueue
from embermq.adapters.redis.link import RedisLink
from embermq.adapters.redis.owners import Owners
from embermq.adapters.redis.script import Script
from embermq.adapters.redis.sessions import RedisSessionStore
from embermq.adapters.redis.state_writer import RedisStateWriter
from embermq.adapters.redis.wire import Then, Word
from embermq.formats.log_record import encode_record
from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.session import SessionRow, SubscriptionRow
from embermq.model.session_writes import QUEUE_SEQ_STEP, QueueMark, QueueRow, QueueState, SessionWrites
from embermq.model.tick_writes import TickWrites

PIPELINE = 250
SCRIPTS = state_writer.SCRIPTS + device_queue.SCRIPTS
FAR_MS = 2**42
START_S = 10.0


class RecordingLink(RedisLink):
    """Keeps what it is asked for, as commands."""

    def __init__(self) -> None:
        self.commands: list[tuple[Word, ...]] = []

    @property
    def is_cluster(self) -> bool:
        return False

    def ask(self, key: str, script: Script, keys: Sequence[Word], args: Sequence[Word], then: Then) -> None:
        self.commands.append(("EVALSHA", script.sha, len(keys), *keys, *args))

    def command(self, key: str, words: Sequence[Word], then: Then) -> None:
        self.commands.append(tuple(words))


class Load:
    """`clients` sessions that get `batch` messages a call, `rounds` times."""

    def __init__(self, *, clients: int, batch: int, rounds: int, payload_bytes: int) -> None:
        self.clients, self.batch, self.rounds = clients, batch, rounds
        self._record = encode_record(
            Message("fleet/pump-7/state", bytes(payload_bytes), 1, False, "publisher-1", 5, 1_700_000_000_000)
        )
        self.link = RecordingLink()
        owners = Owners()
        self.writer = RedisStateWriter(self.link, owners, lambda call: None)
        self.queue = RedisDeviceQueue(self.link, owners)

    @property
    def messages(self) -> int:
        return self.clients * self.batch * self.rounds

    def sessions(self) -> None:
        rows = [
            SessionRow(f"pump-{number}", number, 1, ClientType.DEVICE, "", 5, 3600, True, 0, 0)
            for number in range(1, self.clients + 1)
        ]
        self._write(SessionWrites(sessions=rows))

    def subscriptions(self, each: int) -> None:
        """So many of each client."""
        rows = [SubscriptionRow(f"fleet/+/{number}", 1, 0, 0) for number in range(each)]
        generations = range(1, self.clients + 1)
        self._write(
            SessionWrites(
                subscriptions=[
                    (generation, row.topic_filter, row) for generation in generations for row in rows
                ]
            )
        )

    def save(self, *, sent: bool) -> None:
        """Stored, either as sent at once or as waiting for the client."""
        for turn in range(self.rounds):
            rows = [
                QueueRow(
                    generation,
                    (turn * self.batch + index + 1) * QUEUE_SEQ_STEP,
                    (turn * self.clients + generation) * self.batch + index,
                    turn * self.batch + index + 1 if sent else 0,
                    QueueState.SENT if sent else QueueState.QUEUED,
                    1,
                    FAR_MS,
                    (),
                    self._record,
                )
                for generation in range(1, self.clients + 1)
                for index in range(self.batch)
            ]
            self._write(SessionWrites(queue_rows=rows))

    def mark(self, state: int) -> None:
        """All messages become `state`, in batches as they came."""
        for turn in range(self.rounds):
            marks = [
                QueueMark(generation, number * QUEUE_SEQ_STEP, -1, state, number, 1)
                for generation in range(1, self.clients + 1)
                for number in range(turn * self.batch + 1, (turn + 1) * self.batch + 1)
            ]
            self._write(SessionWrites(queue_marks=marks))

    def pages(self) -> None:
        """All messages are read."""
        for turn in range(self.rounds):
            for generation in range(1, self.clients + 1):
                after = turn * self.batch * QUEUE_SEQ_STEP
                self.queue.page(generation, after, self.batch, lambda rows: None, bytes_max=256 * 1024)

    def _write(self, writes: SessionWrites) -> None:
        self.writer.submit(TickWrites(session=writes), 0, 0, lambda: None)


class Server:
    """A redis-server for one run."""

    def __init__(self, port: int, *, append_only: bool, folder: str) -> None:
        self._process = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
            + (["--appendonly", "yes", "--appendfsync", "everysec"] if append_only else []),
            stdout=subprocess.DEVNULL,
        )
        self.url = f"redis://127.0.0.1:{port}"
        self._redis: Any = redis.Redis("127.0.0.1", port, protocol=2)
        end_s = time.monotonic() + START_S
        while True:
            try:
                self._redis.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.02)

    @property
    def version(self) -> str:
        return str(self._redis.info("server")["redis_version"])

    def load(self, scripts: Sequence[Script]) -> None:
        for script in scripts:
            self._redis.script_load(script.source)

    def cpu_s(self) -> float:
        info = self._redis.info("cpu")
        return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])

    def run(self, commands: Sequence[tuple[Word, ...]]) -> float:
        """CPU seconds for these commands."""
        began = self.cpu_s()
        for first in range(0, len(commands), PIPELINE):
            pipeline = self._redis.pipeline(transaction=False)
            for words in commands[first : first + PIPELINE]:
                pipeline.execute_command(*words)
            pipeline.execute()
        return self.cpu_s() - began

    def close(self) -> None:
        self._redis.close()
        self._process.terminate()
        self._process.wait(START_S)


@contextmanager
def serve(*, append_only: bool) -> Iterator[Server]:
    """A server that is gone with its data afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(port, append_only=append_only, folder=folder)
        try:
            yield server
        finally:
            server.close()


def measure(server: Server, load: Load, steps: Sequence[tuple[str, Callable[[], None]]]) -> dict[str, float]:
    """Microseconds a message of each step."""
    found: dict[str, float] = {}
    for name, step in steps:
        load.link.commands.clear()
        step()
        found[name] = server.run(load.link.commands) / load.messages * 1e6
    return found


def load_sessions(server: Server, count: int) -> None:
    """Store so many sessions with 5 subscriptions each, and say how long a start takes to read them."""
    load = Load(clients=count, batch=1, rounds=1, payload_bytes=0)
    server.load(SCRIPTS)
    load.sessions()
    load.subscriptions(5)
    server.run(load.link.commands)
    with BlockingRedis(parse_address(server.url), RedisSettings()) as blocking:
        began_s, cpu_s = time.monotonic(), time.process_time()
        found = RedisSessionStore(blocking, Owners()).load()
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    print(f"{len(found.sessions):,} sessions read in {took_s:.1f} s, {cpu_s:.1f} s of CPU here")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=40_000, help="messages a row of the table (40000)")
    parser.add_argument("--payload", type=int, default=100, help="bytes of a payload (100)")
    parser.add_argument(
        "--append-only", action="store_true", help="with appendonly yes, appendfsync everysec"
    )
    parser.add_argument("--load", type=int, default=0, metavar="N", help="read N sessions as a start does")
    options = parser.parse_args()
    if options.load:
        with serve(append_only=options.append_only) as server:
            load_sessions(server, options.load)
        return
    print(f"{platform.machine()}, Python {platform.python_version()}, payload {options.payload} bytes")
    print("microseconds of Redis CPU a message, by messages in one call\n")
    columns = (1, 10, 100)
    table: dict[str, dict[int, float]] = {}
    for batch in columns:
        rounds = 2
        clients = max(1, options.messages // batch // rounds)
        for kind in ("online", "offline", "QoS 2"):
            load = Load(clients=clients, batch=batch, rounds=rounds, payload_bytes=options.payload)
            with serve(append_only=options.append_only) as server:
                server.load(SCRIPTS)
                load.sessions()
                server.run(load.link.commands)
                for name, cost in measure(server, load, _steps(load, kind)).items():
                    table.setdefault(f"{kind}: {name}", {})[batch] = cost
                    whole = table.setdefault(f"{kind}: stored and acknowledged", {})
                    whole[batch] = whole.get(batch, 0.0) + cost
    print(f"{'':<36}" + "".join(f"{batch:>8}" for batch in columns))
    for name, costs in table.items():
        print(f"{name:<36}" + "".join(f"{costs[batch]:>8.1f}" for batch in columns))


def _steps(load: Load, kind: str) -> list[tuple[str, Callable[[], None]]]:
    acknowledge = ("acknowledge", lambda: load.mark(QueueState.DONE))
    if kind == "online":
        return [("save as sent", lambda: load.save(sent=True)), acknowledge]
    if kind == "offline":
        return [
            ("save", lambda: load.save(sent=False)),
            ("page", load.pages),
            ("mark sent", lambda: load.mark(QueueState.SENT)),
            acknowledge,
        ]
    return [
        ("save as sent", lambda: load.save(sent=True)),
        ("mark released", lambda: load.mark(QueueState.RELEASED)),
        acknowledge,
    ]


if __name__ == "__main__":
    main()
