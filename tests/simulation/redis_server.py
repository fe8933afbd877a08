"""A Redis in this process: its values, scripts and connections, as one that starts, ends and fails over sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import redis
from tests.simulation.loop import SimulatedLoop, current_process
from tests.simulation.redis_scripts import RedisScripts
from tests.simulation.redis_values import OK, RedisError, RedisValues, Reply, Status, Words

from embermq.adapters.redis.address import RedisAddress, RedisSettings, parse_address
from embermq.adapters.redis.blocking import BlockingRedis
from embermq.ports.errors import StoreError, StoreUnavailable

URL = "redis://redis:6379"


class Session:
    """One connection, as the server has it. `end` closes it."""

    def __init__(self, number: int, end: Callable[[], None]) -> None:
        self.number = number
        self.name = b""
        self.end = end


class SimulatedRedis:
    """`away`: it takes no connections. `run_id` is another one after each start, `history` after each failover."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.values = RedisValues(now_ms)
        self._scripts = RedisScripts(self.values)
        self.away = False
        self.runs = self.failovers = 1
        self.sessions: dict[int, Session] = {}
        self._numbers = count(1)
        self.executed = 0
        self.loses_answers = 0
        """So many batches are done and not answered: the connection breaks."""

    def connect(self, end: Callable[[], None]) -> Session:
        session = Session(next(self._numbers), end)
        self.sessions[session.number] = session
        return session

    def disconnect(self, session: Session) -> None:
        """It is over, from either side."""
        self.sessions.pop(session.number, None)

    def restarts(self) -> None:
        """All connections end; what is in memory stays, as with `appendfsync always`."""
        self.runs += 1
        self._scripts.forget()
        for session in list(self.sessions.values()):
            session.end()

    def fails_over(self, kept: Any) -> None:
        """A replica takes over that has heard of all up to `kept`, a copy of `values`."""
        self.failovers += 1
        self.values.restore(kept)
        self.restarts()

    def execute(self, session: Session | None, words: Words) -> Reply:
        """One command. An error is returned, as the others are."""
        self.executed += 1
        name = words[0].upper()
        try:
            if name == b"CLIENT":
                return self._client(session, words[1].upper(), words[2:])
            command = self.values.commands.get(name) or self._others.get(name)
            if command is None:
                return RedisError(f"ERR unknown command {name!r}")
            return command(*words[1:])
        except RedisError as error:
            return error

    @property
    def _others(self) -> dict[bytes, Callable[..., Reply]]:
        return {
            b"PING": lambda *_: Status(b"PONG"),
            b"INFO": self._info,
            b"SELECT": lambda *_: OK,
            b"AUTH": lambda *_: OK,
            b"WAIT": lambda *_: 1,
        }

    def _info(self, *_sections: bytes) -> Reply:
        return (
            "# Server\r\nredis_version:7.2.0\r\n"
            f"run_id:{self.runs:040d}\r\nrole:master\r\nmaster_replid:{self.failovers:040d}\r\n"
            "cluster_enabled:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n"
        ).encode()

    def _client(self, session: Session | None, what: bytes, words: Words) -> Reply:
        if what == b"ID":
            return session.number if session is not None else 0
        if what == b"SETNAME" and session is not None:
            session.name = words[0]
            return OK
        if what == b"LIST":
            lines = [
                b"id=%d addr=there:1 laddr=here:1 name=%s age=1 db=0 sub=0 \n" % (one.number, one.name)
                for one in self.sessions.values()
            ]
            return b"".join(lines)
        if what == b"KILL" and words[0].upper() == b"ID":
            found = self.sessions.get(int(words[1]))
            if found is None or found is session:
                return 0
            found.end()
            return 1
        raise RedisError(f"ERR unknown subcommand {what!r}")


class DirectClient(redis.Redis):
    """Redis's own client, asking a server in this process; answers are understood as from a socket."""

    def __init__(self, server: SimulatedRedis) -> None:
        self.__dict__ |= _CLIENT.__dict__  # half of what a start would cost
        self._server = server

    def __del__(self) -> None:
        """There is nothing to close."""

    def execute_command(self, *words: Any, **options: Any) -> Any:
        options.pop("keys", None)  # for a cache of the client's
        answer = self.ask(words, options)
        if isinstance(answer, redis.RedisError):
            raise answer
        return answer

    def ask(self, words: Sequence[Any], options: dict[str, Any]) -> Any:
        """The answer, or the error."""
        self.travel()
        answer = self.answer(words, options)
        self.travel()
        return answer

    def travel(self) -> None:
        """A question, or an answer, is on its way; nobody but a test asks without."""
        process = current_process()
        if process is not None:
            process.step()
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            loop.block(process, loop.delay_s())

    def answer(self, words: Sequence[Any], options: dict[str, Any]) -> Any:
        """What the server says."""
        if self._server.away:
            return redis.ConnectionError("away")
        packed = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        name = str(words[0]) if not isinstance(words[0], bytes) else words[0].decode()
        if name == "CLUSTER NODES":
            packed = [b"CLUSTER", b"NODES"]
        answer = self._server.execute(None, packed)
        if isinstance(answer, RedisError):
            return redis.ResponseError(str(answer))
        found: Any = _plain(answer)
        callbacks: Any = self.response_callbacks
        understand = callbacks.get(name)
        return understand(found, **options) if understand is not None else found

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        return _Pipeline(self)

    def close(self) -> None:
        """There is no connection."""


_CLIENT = redis.Redis(protocol=2)


class _Pipeline:
    """Commands of one master, one after another."""

    def __init__(self, client: DirectClient) -> None:
        self._client = client
        self._asked: list[tuple[Any, ...]] = []

    def execute_command(self, *words: Any) -> None:
        self._asked.append(words)

    def execute(self, *, raise_on_error: bool = True) -> list[Any]:
        self._client.travel()
        answers = [self._client.answer(words, {}) for words in self._asked]
        self._client.travel()
        if answers and isinstance(answers[0], redis.ConnectionError):
            raise answers[0]
        assert not raise_on_error
        return answers


def _plain(answer: Reply) -> Any:
    if isinstance(answer, Status):
        return bytes(answer)
    return [_plain(one) for one in answer] if isinstance(answer, list) else answer


class DirectRedis(BlockingRedis):
    """What a start asks a server in this process, without a socket between them."""

    def __init__(self, server: SimulatedRedis, address: RedisAddress | None = None) -> None:
        self.address = address or parse_address(URL)
        self._options: dict[str, Any] = {}
        self._cluster: Any = None
        self._masters = [DirectClient(server)]
        if server.away:
            raise StoreUnavailable(f"stores.session: {self.address}: away")

    def failure(self, error: Exception) -> StoreError:
        return StoreUnavailable(f"stores.session: {self.address}: {error}")


__all__ = ["URL", "DirectRedis", "RedisSettings", "SimulatedRedis"]
