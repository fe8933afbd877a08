"""URLs of Kafka, and its settings: what is read, what is refused, and that no refusal shows a password."""

from __future__ import annotations

import re

import msgspec
import pytest

from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings, check_settings, parse_address
from embermq.adapters.kafka.client import client_options
from embermq.ports.store_node import Node
from embermq.ports.store_url import without_password


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("kafka://here", KafkaAddress((Node("here", 9092),))),
        ("kafka://a:1,[::1]:2,c/", KafkaAddress((Node("a", 1), Node("::1", 2), Node("c", 9092)))),
        ("kafka+ssl://a", KafkaAddress((Node("a", 9092),), tls=True)),
        ("kafka://em%2Fber:p%40ss:w@a,b:7", KafkaAddress((Node("a", 9092), Node("b", 7)), False, "em/ber", "p@ss:w")),
    ],
)  # fmt: skip
def test_what_a_url_means(url: str, address: KafkaAddress) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "begins with no known scheme"),
        ("redis://here", "begins with redis, not with one of kafka://, kafka+ssl://"),
        ("kafka://", "server 1 is no host:port"),
        ("kafka://a,,b", "server 2 is no host:port"),
        ("kafka://a,a:9092", "names a server twice"),
        ("kafka://ember:secret", "server 1 has a port that is not a number from 1 to 65535"),
        ("kafka://here/secret", "has something behind a '/'; what topics begin with is set by kafka.prefix"),
        (
            "kafka://here?acks=secret",
            "has an option behind the '?' that is none of ca_file, cert_file, ",
        ),
        (
            "kafka://u:p@here?sasl_mechanism=GSSAPI",
            "has a sasl_mechanism that is none of PLAIN, SCRAM-SHA-256, ",
        ),
        ("kafka://u:p@here?sasl_mechanism", "has the option sasl_mechanism without a value"),
        ("kafka+ssl://h?ca_file=a&ca_file=b", "has the option ca_file twice"),
        ("kafka://here?ca_file=a", "has the option ca_file, which is for kafka+ssl://"),
        ("kafka+ssl://here?ca_file=/se@cret", "has a '?' before the '@'; in passwords write %3F"),
        (
            "kafka://here?password_file=a",
            "has a password without a user; write user:password@, or user@ and ",
        ),
        ("kafka://u:sec/ret@here", "has a '/' before the '@'; in passwords write %2F"),
        ("kafka://:secret@here", "has a password without a user; write user:password@, or"),
    ],
)
def test_what_is_no_url_is_refused_without_showing_a_password(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as refused:
        parse_address(url)
    assert "secret" not in str(refused.value) and "ret@" not in str(refused.value)


def test_nothing_that_is_shown_has_the_password() -> None:
    url = "kafka+ssl://ember:secret@a:1,b"
    address = parse_address(url)
    assert str(address) == "kafka+ssl://a:1,b:9092"
    assert "secret" not in repr(address) + without_password(url)


OPTIONS = "sasl_mechanism=PLAIN&ca_file=/e/ca.pem&cert_file=own%40home.pem"


def test_security_follows_the_url() -> None:
    plain = client_options(parse_address("kafka://a"))
    assert (plain["security.protocol"], "sasl.mechanism" in plain, "ssl.ca.location" in plain) == (
        "PLAINTEXT",
        False,
        False,
    )
    full = client_options(parse_address(f"kafka+ssl://u:p@a,b:1?{OPTIONS}"))
    assert full["security.protocol"] == "SASL_SSL"
    assert (full["sasl.mechanism"], full["sasl.username"], full["sasl.password"]) == ("PLAIN", "u", "p")
    assert (full["ssl.ca.location"], full["ssl.certificate.location"]) == ("/e/ca.pem", "own@home.pem")
    assert full["bootstrap.servers"] == "a:9092,b:1"
    assert client_options(parse_address("kafka://u:p@a"))["security.protocol"] == "SASL_PLAINTEXT"


@pytest.mark.parametrize(
    "setting",
    [
        {"prefix": ""},
        {"prefix": "a b"},
        {"prefix": "x" * 161},
        {"partitions": 0},
        {"partitions": 10_001},
        {"replication_factor": -1},
        {"request_timeout_s": 0.5},
        {"partition": 4},
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(setting: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(setting))):
        msgspec.convert(setting, KafkaSettings)


def test_settings_that_contradict_one_another_are_refused_by_name() -> None:
    check_settings(KafkaSettings())
    check_settings(KafkaSettings(replication_factor=3, min_insync_replicas=2))
    with pytest.raises(ValueError, match=r"kafka\.min_insync_replicas: 3.*kafka\.replication_factor, 2"):
        check_settings(KafkaSettings(replication_factor=2, min_insync_replicas=3))
    with pytest.raises(ValueError, match=r"kafka\.prefix"):
        check_settings(KafkaSettings(prefix=".."))
