"""The order of system calls: the sync of the log is over before the first byte of the acknowledgement is sent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.mqtt_client import MqttClient, run
from tests.support.waiting import wait_until

from embermq.mqtt.wire.version import ProtocolVersion

MESSAGES = 20
CALL = re.compile(r"^\d+ +\d+\.\d+ (?:<\.\.\. )?(?P<name>\w+)(?P<resumed> resumed>)?")
TRACED = "trace=fdatasync,io_submit,io_getevents,sendto,sendmsg,write,writev,pwrite64,pwritev,pwritev2"
LOG = b".seg".hex()


def unsynced_acknowledgements(trace: Path, acknowledgement: str) -> tuple[int, int]:
    """(acknowledgements that were sent, those of them that were sent before their message was synced).

    Messages are published one by one, so the n-th acknowledgement needs n messages written and then synced.
    """
    wanted = {(b"message %02d" % number).hex() for number in range(MESSAGES)}
    written: set[str] = set()
    syncing = synced = sent = early = 0
    for line in trace.read_text(errors="replace").splitlines():
        call = CALL.match(line)
        if call is None:
            continue
        name, begins, returns = call["name"], not call["resumed"], "<unfinished ..." not in line
        plain = re.sub(r"\\x([0-9a-f]{2})", r"\1", line)
        if name.startswith("pwrite"):
            written |= {text for text in wanted if text in plain}
        elif name == "fdatasync":
            syncing = len(written) if begins and LOG in plain else syncing
            synced = syncing if returns else synced
        elif name == "io_submit":
            syncing = len(written) if begins and LOG in plain else syncing
        elif name == "io_getevents":
            synced = syncing if returns and "res=0," in line else synced
        elif begins and f'"{acknowledgement}' in plain:
            sent += 1
            early += synced < sent
    return sent, early


@pytest.mark.promise("device-1")
@pytest.mark.parametrize(("durability", "early"), [("fsync", 0), ("os", MESSAGES)])
@pytest.mark.parametrize(("qos", "acknowledgement"), [(1, "400200"), (2, "500200")])
def test_the_sync_is_over_before_the_acknowledgement_leaves(
    qos: int, acknowledgement: str, durability: str, early: int, tmp_path: Path
) -> None:
    """The level `os`, which does not sync, shows that the trace would tell."""
    trace = tmp_path / "trace"
    wrapper = ["strace", "-D", "-f", "-y", "-ttt", "-xx", "-s", "4096", "-o", str(trace), "-e", TRACED]
    settings = {"log.durability": durability}
    with BrokerProcess(tmp_path / "data", settings=settings, wrapper=wrapper) as broker:

        async def scenario() -> None:
            client = MqttClient("traced", version=ProtocolVersion.V311)
            await client.connect(broker.port)
            for number in range(MESSAGES):
                assert await client.publish("traced", b"message %02d" % number, qos=qos) == 0

        run(scenario())
        pid = broker.pid
        broker.stop()
        wait_until(lambda: re.search(rf"(?m)^{pid} .* exited with 0", trace.read_text(errors="replace")))
    assert unsynced_acknowledgements(trace, acknowledgement) == (MESSAGES, early)
