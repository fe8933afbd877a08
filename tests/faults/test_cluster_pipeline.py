"""Several nodes, each with the pipeline of its slot: applications get what clients of all slots publish."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import deltalake
import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from tests.faults.cluster import (
    SLOTS,
    all_is_taken,
    cluster_fleet,
    id_of,
    join_again,
    lose_one,
    nodes,
    serves_anew,
    starts,
)
from tests.faults.fleet import V5, V311, Fleet
from tests.faults.test_cluster_queues import depth_of
from tests.faults.traffic import number_of
from tests.support.broker_process import BrokerProcess
from tests.support.etcd_server import EtcdServer
from tests.support.forked_program import run_program
from tests.support.mqtt_client import MqttClient, run
from tests.support.seaweed import BUCKET, KEY, SECRET, SeaweedServer
from tests.support.sql_server import SqlServer
from tests.support.waiting import wait_for

from embermq.adapters.sql.tables import make_tables
from embermq.app.slots import slot_prefix
from embermq.cluster.slots import slot_of, slot_of_queue
from embermq.database.database_url import SqlSettings, parse_url
from embermq.formats.message_table import SERVER_MESSAGES
from embermq.mqtt.wire.packets import Subscription

OWN: dict[str, object] = {
    "clients.application_ids": json.dumps(["app*"]),
    "pipeline.queries": json.dumps(["dispatch"]),
}
SPARK_S = 240.0
"""From nothing to the first message; a busy machine takes several times the usual ten seconds."""
KEPT_S = 86_400
AWAY, THERE = 30, 10
"""Messages of each publisher while the application is away, and while it is there."""
KILLS = 2
MESSAGES = 250


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SeaweedServer]:
    """With its keys in the environment of what is started."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with SeaweedServer(tmp_path / "storage") as server:
        yield server


@pytest.fixture
def stores(postgres: SqlServer, storage: SeaweedServer) -> tuple[SqlServer, SeaweedServer]:
    """Of archive and lake."""
    return postgres, storage


def in_storage(storage: SeaweedServer) -> dict[str, object]:
    return {"pipeline.lake_dir": f"s3a://{BUCKET}/lake", "pipeline.lake_s3_endpoint": storage.endpoint}


def application_of(slot: int) -> str:
    """A client id of this slot, without a character that would hide it in the name of its log."""
    return next(each for number in range(1_000) if slot_of(each := f"app{number}", SLOTS) == slot)


def query(node: BrokerProcess, name: str) -> dict[str, object]:
    """What status has of one query; {} before it has any."""
    answer = httpx.get(f"http://127.0.0.1:{node.http_port}/api/v1/pipeline", timeout=30)
    return next((each for each in answer.raise_for_status().json()["queries"] if each["name"] == name), {})


def records(servers: dict[str, object], topic: str) -> int:
    """How many stand in a topic of one partition, 0 while it is not there."""
    address = str(servers["stores.log"]).removeprefix("kafka://")
    consumer = Consumer({"bootstrap.servers": address, "group.id": "tests", "log_level": 0})
    try:
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    except KafkaException:
        return 0
    finally:
        consumer.close()
    return end - first


async def publish(publishers: list[MqttClient], first: int, count: int) -> None:
    """Odd numbers with QoS 1, even ones with QoS 2."""
    for number in range(first, first + count):
        for home, publisher in enumerate(publishers):
            assert await publisher.publish(f"cars/{home}", b"%d" % number, qos=2 - number % 2) < 0x80


def came(client: MqttClient) -> dict[str, list[int]]:
    """By topic, as it came."""
    return {
        topic: [int(each.payload) for each in client.messages if each.topic == topic]
        for topic in sorted({each.topic for each in client.messages})
    }


def by_qos(client: MqttClient) -> dict[tuple[str, int], list[int]]:
    """By topic and QoS, as it came. Each of these has an order: what is sent with QoS 2 is stored before, and QoS 1 may
    overtake it. What came of QoS 1 again is left out."""
    found: dict[tuple[str, int], list[int]] = {}
    for each in client.messages:
        numbers, number = found.setdefault((each.topic, each.qos), []), int(each.payload)
        if each.qos == 2 or number not in numbers:
            numbers.append(number)
    return found


