"""What a broker has stored on servers, as files that other servers take up: Kafka's folder, Redis's dump, SQL."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker_process import free_port
from tests.support.forked_program import run_program
from tests.support.kafka_server import KafkaServer, Quorum
from tests.support.redis_server import RedisServer
from tests.support.servers import on_servers
from tests.support.sql_server import SqlServer, program
from tests.support.stored_data import SETTINGS, check, fill, storing_broker

RUN_S = 120
NODE = 1
CLIENTS = ("device",)
"""Logs of applications come by way of Spark."""
PREFIX = "stored"
KAFKA, DUMP, STATIC, DATA = "kafka", "dump.rdb", "static.sql", "data"


def settings_of(kafka: KafkaServer, redis: RedisServer, database: str) -> dict[str, object]:
    """Of a broker whose data does not age."""
    return SETTINGS | on_servers(kafka, redis, PREFIX) | {"stores.static": database}


def words_of(settings: dict[str, object]) -> list[str]:
    """The same for commands."""
    given = {name: value for name, value in settings.items() if name.startswith(("stores.", "kafka."))}
    return [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


def dumped(url: str, file: Path) -> None:
    """A database as SQL, which anybody may load."""
    tool = program("pg_dump", "usr/lib/postgresql/*/bin/pg_dump")
    with file.open("wb") as out:
        words = [tool, "--no-owner", "--no-privileges", url]
        subprocess.run(words, stdout=out, check=True, timeout=RUN_S)


def loaded(server: SqlServer, file: Path) -> str:
    """A new database from such a file."""
    url = server.database()
    tool = program("psql", "usr/lib/postgresql/*/bin/psql")
    subprocess.run([tool, "-q", "-f", file, url], stdout=subprocess.DEVNULL, check=True, timeout=RUN_S)
    return url


def kafka_on(folder: Path) -> KafkaServer:
    """A server for a folder whose `data` another one has left."""
    lines = (folder / "data" / "meta.properties").read_text().splitlines()
    (cluster_id,) = (line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id="))
    return KafkaServer(folder, node_id=NODE, quorum=Quorum(cluster_id, {NODE: free_port()}))


def store_on_servers(folder: Path, postgres: SqlServer, saved: Path) -> None:
    """One of each thing, in servers that nobody has any more; their files are in `saved`."""
    saved.mkdir()
    database = postgres.database()
    with (
        KafkaServer(folder / "kafka", node_id=NODE) as kafka,
        RedisServer(folder / "redis", appendonly=False) as redis,
    ):
        settings = settings_of(kafka, redis, database)
        words = words_of(settings)
        with storing_broker(folder / "data", folder, settings) as broker:
            fill(broker, *words, clients=CLIENTS)
            broker.stop()
        redis.ask("SAVE")
        shutil.copy(redis.folder / DUMP, saved)
        dumped(database, saved / STATIC)
        run_program("backup", saved / DATA, "--data-dir", folder / "data", *words).check_returncode()
        kafka.stop()
        shutil.copytree(kafka.folder / "data", saved / KAFKA)


@contextmanager
def taken_up(saved: Path, folder: Path, postgres: SqlServer) -> Iterator[dict[str, object]]:
    """Servers that have what is in `saved`, and the settings for a broker in `folder`, whose data directory is
    restored."""
    kafka_folder, redis_folder = folder / "kafka", folder / "redis"
    shutil.copytree(saved / KAFKA, kafka_folder / "data")
    redis_folder.mkdir()
    shutil.copy(saved / DUMP, redis_folder)
    run_program("restore", saved / DATA, "--data-dir", folder / "data").check_returncode()
    with kafka_on(kafka_folder) as kafka, RedisServer(redis_folder, appendonly=False) as redis:
        yield settings_of(kafka, redis, loaded(postgres, saved / STATIC))


def check_servers(folder: Path, settings: dict[str, object]) -> None:
    """All that was stored is there, once and in order."""
    words: Sequence[str] = words_of(settings)
    with storing_broker(folder / "data", folder, settings) as broker:
        check(broker, *words, clients=CLIENTS)
        broker.stop()
