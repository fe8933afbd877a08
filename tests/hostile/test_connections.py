"""Very many connections, half-finished ones, and clients that vanish; beside them others go on."""

from __future__ import annotations

import asyncio
import selectors
import socket
import struct
import sys
import time

import pytest
from tests.hostile.bystanders import Bystanders, undisturbed
from tests.hostile.watching import allow_many_files, cpu_s, gauges, metric, resident_bytes, wait_for_gauges
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.raw_client import RawClient, connect_packet, dial
from tests.support.waiting import wait_for, wait_until, wait_while_it_goes_on

from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.packets import Connect, Subscription, Will
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

pytestmark = pytest.mark.perf

V5, V311 = ProtocolVersion.V5, ProtocolVersion.V311
PAUSE_MS = 1_500.0
MIB = 2**20
RESET = struct.pack("ii", 1, 0)


class Crowd:
    """Blocking sockets, many: opened, written to and read from one after the other."""

    def __init__(self, port: int, count: int) -> None:
        assert allow_many_files(count + 200) >= count + 200, "the limit of open files is too low"
        self.sockets = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(count)]

    def say(self, data: bytes) -> None:
        for sock in self.sockets:
            sock.sendall(data)

    def ended(self, deadline_s: float) -> float:
        """Seconds until the broker has ended every connection."""
        began_s = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for sock in self.sockets:
                selector.register(sock, selectors.EVENT_READ)
            while selector.get_map():
                left_s = deadline_s - (time.monotonic() - began_s)
                assert left_s > 0, f"{len(selector.get_map())} connections are still open"
                for key, _ in selector.select(left_s):
                    assert isinstance(key.fileobj, socket.socket)
                    try:
                        over = not key.fileobj.recv(65_536)
                    except ConnectionResetError:
                        over = True
                    if over:
                        selector.unregister(key.fileobj)
        return time.monotonic() - began_s

    def close(self, *, reset: bool = False) -> None:
        for sock in self.sockets:
            if reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()


def tell(text: str) -> None:
    """For who runs it with `-rP`."""
    sys.stdout.write(text + "\n")


def test_500_clients_that_speak_a_byte_at_a_time(broker: BrokerProcess) -> None:
    """A CONNECT that never becomes whole: the time to CONNECT does not begin anew with each byte."""
    broker.settings["clients.connect_timeout_s"] = 2
    broker.start()
    before = gauges(broker)
    with undisturbed(broker.port, PAUSE_MS, "500 slow clients"):
        crowd = Crowd(broker.port, 500)
        for byte in connect_packet("slow")[:8]:
            crowd.say(bytes((byte,)))
        took_s = crowd.ended(60.0)
        crowd.close()
    tell(f"500 slow clients: ended after {took_s:.1f} s")
    wait_for_gauges(broker, before)


@pytest.mark.parametrize("version", [V311, V5])
def test_bytes_that_never_become_a_packet_do_not_keep_a_client_alive(
    broker: BrokerProcess, version: ProtocolVersion
) -> None:
    """[MQTT-3.1.2-22] asks for a packet, not for a byte."""
    broker.start()
    client = RawClient(dial(broker.port))
    client.send(encode(Connect("slow", version, True, 1, None, None, None, None), version))
    assert client.receive()[0] == 0x20
    client.send(b"\x30\x80\x10")
    began_s = time.monotonic()
    client.sock.settimeout(0.3)
    while time.monotonic() - began_s < 60:
        client.send(b"\x00")
        try:
            if not client.sock.recv(100):
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    assert 1 < time.monotonic() - began_s < 60, "ended by its keep-alive of one second"
    client.close()


def test_300_clients_that_vanish(broker: BrokerProcess) -> None:
    """No FIN, no answer: their keep-alive ends them, and their wills go out."""
    broker.start()
    before = gauges(broker)

    async def scenario() -> None:
        mourner = MqttClient("mourner")
        await mourner.connect(broker.port)
        await mourner.subscribe(Subscription("gone/#", 1))
        silent = []
        for number in range(300):
            client = MqttClient(f"silent{number}")
            will = Will(f"gone/{number}", b"", 1, False, None)
            await client.connect(broker.port, keep_alive_s=1, will=will)
            client.pause_reading()
            silent.append(client)
        await wait_for(lambda: len(mourner.messages) == 300, 60, "300 wills")
        assert len({message.topic for message in mourner.messages}) == 300
        for client in silent:
            client.abort()
            await client.ended
        mourner.close()
        await mourner.ended

    with undisturbed(broker.port, PAUSE_MS, "300 clients that vanish"):
        run(scenario())
    wait_for_gauges(broker, before)


def test_the_kernel_watches_connections_without_keep_alive(broker: BrokerProcess) -> None:
    """A client with keep-alive 0 that lost its network would stay for ever; the kernel asks after it."""
    broker.start()
    client = RawClient(dial(broker.port))
    assert client.enter("quiet") == 0
    own = client.sock.getsockname()[1]
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table]
    ours = [
        row for row in rows[1:] if row[1].endswith(f":{broker.port:04X}") and row[2].endswith(f":{own:04X}")
    ]
    assert len(ours) == 1
    timer = ours[0][5].partition(":")[0]
    assert timer == "02", "the keep-alive timer of the kernel does not run"
    client.close()