def differences(readers: list[MqttClient], wanted: dict[tuple[str, int], list[int]]) -> str:
    """What each has not as it is wanted, in words; "" for nothing."""
    found: list[str] = []
    for reader in readers:
        has = by_qos(reader)
        wrong = [of for of in sorted(has.keys() | wanted.keys()) if has.get(of) != wanted.get(of)]
        found += [f"{reader.client_id} of {of}: {has.get(of)}" for of in wrong]
    return "; ".join(found)


@pytest.mark.in_faults
@pytest.mark.promise("cluster-21")
def test_an_application_gets_once_and_in_order_what_clients_of_all_slots_publish(
    etcd: EtcdServer, servers: dict[str, object], tmp_path: Path
) -> None:
    """Away, by dispatch of its slot, which reads copies; there, by the log's tail. The other node starts no Java."""
    prefix, application = str(servers["kafka.prefix"]), application_of(1)
    log = f"{prefix}.slot-1.msg.app.{application}"

    async def comes(by: BrokerProcess) -> MqttClient:
        client = MqttClient(application)
        await client.connect(by.port, clean_start=False, expiry_s=KEPT_S)
        return client

    async def scenario(found: list[BrokerProcess]) -> None:
        client = await comes(found[0])
        await client.subscribe(Subscription("cars/#", 2))
        client.abort()
        publishers = [MqttClient(id_of(home, "car")) for home in range(SLOTS)]
        for home, publisher in enumerate(publishers):
            await publisher.connect(found[1 - home].port)
        await publish(publishers, 0, AWAY)
        await wait_for(lambda: records(servers, log) == SLOTS * AWAY, SPARK_S, "all is in its log")
        client = await comes(found[0])
        all_away = {f"cars/{home}": list(range(AWAY)) for home in range(SLOTS)}
        await wait_for(lambda: came(client) == all_away, SPARK_S, "what came while it was away")
        await publish(publishers, AWAY, THERE)
        everything = {f"cars/{home}": list(range(AWAY + THERE)) for home in range(SLOTS)}
        await wait_for(lambda: came(client) == everything, SPARK_S, "what came while it was there")
        await wait_for(lambda: query(found[1], "dispatch").get("lag_messages") == 0, SPARK_S, "all is done")
        await wait_for(lambda: query(found[1], "dispatch")["state"] == "running", SPARK_S, "it says so")
        assert came(client) == everything

    with nodes(etcd, servers | OWN, tmp_path, pipeline=True) as found:
        run(scenario(found), 600)
        zero, one = (told_by_command(each) for each in found)
        assert [each["state"] for each in zero["queries"]] == ["down"] and zero["state"] == "waiting"
        (dispatch,) = one["queries"]
        assert dispatch["state"] == "running"
        assert sum(dispatch["positions"].values()) >= SLOTS * (AWAY + THERE)
        for each in found:
            assert each.stop() == 0
            assert "Traceback" not in each.output()


WORK = next(each for number in range(1_000) if slot_of_queue(each := f"work-{number}", SLOTS) == 1)
RULES: dict[str, object] = {
    "rules.all.sql": "SELECT concat('all/', topic) AS topic, payload FROM messages WHERE topic LIKE 'cars/%'",
    "rules.all.qos": 2,
    "rules.work.sql": "SELECT topic AS payload FROM messages WHERE topic LIKE 'cars/%'",
    "rules.work.to": "queue",
    "rules.work.queue": WORK,
    "rules.rows.sql": "SELECT topic, int(payload) AS number FROM messages WHERE topic LIKE 'cars/%'",
    "rules.rows.to": "sql",
    "rules.rows.table": "cars",
    "rules.kept.sql": "SELECT topic, int(payload) AS number FROM messages WHERE topic LIKE 'cars/%'",
    "rules.kept.to": "lake",
}


def has_rules(node: BrokerProcess) -> bool:
    """Whether all of them run at it."""
    return all(runs(node, f"rule:{name}") for name in ("all", "work", "rows", "kept"))


