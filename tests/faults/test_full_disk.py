"""A full disk: publishers are told, nothing acknowledged is lost, everything else goes on, and room ends it."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faults.data_files import log_extent
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import ConnectionEnded, MqttClient, run
from tests.support.waiting import wait_for, wait_until

from embermq.mqtt.wire.packets import Connack, Publish, Subscription, Will
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
KEPT_S = 3_600
DISK_BYTES = 8 * 1024 * 1024
BODY = b"x" * 20_000
FIRST_ERROR = 0x80
TRY_S = 0.1
TRIES_MAX = 600


class Disk:
    """A data directory whose room can be taken and given back while the broker runs."""

    data_dir: Path
    outlives_the_broker = True
    wrapper: tuple[str, ...] = ()

    def fill(self, broker: BrokerProcess) -> None:
        raise NotImplementedError

    def free(self, broker: BrokerProcess) -> None:
        raise NotImplementedError


class LimitedFiles(Disk):
    """Files may not grow: what a quota does, and needs no rights."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def fill(self, broker: BrokerProcess) -> None:
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (16 * 1024, hard))

    def free(self, broker: BrokerProcess) -> None:
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))


class SmallFileSystem(Disk):
    """A file system of `DISK_BYTES` in a mount namespace of the broker's own, and a filler in it."""

    outlives_the_broker = False

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        data_dir.mkdir()
        mount = f'mount -t tmpfs -o size={DISK_BYTES} none "{data_dir}" && exec "$@"'
        self.wrapper = (*_namespace(), "sh", "-c", mount, "sh")

    def _filler(self, broker: BrokerProcess) -> Path:
        return Path(f"/proc/{broker.pid}/root{self.data_dir}/filler")

    def fill(self, broker: BrokerProcess) -> None:
        with self._filler(broker).open("wb") as filler:
            for size in (65_536, 4_096, 1):
                while _has_room(filler.fileno(), size):
                    pass

    def free(self, broker: BrokerProcess) -> None:
        self._filler(broker).unlink()


def _has_room(descriptor: int, size: int) -> bool:
    try:
        return os.write(descriptor, bytes(size)) == size
    except OSError:
        return False


def _namespace() -> tuple[str, ...]:
    return ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--map-root-user", "--mount")


def _may_mount() -> bool:
    try:
        done = subprocess.run([*_namespace(), "true"], capture_output=True, timeout=60)
    except OSError:
        return False
    return done.returncode == 0


DISKS = [LimitedFiles, *([SmallFileSystem] if _may_mount() else [])]


@contextmanager
def broker_on(disk: Disk, durability: str) -> Iterator[BrokerProcess]:
    settings = {"log.durability": durability}
    with BrokerProcess(disk.data_dir, settings=settings, wrapper=disk.wrapper) as broker:
        yield broker


async def enter(broker: BrokerProcess, client_id: str, version: ProtocolVersion) -> MqttClient:
    client = MqttClient(client_id, version=version)
    await client.connect(broker.port, clean_start=False, expiry_s=KEPT_S)
    return client


async def publish(client: MqttClient, qos: int, acknowledged: set[int]) -> int:
    """The next message; remembered when it is acknowledged. Returns the reason code."""
    number = len(acknowledged)
    code = await client.publish("disk/full", b"%d:" % number + BODY, qos=qos)
    if code < FIRST_ERROR:
        acknowledged.add(number)
    return code


async def publish_until_refused(client: MqttClient, qos: int, acknowledged: set[int]) -> int:
    """Returns the reason code of the refusal; raises ConnectionEnded for 3.x."""
    for _ in range(5_000):
        code = await publish(client, qos, acknowledged)
        if code >= FIRST_ERROR:
            return code
    raise AssertionError("the disk did not get full")


async def publish_until_accepted(client: MqttClient, qos: int, acknowledged: set[int]) -> None:
    """The store works again as soon as state fits; messages wait until the checkpoint was tried once more."""
    for _ in range(TRIES_MAX):
        if await publish(client, qos, acknowledged) < FIRST_ERROR:
            return
        await asyncio.sleep(TRY_S)
    raise AssertionError("messages are refused for good")


def numbers(messages: list[Publish]) -> list[int]:
    return [int(message.payload.partition(b":")[0]) for message in messages if message.topic == "disk/full"]


