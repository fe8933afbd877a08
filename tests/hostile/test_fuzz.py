"""Mutated packets from many clients at once, against a real broker, in turn with the same load of valid ones.

`--fuzz-packets` says how many mutated packets, `--fuzz-seed` which; conversations of a failure are saved, and
`--fuzz-replay FOLDER` sends them again.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.bystanders import Bystanders, Waits
from tests.hostile.watching import Watch, gauges, metric, resident_bytes, wait_for_gauges
from tests.support.broker_process import BrokerProcess
from tests.support.child_module import command
from tests.support.mqtt_client import MqttClient, run
from tests.support.raw_client import dial

from embermq.mqtt.wire.packets import Publish, Subscription

PACKETS_A_SECOND = 5_000
PHASE_S = 1.5
ROUNDS_MORE = 2
"""How many times as many phases there may be when what the machine does besides hides the outcome. All count."""
COMPARED_PACKETS = 100_000
"""In a shorter run round trips are too few to be compared, and other tests run beside it."""
UNEQUAL = 0.1
"""By how much the loads of two phases may differ; otherwise their round trips do not count,
and the next are slower."""
WARM_UP_PACKETS = 300_000
"""By then what the broker remembers of topics and clients is full; a short run counts from its middle."""
GROWTH_BYTES_MAX = 12 * 1024 * 1024
SHORT_GROWTH_BYTES_MAX = 48 * 1024 * 1024
"""In a run so short that what grows once, some 20 MiB of caches and arenas, may do so behind its middle."""
GROWTH_A_PACKET_MAX = 10
RATIO_MAX = 2.0
SETTINGS = {"logging.level": "debug", "log.durability": "os", "mqtt.session_expiry_max_s": 3}


class Storm:
    """The process that sends; see `storm`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def storm(port: int, seed: int) -> Iterator[Storm]:
    words = command("tests.hostile.storm", port, seed, 0)
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Storm(process)
        process.communicate("end\n", timeout=30)
    finally:
        process.kill()
        process.communicate()


def forget_retained(broker: BrokerProcess) -> None:
    """Delete what was retained meanwhile: to be kept is its purpose."""

    async def delete() -> None:
        client = MqttClient("cleaner", keeps=False)
        topics: list[str] = []

        def take(packet: object) -> None:
            if isinstance(packet, Publish):
                topics.append(packet.topic)

        client.on_packet = take
        await client.connect(broker.port)
        await client.subscribe(Subscription("#", 0))
        wanted = await asyncio.to_thread(metric, broker, "retained_messages")
        for _ in range(100):
            await client.ping()
            await asyncio.sleep(0.05)
            if len(topics) >= wanted - 20:  # those that begin with $ are not shown
                break
        for topic in topics:
            await client.publish(topic, b"", qos=0, retain=True)
        await client.ping()
        client.close()
        await client.ended

    run(delete())


def replay(broker: BrokerProcess, folder: Path) -> None:
    """Send what was saved, one connection after the other."""
    for path in sorted(folder.glob("*.mqtt")):
        sock = dial(broker.port)
        sock.sendall(path.read_bytes())
        sock.settimeout(0.2)
        try:
            while sock.recv(65_536):
                pass
        except (TimeoutError, ConnectionError):
            pass
        sock.close()
        trouble = Watch(broker).look()
        assert not trouble, f"{path}:\n{trouble}"


def compare(
    bystanders: Bystanders, phases: list[tuple[bool, float, float]], waited_ms: dict[bool, list[float]]
) -> tuple[float, str]:
    """How many times as long they waited beside mutated packets, p99, and the words for it; adds to `waited_ms`."""
    for mutated in (False, True):
        stretches = [phase[1:] for phase in phases if phase[0] is mutated]
        assert stretches, "the loads were never equal"
        waited_ms[mutated] += bystanders.waits_in(stretches).milliseconds
    valid, others = Waits(waited_ms[False]), Waits(waited_ms[True])
    ratio = others.quantile(0.99) / valid.quantile(0.99)
    return ratio, f"p99 {ratio:.2f} times: beside valid packets {valid}, beside mutated ones {others}; "