def test_5_000_clients_at_once(broker: BrokerProcess) -> None:
    assert allow_many_files(10_000) >= 5_300
    broker.settings["clients.connect_timeout_s"] = 120  # a busy machine takes as long for some of them
    broker.start()
    before = gauges(broker)
    memory = resident_bytes(broker)

    async def scenario() -> None:
        began_s, used_s = time.monotonic(), cpu_s(broker)
        clients = [MqttClient(f"storm{number}", keeps=False) for number in range(5_000)]
        codes = await asyncio.gather(*(client.connect(broker.port) for client in clients))
        took_s = time.monotonic() - began_s
        assert {code.reason_code for code in codes} == {0}
        each_bytes = (resident_bytes(broker) - memory) / 5_000
        tell(
            f"5,000 at once: all entered after {took_s:.2f} s, {cpu_s(broker) - used_s:.2f} CPU s of the broker, "
            f"{each_bytes:.0f} bytes each"
        )
        assert metric(broker, "connections") >= 5_000
        for client in clients:
            client.abort()
        await asyncio.gather(*(client.ended for client in clients))

    with undisturbed(broker.port, PAUSE_MS, "5,000 at once"):
        run(scenario())
    wait_for_gauges(broker, before)


def test_2_000_wills_at_once(broker: BrokerProcess) -> None:
    """All of them are published, to somebody who hears all of them."""
    count = 2_000
    allow_many_files(10_000)
    broker.start()
    before = gauges(broker)

    async def scenario() -> None:
        mourner = MqttClient("mourner")
        await mourner.connect(broker.port)
        await mourner.subscribe(Subscription("gone/#", 1))
        clients = [MqttClient(f"mortal{number}", keeps=False) for number in range(count)]
        wills = [Will(f"gone/{number}", b"x" * 100, 1, False, None) for number in range(count)]
        pairs = list(zip(clients, wills, strict=True))
        for first in range(0, count, 100):  # else the last say CONNECT when their time for that is over
            some = pairs[first : first + 100]
            await asyncio.gather(*(client.connect(broker.port, will=will) for client, will in some))
        began_s = time.monotonic()
        for client in clients:
            client.abort()
        await wait_while_it_goes_on(
            lambda: len(mourner.messages) >= count, lambda: len(mourner.messages), f"{count} wills"
        )
        tell(f"{count} wills at once: all heard after {time.monotonic() - began_s:.2f} s")
        assert len({message.topic for message in mourner.messages}) == count
        mourner.close()
        await mourner.ended

    with undisturbed(broker.port, PAUSE_MS, f"{count} wills at once"):
        run(scenario(), 600)
    wait_for_gauges(broker, before)


@pytest.mark.parametrize("clean_start", [pytest.param(True, marks=pytest.mark.in_faults), False])
def test_takeovers_of_one_session(broker: BrokerProcess, clean_start: bool) -> None:
    count = 1_000 if clean_start else 300
    broker.start()
    before = gauges(broker)

    async def scenario() -> None:
        began_s = time.monotonic()
        contested: list[MqttClient] = []
        for number in range(count):
            client = MqttClient("contested", keeps=False)
            contested.append(client)
            expiry_s = 0 if clean_start else 1
            if number % 3:
                await client.connect(broker.port, clean_start=clean_start, expiry_s=expiry_s)
                await client.subscribe(Subscription(f"contest/{number}/+", 1))
            else:
                await client.open(broker.port)  # not waited for: the next one comes at once
                client.send(Connect("contested", V5, clean_start, 0, None, None, None, None))
        tell(f"takeovers: {count / (time.monotonic() - began_s):.0f} a second")
        last = MqttClient("contested")
        await last.connect(broker.port)
        await asyncio.wait_for(asyncio.gather(*(client.ended for client in contested)), 60)
        said = [client.disconnect_received for client in contested if client.connack is not None]
        assert all(found is not None for found in said)
        assert {found.reason_code for found in said if found is not None} == {ReasonCode.SESSION_TAKEN_OVER}
        await last.ping()
        last.close()
        await last.ended

    with undisturbed(broker.port, PAUSE_MS, f"{count} takeovers, clean start {clean_start}"):
        run(scenario())
    wait_for_gauges(broker, before)


def test_resets_in_the_middle_of_everything(broker: BrokerProcess) -> None:
    """RST instead of FIN, 3,000 times, with and without bytes that are not read."""
    broker.start()
    before = gauges(broker)
    data = connect_packet("reset") + b"\x30\x09\x00\x05r/e/s\x00x" * 50
    with undisturbed(broker.port, PAUSE_MS, "3,000 resets"):
        for number in range(3_000):
            sock = dial(broker.port)
            sock.sendall(data[: number % len(data)])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()
    wait_for_gauges(broker, before)


def test_more_clients_than_files(broker: BrokerProcess) -> None:
    """The broker has 256 file descriptors and nobody can raise that: who does not fit is turned away, the others stay,
    and it neither stops to listen nor turns in circles."""
    broker.wrapper = ("prlimit", "--nofile=256:256")
    broker.start()
    with Bystanders(broker.port) as bystanders:
        sockets = []
        for _ in range(600):
            sock = socket.create_connection(("127.0.0.1", broker.port), 10)
            sock.setblocking(False)
            sockets.append(sock)
        used_s, began_s = cpu_s(broker), time.monotonic()
        wait_until(lambda: time.monotonic() - began_s > 2, what="two seconds", poll_s=0.1)
        assert cpu_s(broker) - used_s < 1.0, "the broker turns in circles"
        for sock in sockets:
            sock.close()
        wait_until(lambda: enters(broker.port), 60.0, "room for a client", poll_s=0.2)
    waits = bystanders.waits()
    tell(f"600 clients for 256 files: {waits}")


def enters(port: int) -> bool:
    """Whether a new client is let in."""
    sock = dial(port)
    try:
        sock.sendall(connect_packet("late"))
        found = sock.recv(100)
        return len(found) > 3 and found[:1] == b"\x20" and found[3] == 0
    except (OSError, TimeoutError):
        return False
    finally:
        sock.close()