@pytest.mark.promise("device-1", "device-13")
@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("kind", DISKS)
def test_a_full_disk_refuses_publishes_until_there_is_room(
    kind: type[LimitedFiles | SmallFileSystem], durability: str, tmp_path: Path
) -> None:
    disk = kind(tmp_path / "data")
    with broker_on(disk, durability) as broker:

        async def scenario() -> None:
            subscriber = await enter(broker, "subscriber", V5)
            await subscriber.subscribe(Subscription("#", 2))
            publisher = await enter(broker, "publisher", V5)
            old = await enter(broker, "old-publisher", V311)
            assert await old.publish("disk/before", b"", qos=1) == 0
            acknowledged: set[int] = set()
            for _ in range(20):
                assert await publish(publisher, 2, acknowledged) == 0
            disk.fill(broker)
            for qos in (1, 2):
                code = await publish_until_refused(publisher, qos, acknowledged)
                assert code == ReasonCode.QUOTA_EXCEEDED
            with pytest.raises(ConnectionEnded):
                await publish_until_refused(old, 1, acknowledged)
            assert publisher.is_open
            await old.ended

            before = len(subscriber.messages)
            await publisher.publish("disk/qos0", b"goes on", qos=0)
            await wait_for(
                lambda: subscriber.messages[-1].topic == "disk/qos0" and len(subscriber.messages) > before
            )

            disk.free(broker)
            await wait_for(lambda: "store works again" in broker.output())
            await publish_until_accepted(publisher, 2, acknowledged)
            old = await enter(broker, "old-publisher", V311)
            assert old.connack is not None and old.connack.session_present
            assert await old.publish("disk/after", b"", qos=2) == 0
            await wait_for(lambda: acknowledged <= set(numbers(subscriber.messages)))
            await wait_for(lambda: subscriber.messages[-1].topic == "disk/after")
            subscriber.abort()
            await subscriber.ended

        run(scenario())
        assert broker.stop() == 0


@pytest.mark.promise("device-1")
def test_what_was_acknowledged_before_the_disk_was_full_survives_a_kill(tmp_path: Path) -> None:
    disk = LimitedFiles(tmp_path / "data")
    with broker_on(disk, "fsync") as broker:
        acknowledged: set[int] = set()

        async def fill() -> None:
            subscriber = await enter(broker, "subscriber", V5)
            await subscriber.subscribe(Subscription("#", 2))
            subscriber.close()
            publisher = await enter(broker, "publisher", V5)
            for _ in range(20):
                assert await publish(publisher, 2, acknowledged) == 0
            disk.fill(broker)
            await publish_until_refused(publisher, 2, acknowledged)

        async def come_back() -> None:
            subscriber = await enter(broker, "subscriber", V5)
            await wait_for(lambda: len(subscriber.messages) >= len(acknowledged))
            await subscriber.ping()
            assert numbers(subscriber.messages) == sorted(acknowledged)

        run(fill())
        broker.kill()
        broker.start()
        run(come_back())
        wait_until(lambda: log_extent(disk.data_dir)[1] == len(acknowledged))


@pytest.mark.promise("device-1", "device-8")
@pytest.mark.parametrize("kind", DISKS)
def test_who_comes_to_a_full_disk_is_told_at_once_and_known_sessions_may_drain(
    kind: type[LimitedFiles | SmallFileSystem], tmp_path: Path
) -> None:
    disk = kind(tmp_path / "data")
    count = 60

    async def connects(client_id: str, version: ProtocolVersion = V5, **named: Any) -> Connack:
        client = MqttClient(client_id, version=version)
        answer = await client.connect(broker.port, **named)
        if answer.reason_code:
            await client.ended
        else:
            client.close()
        return answer

    async def filled() -> None:
        away = await enter(broker, "away", V5)
        await away.subscribe(Subscription("disk/#", 1))
        away.close()
        publisher = await enter(broker, "publisher", V5)
        acknowledged: set[int] = set()
        for _ in range(count):
            assert await publish(publisher, 1, acknowledged) == 0
        disk.fill(broker)
        await publish_until_refused(publisher, 1, acknowledged)
        told.extend(sorted(acknowledged))

    async def refused() -> None:
        kept: dict[str, Any] = {"clean_start": False, "expiry_s": KEPT_S}
        will = Will("w", b"", 0, False, None)
        assert (await connects("new", **kept)).reason_code == ReasonCode.QUOTA_EXCEEDED
        assert (await connects("new", V311, **kept)).reason_code == 3
        assert (await connects("willing", will=will)).reason_code == ReasonCode.QUOTA_EXCEEDED
        assert (await connects("plain")).reason_code == 0

    async def drained() -> None:
        for round_number in range(2):
            away = await enter(broker, "away", V5)
            assert away.connack is not None and away.connack.session_present
            wanted = told if not round_number else []
            await wait_for(lambda: numbers(away.messages) == wanted)  # noqa: B023 - waited for here
            await away.ping()
            assert numbers(away.messages) == wanted
            away.close()
            await away.ended

    async def afterwards() -> None:
        await wait_for(lambda: "store works again" in broker.output())
        assert (await connects("new", clean_start=False, expiry_s=KEPT_S)).reason_code == 0

    told: list[int] = []
    with broker_on(disk, "fsync") as broker:
        for scenario in (filled, refused, drained):
            run(scenario())
        disk.free(broker)
        run(afterwards())
        if not disk.outlives_the_broker:
            return
        broker.kill()
        broker.start()
        told.clear()
        run(drained())
