"""kill -9 of an import into Kafka and Redis at random moments: given again it goes on, clients find all of it once."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.support.broker_process import EMBERMQ, BrokerProcess
from tests.support.grown_broker import SETTINGS, Clients
from tests.support.kafka_dispatcher import KafkaDispatcher
from tests.support.kafka_server import KafkaServer
from tests.support.mqtt_client import run
from tests.support.played_pipeline import PlayedPipeline
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.waiting import wait_until

KILLS = 5
KEYS = 60
"""About so many keys Redis has at the end."""
LATER_S = 2.0
IMPORT_S = 300.0


def killed(words: list[str], redis: RedisServer, random: Random) -> None:
    """At some number of keys that Redis has, or some time after its first."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    keys, later_s = random.choice(((random.randint(1, KEYS), 0.0), (1, random.uniform(0, LATER_S))))
    wait_until(lambda: process.poll() is not None or redis.ask("DBSIZE") >= keys, IMPORT_S, f"{keys} keys")
    with suppress(subprocess.TimeoutExpired):
        process.wait(later_s)
    process.kill()
    process.wait()


@pytest.mark.in_faults
@pytest.mark.promise("cluster-24")
def test_an_import_that_is_killed_goes_on(
    kafka: KafkaServer, redis_server: RedisServer, tmp_path: Path, seed: int
) -> None:
    random, clients = Random(seed), Clients()
    source, servers = tmp_path / "embedded", on_servers(kafka, redis_server)
    with BrokerProcess(source, settings=SETTINGS) as embedded:
        with PlayedPipeline(source):
            run(clients.before(embedded))
        run(clients.left(embedded))
        run(clients.killed(embedded))
    grown = BrokerProcess(tmp_path / "grown", settings=servers | SETTINGS)
    given = [word for name, value in grown.settings.items() for word in ("--set", f"{name}={value}")]
    words = [str(EMBERMQ), "import-embedded", str(source), "--data-dir", str(grown.data_dir), *given]
    for _ in range(KILLS):
        killed(words, redis_server, random)
    last = subprocess.run(words, capture_output=True, text=True, check=False)
    assert last.returncode == 0 or "was imported into" in last.stderr, last.stderr
    with grown, KafkaDispatcher(kafka, str(servers["kafka.prefix"])):
        run(clients.after(grown))
