"""What threads hear of a client without asyncio that is closed while they wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.unit.client.test_connections import Connection, Server

from embermq.mqtt.wire.packets import Publish, Subscribe
from embermq_client import ClientError, SyncClient
from embermq_client.sync import _Loop

WAIT_S = 60


class Worker:
    """A thread that does one thing."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def is_over(self) -> bool:
        self._thread.join(WAIT_S)
        return not self._thread.is_alive()


def test_whoever_waits_for_a_client_hears_that_it_was_closed() -> None:
    async def scenario() -> None:
        server = Server()
        server.settles = False
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0)
        client = SyncClient("127.0.0.1", listening.sockets[0].getsockname()[1], client_id="c-1")
        await asyncio.to_thread(client.__enter__)
        queue = client.queue("a")

        def consume() -> None:
            with queue.consume() as messages:
                messages.next()

        workers = [Worker(lambda: queue.publish(b"x")), Worker(consume)]
        workers += [Worker(lambda: client.publish("t", b"x")) for _ in range(3)]
        (connection,) = server.connections
        await server.until(lambda: len(connection.of(Publish)) == 4 and bool(connection.of(Subscribe)))
        await asyncio.to_thread(client.__exit__, None, None, None)
        for worker in workers:
            assert await asyncio.to_thread(worker.is_over), "it waits for ever"
            assert isinstance(worker.error, ClientError), worker.error
        late = Worker(lambda: queue.publish(b"x"))
        assert await asyncio.to_thread(late.is_over)
        assert isinstance(late.error, ClientError), late.error
        listening.close()

    asyncio.run(scenario())


def test_what_the_end_of_a_client_does_not_end_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embermq_client.sync.ENDING_S", 0)
    loop, begun = _Loop(), threading.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = Worker(lambda: loop.call(endless()))
    assert begun.wait(WAIT_S)
    loop.close()
    assert worker.is_over()
    assert isinstance(worker.error, ClientError), worker.error
