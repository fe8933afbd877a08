"""Who is let in by a Kafka that asks for a password, TLS or a certificate, and that no complaint shows the password."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.support.certificates import Authority
from tests.support.kafka_gate import KafkaGate
from tests.support.kafka_server import KafkaServer

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.client import WatchedAdmin, client_options
from embermq.ports.errors import StoreUnavailable

PASSWORD = "correct-horse/battery@staple"
WRONG = "wrong-horse"
DELIVERED_S = 60.0
PATIENCE_S = 3.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[KafkaServer]:
    """A server that wants TLS, a certificate and a password."""
    gate = KafkaGate(
        username="ember",
        password=PASSWORD,
        certificate=authority.server(hosts=("127.0.0.1",)),
        authority=authority.certificate,
        mutual=True,
    )
    with KafkaServer(tmp_path_factory.mktemp("guarded"), gate=gate) as server:
        yield server


@pytest.fixture
def url(guarded: KafkaServer, authority: Authority) -> str:
    """With all that is asked for."""
    return f"{guarded.url}?ca_file={authority.certificate}&cert_file={authority.client()}"


@pytest.mark.parametrize(
    "mechanism", ["PLAIN", pytest.param("SCRAM-SHA-256", marks=pytest.mark.in_faults), "SCRAM-SHA-512"]
)
def test_who_has_all_that_is_asked_for_may_produce(guarded: KafkaServer, url: str, mechanism: str) -> None:
    address = parse_address(f"{url}&sasl_mechanism={mechanism}")
    settings = KafkaSettings(request_timeout_s=DELIVERED_S / 3)
    WatchedAdmin(address, settings).wait()
    topic = f"{guarded.prefix()}.topic"
    guarded.create_topic(topic)
    reports: list[object] = []
    producer = Producer(client_options(address))
    producer.produce(topic, b"value", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(DELIVERED_S) == 0
    assert reports == [None]


def test_whose_password_is_wrong_is_told_so(
    guarded: KafkaServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        wrong = url.replace("correct-horse", WRONG)
        told = complaint(f"{wrong}&sasl_mechanism={mechanism}", "authentication")
        assert told.startswith(f"kafka+ssl://{guarded.bootstrap}: no answer in ")
        assert "authentication" in told.lower()
        assert WRONG not in told and WRONG not in caplog.text


def test_who_shows_no_certificate_or_trusts_another_authority_is_told_so(
    guarded: KafkaServer, url: str, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    trusted, ours = f"ca_file={authority.certificate}", f"cert_file={authority.client()}"
    for wrong in (
        trusted,
        f"ca_file={other.certificate}&{ours}",
        f"{trusted}&cert_file={other.client()}",
    ):
        assert "ssl" in complaint(f"{guarded.url}?{wrong}").lower()
    assert f"no answer in {PATIENCE_S:g} s" in complaint(guarded.url.replace("kafka+ssl", "kafka"))


def test_a_server_whose_certificate_has_another_name_is_not_spoken_to(url: str) -> None:
    wanted = "certificate verify failed"
    assert wanted in complaint(url.replace("127.0.0.1", "localhost"), wanted)


def complaint(url: str, wanted: str = "") -> str:
    """What is said at a start; never with the password. Kafka gets more time while it has not said what is wanted."""
    for more in (1, 4, 12):
        patient = KafkaSettings(request_timeout_s=more * PATIENCE_S / 3)
        with pytest.raises(StoreUnavailable) as refused:
            WatchedAdmin(parse_address(url), patient).wait()
        told = str(refused.value)
        assert PASSWORD not in told and "battery" not in told
        if wanted in told.lower():
            break
    return told
