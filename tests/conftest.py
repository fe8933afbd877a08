"""What every test shares: families by folder, the promises that tests name, how hard Hypothesis tries."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import tests.support.uncompiled  # noqa: F401  # before anything of EmberMQ
from tests.support.costs import Costs
from tests.support.etcd_server import EtcdServer
from tests.support.measuring import is_judged
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer
from tests.support.resting import at_rest_between, let_rest
from tests.support.seeds import choose_seed, give_seeds, seed_line
from tests.support.spark_classes import fast_start
from tests.support.together import FilesTogether, together

if TYPE_CHECKING:
    from tests.support.kafka_server import KafkaCluster, KafkaServer
    from tests.support.sql_server import SqlServer

TESTS = Path(__file__).parent
LONGEST_FIRST = (
    "kafka_pipeline",
    "pipeline",
    "faults",
    "e2e",
    "conformance",
    "integration",
    "hostile",
    "stores",
    "queues",
)
"""Families in the order in which workers take their files; what is quick fills the end, so that all end together."""
PROMISE_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*-\d+[a-z]?")

# The machine's load must not make a property fail, so there is no deadline a case; the fuzz profile is `make fuzz`.
hypothesis.settings.register_profile("default", deadline=None, max_examples=30)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=20_000)
hypothesis.settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long, and from which seeds, `tests/hostile/test_fuzz.py` and `tests/simulation/test_seeds.py` go on."""
    fuzz = parser.getgroup("fuzz", "mutated packets")
    fuzz.addoption("--fuzz-packets", type=int, default=3_000, help="how many mutated packets (3000)")
    fuzz.addoption("--fuzz-seed", type=int, default=1, help="which ones (1)")
    fuzz.addoption("--fuzz-replay", default="", metavar="FOLDER", help="send what a failure saved there")
    simulation = parser.getgroup("simulation", "brokers in one process")
    simulation.addoption("--seeds", type=int, default=20, help="how many seeds (20)")
    simulation.addoption("--cluster-seeds", type=int, default=10, help="how many of several slots (10)")
    simulation.addoption("--first-seed", type=int, default=1, help="the first of them (1)")
    parser.addoption(
        "--two-nodes", action="store_true", help="conformance through two nodes of a cluster, in turn"
    )
    parser.addoption(
        "--costs", default="", metavar="FILE", help="write wall and CPU seconds of each test to it"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Settings of the person who runs the tests must not reach the brokers that the tests start, and Java is to start
    fast."""
    for variable in [name for name in os.environ if name.startswith("EMBERMQ_")]:
        del os.environ[variable]
    os.environ |= fast_start()
    choose_seed()
    if costs := config.getoption("--costs"):
        config.pluginmanager.register(Costs(costs))


def pytest_report_header() -> str:
    """What is needed to run the same again."""
    return seed_line()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what failed at first: such a test is a defect, or has found one."""
    repeated = terminalreporter.stats.get("rerun", [])
    if repeated:
        terminalreporter.section("failed at first: to be repaired before anything else")
        for report in repeated:
            terminalreporter.write_line(f"{report.nodeid} ({report.when})")
            terminalreporter.write_line(report.longreprtext)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    give_seeds(metafunc)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its family, the folder below tests/, and refuse a promise that is not well named. What is
    marked `in_faults` is left to `make faults`, which tells the number of rounds, `in_perf` to `make perf`."""
    for item in items:
        if family := _family(item.path):
            item.add_marker(family)
        for mark in item.iter_markers("promise"):
            for promise in mark.args:
                if not (isinstance(promise, str) and PROMISE_ID.fullmatch(promise)):
                    raise pytest.UsageError(
                        f"{item.nodeid}: {promise!r} is not the id of a promise, like queues-17"
                    )
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        (kept if _runs(item) else left).append(item)
    items[:] = sorted(kept, key=_turn)
    config.hook.pytest_deselected(items=left)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What tests are made of stays: Python looking through it for garbage, again and again, is a third of what it costs
    each worker to collect them, and afterwards it does not look there any more."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Of `--dist loadfile`."""
    return FilesTogether(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """With the last test of a file, whatever it shares is gone, but for the nodes of `--two-nodes`."""
    if nextitem is not None and _unit(item) != _unit(nextitem) and not item.config.getoption("--two-nodes"):
        let_rest()


def _unit(item: pytest.Item) -> str:
    return together(item.nodeid.partition("::")[0])


@cache
def _family(path: Path) -> str:
    """The folder below tests/; "" for a test from elsewhere. Asked of every test, so it is worked out once a file."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""


def _turn(item: pytest.Item) -> int:
    family = _family(item.path)
    return LONGEST_FIRST.index(family) if family in LONGEST_FIRST else len(LONGEST_FIRST)


def _runs(item: pytest.Item) -> bool:
    """Whether this run is the one that it was marked for."""
    if is_judged():
        return any(item.get_closest_marker(mark) for mark in ("in_perf", "perf"))
    left = ["in_perf"] if "FAULT_ROUNDS" in os.environ else ["in_perf", "in_faults"]
    return not any(item.get_closest_marker(mark) for mark in left)


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests, which take it as `redis_server`."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(running_redis: RedisServer) -> RedisServer:
    """Redis with an append-only file (everysec), empty; a test may kill, stop or pause it and leave it so."""
    running_redis.heal()
    running_redis.flush()
    return running_redis


@pytest.fixture(scope="module")
def module_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server of the module's own, for a broker that its tests share; `redis_server` is emptied before each test."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def running_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One server for all tests, which take it as `etcd`."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server, at_rest_between(server):
        yield server


@pytest.fixture
def etcd(running_etcd: EtcdServer) -> EtcdServer:
    """An empty etcd; a test may kill or pause it and leave it so."""
    running_etcd.heal()
    running_etcd.control("del", "", "--prefix")
    return running_etcd


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """One cluster for all tests, which take it as `redis_cluster`."""
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(running_cluster: RedisCluster) -> RedisCluster:
    """Three masters and three replicas, empty; a test may kill a master or move slots and leave it so."""
    running_cluster.heal()
    running_cluster.flush()
    return running_cluster


@pytest.fixture(scope="session")
def running_postgres() -> Iterator[SqlServer]:
    """One server for all tests, which take it as `postgres`."""
    from tests.support.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def running_mariadb() -> Iterator[SqlServer]:
    """One server for all tests, which take it as `mariadb`."""
    from tests.support.mariadb import MariadbServer

    with MariadbServer() as server:
        yield server


@pytest.fixture
def postgres(running_postgres: SqlServer) -> SqlServer:
    """PostgreSQL; ask it for a database of your own. A test may kill, stop or pause it and leave it so."""
    running_postgres.heal()
    return running_postgres


@pytest.fixture
def mariadb(running_mariadb: SqlServer) -> SqlServer:
    """MariaDB, likewise."""
    running_mariadb.heal()
    return running_mariadb


@pytest.fixture(params=["postgres", "mariadb"])
def sql_server(request: pytest.FixtureRequest) -> SqlServer:
    """One after the other."""
    server: SqlServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def sql_url(sql_server: SqlServer) -> Iterator[str]:
    """The URL of a database of the test's own on each of them."""
    url = sql_server.database()
    yield url
    sql_server.heal()
    sql_server.drop(url)


@pytest.fixture(scope="session")
def running_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One server for all tests, which take it as `kafka`."""
    from tests.support.kafka_server import KafkaServer

    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server, at_rest_between(server):
        yield server


@pytest.fixture
def kafka(running_kafka: KafkaServer) -> KafkaServer:
    """Kafka with what other tests have left in it: put `prefix()` in front of names. May be killed and left so."""
    running_kafka.heal()
    return running_kafka


@pytest.fixture(scope="module")
def running_kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One cluster for the tests of a module, which take it as `kafka_cluster`: few do, and three nodes that idle take a
    tenth of a core."""
    from tests.support.kafka_server import KafkaCluster

    with KafkaCluster(tmp_path_factory.mktemp("kafka-cluster")) as cluster:
        yield cluster


@pytest.fixture
def kafka_cluster(running_kafka_cluster: KafkaCluster) -> KafkaCluster:
    """Three nodes, likewise; a topic has a copy on each and takes records while two have them."""
    running_kafka_cluster.heal()
    return running_kafka_cluster


@pytest.fixture
def servers(kafka: KafkaServer, redis_server: RedisServer) -> dict[str, object]:
    """Settings of a broker on servers: on the shared Kafka under a prefix of its own, and the shared Redis, empty."""
    from tests.support.servers import on_servers

    return on_servers(kafka, redis_server)
