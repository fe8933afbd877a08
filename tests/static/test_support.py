"""What tests stand on fails rather than hangs, and gives nothing to two of them."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support import broker_process, sharing
from tests.support.broker_process import free_port
from tests.support.mqtt_client import MqttClient, run
from tests.support.redis_asking import on_the_loop
from tests.support.resting import at_rest_between, let_rest
from tests.support.server_process import ServerProcess, has_stopped


@pytest.fixture
def port() -> int:
    return free_port()


def test_a_connection_that_a_test_forgets_is_told_instead_of_waited_for(port: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(asyncio.Protocol, "127.0.0.1", port)
        await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)

    async def failing() -> None:
        await scenario()
        raise ValueError("as a test that fails")

    with pytest.raises(AssertionError, match="unclosed"):
        run(scenario())
    port = free_port()
    with pytest.raises(ValueError, match="fails"):
        on_the_loop(failing)()


def test_a_client_whose_end_nobody_waits_for_any_more_is_dropped(port: int) -> None:
    async def scenario() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", port)
        client = MqttClient("forgotten")
        await client.open(port)
        waits = asyncio.ensure_future(client.ended)
        waits.cancel()
        server.close()

    run(scenario())


def test_no_port_is_given_twice() -> None:
    given = [free_port() for _ in range(200)]
    assert len(set(given)) == len(given)


class Sleeper(ServerProcess):
    """A server that answers when it runs."""

    name = "sleep"

    def command(self) -> Sequence[str]:
        return ["sleep", "600"]

    def answers(self) -> bool:
        return not has_stopped(self.pid)


def test_a_shared_server_stands_still_until_it_is_taken_again(tmp_path: Path) -> None:
    with Sleeper(tmp_path) as server, at_rest_between(server):
        let_rest()
        assert has_stopped(server.pid)
        server.heal()
        assert not has_stopped(server.pid)
        server.kill()
        let_rest()  # a test has left it so
        server.heal()
        assert server.is_running


def _port_of_nobody() -> int:
    """Below the first that `free_port` gives, and by process: other runs on this machine test the same."""
    last = broker_process._PORT_FIRST - 1
    for port in range(last - os.getpid() % 8_000, 1_024, -1):
        with socket.socket() as candidate, suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            if port not in broker_process._given:
                return port
    raise AssertionError("no free port was found")


def test_no_port_is_given_that_a_run_beside_this_one_has_while_its_server_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two runs whose dice fall alike."""
    program = (
        "import runpy, sys; runpy.run_path(sys.argv[1])['reserve_number'](int(sys.argv[2])); print(); input()"
    )
    taken = _port_of_nobody()
    words = [sys.executable, "-c", program, sharing.__file__, str(taken)]
    dice = random.sample

    def falls_alike(ports: Sequence[int], count: int) -> list[int]:
        return [taken, *dice(ports, count)]

    monkeypatch.setattr(random, "sample", falls_alike)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        assert free_port() != taken
        other.communicate(b"\n")
    assert free_port() == taken