@pytest.mark.promise("cluster-21")
@pytest.mark.in_faults
@pytest.mark.timeout(2_400)
def test_rules_see_once_what_clients_of_all_slots_publish_also_when_a_node_is_killed(
    etcd: EtcdServer,
    servers: dict[str, object],
    stores: tuple[SqlServer, SeaweedServer],
    tmp_path: Path,
) -> None:
    """Messages that are copied into the log of the other slot, for a reader there; a queue that the other slot has."""
    postgres, storage = stores
    database = postgres.database()
    name = database.rpartition("/")[2]
    postgres.execute(
        "CREATE TABLE cars (ember_id VARCHAR(200) PRIMARY KEY, topic TEXT, number INT)", database=name
    )
    (tmp_path / "url").write_text(database)
    settings = RULES | {"rules.rows.url_file": str(tmp_path / "url")} | in_storage(storage)
    topics = [f"{rule}cars/{home}" for rule in ("", "all/") for home in range(SLOTS)]

    async def scenario(found: list[BrokerProcess]) -> None:
        zero, one, spare = found
        readers = [MqttClient(id_of(home, "reads")) for home in range(SLOTS)]
        for reader in readers:
            await reader.connect(one.port, clean_start=False, expiry_s=KEPT_S)
            await reader.subscribe(*(Subscription(topic, 2) for topic in topics))
        readers[0].abort()
        for each in (zero, one):
            await wait_for(partial(has_rules, each), 2 * SPARK_S, "rules run")
        publishers = [MqttClient(id_of(home, "car")) for home in range(SLOTS)]
        for publisher in publishers:
            await publisher.connect(one.port)
        await publish(publishers, 0, AWAY)
        before = starts(spare)
        zero.kill()
        await wait_for(partial(serves_anew, spare, before), SPARK_S, "the spare serves")
        publishers[0] = MqttClient(id_of(0, "car"))
        await publishers[0].connect(spare.port)
        await publish(publishers, AWAY, THERE)
        readers[0] = MqttClient(id_of(0, "reads"))
        await readers[0].connect(spare.port, clean_start=False, expiry_s=KEPT_S)
        last = AWAY + THERE
        everything = {
            (f"cars/{home}", qos): list(range(qos % 2, last, 2)) for home in range(SLOTS) for qos in (1, 2)
        }
        everything |= {(f"all/cars/{home}", 2): list(range(last)) for home in range(SLOTS)}

        def left() -> str:
            return differences(readers, everything)

        await wait_for(partial(has_rules, spare), 3 * SPARK_S, "rules run there")
        await wait_for(lambda: not left(), 2 * SPARK_S, left)
        wanted = sorted((f"cars/{home}", number) for home in range(SLOTS) for number in range(AWAY + THERE))

        def is_there() -> bool:
            rows = postgres.execute("SELECT topic, number FROM cars ORDER BY 1, 2", database=name)
            kept = sorted(rows_in(storage, "lake-rules/kept", "topic", "number"))
            return rows == wanted == kept and depth_of(one, WORK) == len(wanted)

        await wait_for(is_there, SPARK_S, "rows and messages of the queue are there")
        assert not left(), "and nothing twice"

    with nodes(etcd, servers | OWN | settings, tmp_path, spare=True, pipeline=True, queues={}) as found:
        run(scenario(found), 2_300)
    postgres.drop(database)


def runs(node: BrokerProcess, name: str) -> bool:
    return query(node, name).get("state") == "running"


def application_logs(servers: dict[str, object]) -> list[str]:
    """Of the applications of both slots."""
    prefix = str(servers["kafka.prefix"])
    return [f"{slot_prefix(prefix, slot)}.msg.app.{application_of(slot)}" for slot in range(SLOTS)]


def has_no_spark(node: BrokerProcess) -> bool:
    return not node.descendants()


def told_by_command(node: BrokerProcess) -> dict[str, Any]:
    """`embermq pipeline status` on the data directory of a node."""
    given = [word for key, value in node.settings.items() for word in ("--set", f"{key}={value}")]
    done = run_program("pipeline", "status", "--json", "--data-dir", node.data_dir, *given)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.promise("cluster-21")