def fail_with_conversations(
    blowing: Storm, folder: Path, seed: int, told: dict[str, Any], trouble: str
) -> None:
    """Say what happened, and save what was sent before it."""
    blowing.ask(f"save {folder}")
    pytest.fail(
        f"seed {seed}, conversations before {told['next']}, saved in {folder}: hung {told['hung']}, "
        f"not let in {told['refused']}\n{trouble}"
    )


@pytest.mark.timeout(7200)
def test_mutated_packets_hurt_nobody(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Mutated conversations end the connection at most; others are served meanwhile, and memory does not grow."""
    wanted, seed, saved = (
        request.config.getoption(f"--fuzz-{name}") for name in ("packets", "seed", "replay")
    )
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
        watch = Watch(broker)
        if saved:
            replay(broker, Path(saved))
            return
        before = gauges(broker)
        phases: list[tuple[bool, float, float]] = []
        sent = {False: 0, True: 0}
        waited_ms: dict[bool, list[float]] = {False: [], True: []}
        warm_bytes = warm_packets = 0
        mutations = unequal = 0
        compares = wanted >= COMPARED_PACKETS
        ratio, compared = 0.0, ""
        pace = PACKETS_A_SECOND

        def go_on(until: int) -> None:
            nonlocal mutations, warm_bytes, warm_packets, unequal, pace
            while mutations < until:
                pair: list[tuple[bool, float, float]] = []
                rates: list[float] = []
                for mutated in (False, True):
                    told = blowing.ask(f"{'mutated' if mutated else 'valid'} {PHASE_S} {pace}")
                    trouble = watch.look() or (not broker.is_running and broker.output())
                    if trouble or told["hung"] or told["refused"]:
                        fail_with_conversations(blowing, tmp_path / "conversations", seed, told, str(trouble))
                    pair.append((mutated, told["start_s"], told["end_s"]))
                    rates.append(told["packets"] / (told["end_s"] - told["start_s"]))
                    sent[mutated] += told["packets"]
                    mutations += told["mutations"]
                if compares and min(rates) < (1 - UNEQUAL) * max(rates):
                    unequal += 1
                    pace = max(PACKETS_A_SECOND // 4, int(0.95 * min(rates)))
                else:
                    phases.extend(pair)
                    pace = min(PACKETS_A_SECOND, int(1.1 * pace))
                if not warm_bytes and mutations >= min(WARM_UP_PACKETS, wanted // 2):
                    warm_bytes, warm_packets = resident_bytes(broker), mutations

        with storm(broker.port, seed) as blowing:
            until = wanted
            for _ in range(1 + ROUNDS_MORE if compares else 1):
                with Bystanders(broker.port) as bystanders:
                    go_on(until)
                if not compares:
                    break
                ratio, compared = compare(bystanders, phases, waited_ms)
                if ratio < RATIO_MAX:
                    break
                until += wanted
        forget_retained(broker)
        wait_for_gauges(broker, before)
        grown = resident_bytes(broker) - warm_bytes
        report = (
            f"seed {seed}: {mutations} mutated packets among {sent[True]}, {sent[False]} valid ones\n"
            f"  {len(phases) // 2} pairs of phases with equal loads, {unequal} without, at last {pace} a second\n"
            f"  {compared}memory {warm_bytes / 2**20:.1f} MiB warm, {grown / 2**20:+.1f} MiB since"
        )
        sys.stdout.write(report + "\n")
        assert ratio < RATIO_MAX, report
        once = GROWTH_BYTES_MAX if compares else SHORT_GROWTH_BYTES_MAX
        assert grown < once + GROWTH_A_PACKET_MAX * (mutations - warm_packets), report
        watch.check()
        assert broker.stop() == 0, broker.output()
