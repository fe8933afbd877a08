"""Spark as a client of a Kafka that wants TLS, a certificate and a password: who is let in, and what is told."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from tests.support.certificates import Authority
from tests.support.kafka_gate import KafkaGate, for_java
from tests.support.kafka_server import KafkaServer

from embermq.pipeline.kafka_log import KafkaLog, Mechanism
from embermq.pipeline.sources.kafka_positions import KafkaPositions

SEEN = "correct-horse"
PASSWORD = rf"""q"b\s\\;e%20t'`-{SEEN}-${{1}} #[x]=y&@/:?"""
ABROAD = ("ember, =2C", "žluťoučký kůň €")
"""User and password; Kafka's SCRAM takes letters outside ASCII in passwords alone."""
DELIVERED_S = 30.0
TOPIC = "guarded"


@pytest.fixture(scope="module")
def gate_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module")
def known(gate_folder: Path) -> Iterator[KafkaLog]:
    """A server with one record, which is called 127.0.0.1 and nothing else, and all that it asks for."""
    authority = Authority(gate_folder / "authority")
    gate = KafkaGate(
        username="ember",
        password=PASSWORD,
        certificate=authority.server(hosts=("127.0.0.1",)),
        authority=authority.certificate,
        mutual=True,
    )
    with KafkaServer(gate_folder / "kafka", gate=gate) as server:
        found = KafkaLog(
            bootstrap=server.bootstrap,
            tls=True,
            tls_ca_file=str(authority.certificate),
            tls_cert_file=str(for_java(authority.client(), gate_folder / "own.pem")),
            user="ember",
            password=PASSWORD,
        )
        server.create_topic(TOPIC)
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        other = UserScramCredentialUpsertion(ABROAD[0], scram, ABROAD[1].encode())
        server.admin.alter_user_scram_credentials([other])[ABROAD[0]].result(DELIVERED_S)
        producer = Producer({**found.client_options()})
        producer.produce(TOPIC, b"value")
        assert producer.flush(DELIVERED_S) == 0
        yield found


def values(spark: SparkSession, known: KafkaLog, **changes: object) -> list[bytes]:
    """Of all records, as Spark reads them."""
    options = msgspec.structs.replace(known, **changes).spark_options() | {"fetchOffset.numRetries": "1"}
    found = spark.read.format("kafka").options(**options, subscribe=TOPIC).load()
    return [bytes(row.value) for row in found.select("value").collect()]


def complaint(spark: SparkSession, known: KafkaLog, **changes: object) -> str:
    """All that Spark says, Java's part included; never with the password."""
    with pytest.raises(Py4JJavaError) as refused:
        values(spark, known, **changes)
    told = str(refused.value)
    assert SEEN not in told
    return told


@pytest.mark.promise("pipeline-16")
@pytest.mark.parametrize(
    "mechanism", ["PLAIN", pytest.param("SCRAM-SHA-256", marks=pytest.mark.in_faults), "SCRAM-SHA-512"]
)
def test_who_has_all_that_is_asked_for_may_read(
    spark: SparkSession, known: KafkaLog, mechanism: Mechanism
) -> None:
    assert values(spark, known, mechanism=mechanism) == [b"value"]


def test_a_password_may_have_letters_outside_ascii(spark: SparkSession, known: KafkaLog) -> None:
    user, password = ABROAD
    assert values(spark, known, user=user, password=password) == [b"value"]
    positions = KafkaPositions(msgspec.structs.replace(known, user=user, password=password))
    assert [found.end for found in positions.bounds(TOPIC).values()] == [1]


@pytest.mark.promise("pipeline-16")
def test_a_wrong_password_is_told_and_not_shown(spark: SparkSession, known: KafkaLog) -> None:
    for wrong in (f"wrong-{SEEN}", f'wrong\n{SEEN}" x'):
        assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in complaint(
            spark, known, password=wrong
        )


def test_a_server_of_another_name_or_authority_is_not_spoken_to(
    spark: SparkSession, known: KafkaLog, tmp_path: Path
) -> None:
    other = known.bootstrap.replace("127.0.0.1", "localhost")
    assert "matching localhost found" in complaint(spark, known, bootstrap=other)
    authority = Authority(tmp_path)
    told = complaint(spark, known, tls_ca_file=str(authority.certificate))
    assert "unable to find valid certification path" in told
    own = str(for_java(authority.client(), tmp_path / "own.pem"))
    assert "SSL" in complaint(spark, known, tls_cert_file=own)