@pytest.mark.in_faults
@pytest.mark.timeout(1_000)
def test_applications_of_all_slots_archive_lake_and_traffic_get_all_once_when_nodes_are_killed_or_stand_still(
    seed: int,
    etcd: EtcdServer,
    servers: dict[str, object],
    stores: tuple[SqlServer, SeaweedServer],
    tmp_path: Path,
) -> None:
    """The driver of a node that stands still goes on beside the one of the slot's next node."""
    postgres, storage = stores
    random, database = Random(seed), postgres.database()
    make_tables(parse_url(database), SqlSettings())
    archived = in_storage(storage) | {"stores.static": database}
    archived["pipeline.queries"] = json.dumps(["dispatch", "archive", "lake", "traffic"])

    async def scenario(found: list[BrokerProcess]) -> None:
        fleet = cluster_fleet(found, random)
        fleet.subscriber(application_of(0), V5, restless_s=2.0)
        fleet.subscriber(application_of(1), V311)
        await fleet.start_subscribers()
        fleet.start_publishers()
        for number in range(KILLS):
            fleet.allow(MESSAGES)
            await asyncio.sleep(random.uniform(0.02, 5.0 * number + 0.5))
            lost = await lose_one(found, random, SPARK_S)
            await wait_for(partial(has_no_spark, lost), SPARK_S, "its Spark has ended")
            join_again(found, lost)
            fleet.check()
        await all_is_taken(fleet, SPARK_S)
        for each in found[:SLOTS]:  # or nobody could tell what did not come from what Java has not begun with
            await wait_for(partial(runs, each, "dispatch"), 2 * SPARK_S, "dispatch runs")
        await fleet.drain(SPARK_S)
        await fleet.stop()
        assert fleet.acknowledged() == len(fleet.publishers) * KILLS * MESSAGES
        try:
            fleet.judge()
        except AssertionError as error:
            logs = {log: records(servers, log) for log in application_logs(servers)}
            said = [query(each, "dispatch") for each in found[:SLOTS]]
            raise AssertionError(f"{error}; in the logs of both: {logs}; dispatch says: {said}") from None
        await wait_for(partial(is_archived, fleet, postgres, database), SPARK_S, "the archive has everything")
        await wait_for(partial(is_in_lake, fleet, storage), SPARK_S, "the lake has everything")
        await wait_for(lambda: traffic_in(storage) == lake_by_root(storage), SPARK_S, "traffic is the lake's")

    with nodes(etcd, servers | OWN | archived, tmp_path, spare=True, pipeline=True) as found:
        run(scenario(found), 900)
    postgres.drop(database)


def is_archived(fleet: Fleet, postgres: SqlServer, database: str) -> bool:
    """Whether all is there that was acknowledged. Raises AssertionError for a message of QoS 2 that is there twice: the
    copy of another slot, or written by two drivers."""
    statement = f"SELECT topic, payload FROM {SERVER_MESSAGES}"
    rows: list[tuple[Any, ...]] = postgres.execute(statement, database=database.rpartition("/")[2])
    return has_all_once(fleet, rows)


def is_in_lake(fleet: Fleet, storage: SeaweedServer) -> bool:
    """The same of the table that all slots have."""
    return has_all_once(fleet, rows_in(storage, "lake", "topic", "payload"))


def traffic_in(storage: SeaweedServer) -> Counter[str]:
    """Messages by first topic level, added up over the windows of all slots."""
    found: Counter[str] = Counter()
    for root, messages, late in rows_in(storage, "lake-traffic", "root", "messages", "late"):
        found[root] += messages + late
    return +found


def lake_by_root(storage: SeaweedServer) -> Counter[str]:
    return Counter(str(root) for (root,) in rows_in(storage, "lake", "root"))


def rows_in(storage: SeaweedServer, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Of a table there; [] while it is not."""
    try:
        found = deltalake.DeltaTable(f"s3://{BUCKET}/{table}", storage_options=storage.options())
    except deltalake.exceptions.TableNotFoundError:
        return []
    rows = found.to_pyarrow_table(columns=list(columns)).to_pylist()
    return [tuple(row[name] for name in columns) for row in rows]


def has_all_once(fleet: Fleet, rows: Iterable[tuple[Any, ...]]) -> bool:
    found = Counter((str(topic), number_of(bytes(payload))) for topic, payload in rows)
    for publisher in fleet.publishers:
        if publisher.qos == 2:
            doubled = [key for key in found if key[0] in publisher.topics and found[key] > 1]
            assert not doubled, f"{publisher.client_id}: {doubled[:5]}"
    return all(publisher.acknowledged <= found.keys() for publisher in fleet.publishers)
