"""What the driver is told of a log in Kafka: options for both kinds of client, what is refused, how lags are dated."""

import threading

import msgspec
import pytest

from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.kafka_lags import KafkaLags, Lag
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.log_look import Bounds
from embermq.pipeline.settings import DriverSettings, check_settings
from embermq.pipeline.sources import kafka_positions
from embermq.pipeline.sources.kafka_positions import KafkaPositions

SECURE = KafkaLog(
    bootstrap="one:9093,two:9093",
    prefix="mq",
    tls=True,
    tls_ca_file="/ca.pem",
    tls_cert_file="/own.pem",
    user='o"p\\s',
    password='se"cr\\et',
)
PLAIN = KafkaLog(bootstrap="one:9092")


def test_topics_have_the_prefix() -> None:
    assert (SECURE.log_topic, SECURE.application_prefix) == ("mq.msg.all", "mq.msg.app.")
    assert (SECURE.rejected_topic, SECURE.progress_topic) == ("mq.msg.rejected", "mq.pipeline.progress")


@pytest.mark.promise("pipeline-16")
def test_the_password_reaches_both_clients_and_is_shown_nowhere() -> None:
    assert SECURE.client_options() == {
        "bootstrap.servers": "one:9093,two:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/own.pem",
        "ssl.key.location": "/own.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": 'o"p\\s',
        "sasl.password": 'se"cr\\et',
    }
    assert SECURE.spark_options() == {
        "kafka.bootstrap.servers": "one:9093,two:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": "/own.pem",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="o\\"p\\\\s" password="se\\"cr\\\\et";',
    }
    assert PLAIN.spark_options() == {
        "kafka.bootstrap.servers": "one:9092",
        "kafka.security.protocol": "PLAINTEXT",
    }
    assert repr(SECURE) == "KafkaLog(one:9093,two:9093, prefix mq)"
    assert repr(DriverSettings(kafka=SECURE)) == f"DriverSettings(message_store in a file, log: {SECURE!r})"


def test_a_line_end_in_a_password_does_not_end_the_login_that_java_is_told() -> None:
    options = msgspec.structs.replace(PLAIN, user="u", password="a\r\nb").spark_options()
    assert options["kafka.sasl.jaas.config"].endswith(r'password="a\r\nb";')


def test_settings_with_a_log_in_kafka_survive_the_pipe() -> None:
    settings = DriverSettings(kafka=SECURE)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=DriverSettings) == settings


@pytest.mark.promise("pipeline-15")
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (DriverSettings(kafka=KafkaLog(bootstrap="")), "bootstrap is empty"),
        (DriverSettings(kafka=KafkaLog(bootstrap="a:1", tls_ca_file="/ca.pem")), "not asked for TLS"),
        (DriverSettings(kafka=PLAIN, master="mesos://x"), "pipeline.master = 'mesos://x'"),
        (
            DriverSettings(kafka=PLAIN, master="spark://h:7077", queries=("dispatch", "lake")),
            "pipeline.master = 'spark://h:7077': the query lake writes lake/",
        ),
        (
            DriverSettings(kafka=PLAIN, master="k8s://h", queries=("archive",)),
            "the query archive writes messages.db",
        ),
        (DriverSettings(master="spark://h:7077"), "cannot reach them"),
        (
            DriverSettings(kafka=PLAIN, master="spark://h:7077", queries=("dispatch",)),
            "pipeline.master = 'spark://h:7077' needs pipeline.spark_secret_file",
        ),
    ],
)
def test_what_cannot_run_is_refused_by_name(settings: DriverSettings, problem: str) -> None:
    with pytest.raises(PipelineSettingsError) as refused:
        check_settings(settings)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        DriverSettings(kafka=PLAIN, mode="realtime"),
        DriverSettings(kafka=SECURE, master="local[8]"),
        DriverSettings(
            kafka=PLAIN,
            master="spark://h:7077",
            spark_secret_file="/secret",
            queries=("dispatch", "archive"),
            message_store="postgresql://h/d",
        ),
    ],
)
def test_what_can_run_is_let_through(settings: DriverSettings) -> None:
    check_settings(settings)


class _Scripted(KafkaPositions):
    """Says what a test tells it to."""

    def __init__(self) -> None:
        self.ends = {0: 0, 1: 0}
        self.asked: list[dict[int, int]] = []

    def bounds(self, topic: str = "") -> dict[int, Bounds]:
        return {number: Bounds(0, end) for number, end in self.ends.items()}

    def accepted_ms(self, positions: object) -> int | None:
        assert isinstance(positions, dict)
        self.asked.append(positions)
        return 0


@pytest.mark.promise("pipeline-13")
def test_a_lag_is_as_old_as_the_last_look_that_saw_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("embermq.pipeline.kafka_lags.time.monotonic", lambda: now[0])
    monkeypatch.setattr("embermq.pipeline.kafka_lags.time.time", lambda: 50.0)
    positions = _Scripted()
    lags = KafkaLags(positions, threading.Event())
    positions.ends = {0: 10, 1: 5}
    lags.look()
    assert lags.lag("dispatch", {0: 10, 1: 5}) == Lag(0, 0.0)
    assert lags.lag("lake", {0: 10}) == Lag(5, 0.0) and positions.asked == [], "Kafka may not answer"
    lags.look()
    assert lags.lag("lake", {0: 10}) == Lag(5, 50.0), "older than this program: the record itself is asked"
    lags.look()
    assert lags.lag("lake", {0: 10}) == Lag(5, 50.0) and positions.asked == [{1: 0}], "once"
    assert lags.lag("lake", {0: 10, 1: 2}) == Lag(3, 50.0), "until the next look"
    now[0] = 103.0
    positions.ends = {0: 12, 1: 5}
    lags.look()
    assert lags.lag("dispatch", {0: 10, 1: 5}) == Lag(2, 3.0)
    assert lags.end() == 17


class _Moving(dict[int, int]):
    """Ends that are compared while the next look is taken."""

    def __init__(self, lags: KafkaLags) -> None:
        super().__init__({0: 10, 1: 5})
        self._lags = lags

    def get(self, number: int, default: int = 0) -> int:  # type: ignore[override]
        self._lags.look()
        return super().get(number, default)


def test_a_look_that_is_taken_meanwhile_does_not_end_the_driver() -> None:
    positions = _Scripted()
    lags = KafkaLags(positions, threading.Event())
    positions.ends = {0: 10, 1: 5}
    lags.look()
    for _ in range(3):
        lags._looks.append(msgspec.structs.replace(lags._looks[-1], ends=_Moving(lags)))
    assert lags.lag("lake", {0: 10}).messages == 5


def test_a_transaction_that_is_left_open_hides_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's own reading of the log, of what was refused and of its progress."""
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(kafka_positions, "Consumer", asked.append)
    kafka_positions._PositionReader(PLAIN.client_options())
    assert asked[0]["isolation.level"] == "read_uncommitted"
