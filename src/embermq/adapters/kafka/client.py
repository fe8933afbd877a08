"""What every client of Kafka is told: servers, security, how long to wait; and how its errors are put."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Event, Lock, Thread
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.cimpl import NewTopic

from embermq.adapters.kafka.address import KafkaAddress, KafkaSettings
from embermq.ports.errors import StoreUnavailable


class Failures:
    """Of all threads of one broker."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._told = ""
        self._count = 0

    @property
    def count(self) -> int:
        """How many there have been."""
        return self._count

    def note(self, doing: str, error: Exception) -> str:
        """One more; returns it as a sentence. A trace that is the last one's again is not logged again."""
        text = f"{doing}: unexpected {error!r}"
        with self._lock:
            self._count += 1
            is_new, self._told = text != self._told, text
        if is_new:
            LOG.error("%s; the work goes on", text, exc_info=error)
        return text


LOG = logging.getLogger("embermq.kafka")
RECONNECT_MS = 500
"""After a first attempt, which is made at once. When no server answers, the driver begins with its list of servers
anew, each with this pause again: with 50 ms ten clients that ask something take an eighth of a core."""
RECONNECT_MS_MAX = 1_000
"""A server that comes back is noticed after that at the latest."""
ATTEMPT_S = 2.0
LET_GO_S = 1.0
RETRY_S = 0.1

_PASSING = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError._NOENT,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
    }
)

ClientOptions = dict[str, Any]


def is_of_unused_group(error: KafkaError) -> bool:
    """What a consumer is told that never joins its group nor commits: it asks for the group's coordinator all the same,
    which needs a right. Nothing depends on it."""
    return error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def client_options(address: KafkaAddress) -> ClientOptions:
    """For producer, consumer and admin client."""
    options: ClientOptions = {
        "bootstrap.servers": address.bootstrap,
        "client.id": "embermq",
        "allow.auto.create.topics": False,
        "reconnect.backoff.ms": RECONNECT_MS,
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
        "retry.backoff.max.ms": RECONNECT_MS_MAX,
        "topic.metadata.refresh.interval.ms": 30_000,
        "socket.keepalive.enable": True,
        "log.connection.close": False,
        "logger": _quiet_logger(),
    }
    protocol = "SSL" if address.tls else "PLAINTEXT"
    if address.username:
        protocol = "SASL_SSL" if address.tls else "SASL_PLAINTEXT"
        options |= {
            "sasl.mechanism": address.sasl_mechanism,
            "sasl.username": address.username,
            "sasl.password": address.password,
        }
    options["security.protocol"] = protocol
    if address.tls and address.ca_file:
        options["ssl.ca.location"] = address.ca_file
    if address.tls and address.cert_file:
        options["ssl.certificate.location"] = address.cert_file
        options["ssl.key.location"] = address.cert_file
    return options


def _quiet_logger() -> logging.Logger:
    """What the driver says by itself is for finding errors: what matters comes back as an error."""
    driver = LOG.getChild("driver")
    if driver.level == logging.NOTSET:
        driver.setLevel(logging.CRITICAL)
    return driver


def may_work_later(error: KafkaError) -> bool:
    """What passes by itself: a partition gets a leader, a server comes back."""
    return error.code() in _PASSING or error.retriable()


def is_unknown(error: KafkaError) -> bool:
    """Who was asked has not heard of the topic, as a server for a moment after its making, and the driver then too."""
    return error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION)


def told(error: KafkaError) -> str:
    """Name and text of an error, without what is in it twice."""
    text = str(error.str())
    return text if error.name() in text else f"{text} ({error.name()})"


def error_of(exception: KafkaException) -> KafkaError:
    """What the driver raises holds one."""
    error = exception.args[0]
    assert isinstance(error, KafkaError)
    return error


def unavailable(address: KafkaAddress, doing: str, exception: KafkaException) -> StoreUnavailable:
    """The driver's error in the broker's words."""
    return StoreUnavailable(f"{address}: {doing}: {told(error_of(exception))}")


class WatchedAdmin:
    """An admin client that remembers why Kafka cannot be reached: waiting ends with "timed out" alone."""

    def __init__(self, address: KafkaAddress, settings: KafkaSettings) -> None:
        self.address = address
        self.settings = settings
        self._reason = ""
        self.ended = Event()
        """Set when no answer is wanted any more: whoever waits for one stops waiting."""
        options = client_options(address)
        options["error_cb"] = self._note
        try:
            self.client = AdminClient(options)
        except (KafkaException, ValueError, TypeError) as error:
            raise StoreUnavailable(f"{address}: {_option_problem(error)}") from None

    def make_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Make a topic of one partition, unless it is there already. Raises KafkaException, and TimeoutError when there
        is no answer within twice `request_timeout_s`."""
        settings, timeout_s = self.settings, self.settings.request_timeout_s
        replicas = settings.replication_factor or -1
        topic = NewTopic(name, num_partitions=1, replication_factor=replicas, config=dict(config))
        made = self.client.create_topics([topic], operation_timeout=timeout_s, request_timeout=timeout_s)
        try:
            made[name].result(timeout_s * 2)
        except KafkaException as error:
            if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._reason:
            self._reason = told(error)

    def wait(self) -> None:
        """Until Kafka answers, at most `start_timeout_s`. Raises StoreUnavailable with why it does not."""
        deadline_s = time.monotonic() + self.settings.start_timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                self.client.list_topics(timeout=min(ATTEMPT_S, max(left_s, 0.1)))
            except KafkaException as error:
                self.client.poll(0)
                if left_s <= 0:
                    raise StoreUnavailable(
                        f"{self.address}: no answer in {self.settings.start_timeout_s:g} s: "
                        f"{self._reason or told(error_of(error))}"
                    ) from None
            else:
                return

    def ask(
        self,
        doing: str,
        request: Callable[[], Mapping[Any, Future[Any]]],
        *,
        is_there: bool = False,
        done_before: int = KafkaError.NO_ERROR,
    ) -> dict[Any, Any]:
        """The answers to one request; it is sent again while a partition has no leader, a server is new to it, and
        the like. `is_there`: another server has named the topic, so one that does not know it will. `done_before`: the
        error with which Kafka refuses what has been done already; there are no answers then. Raises StoreUnavailable
        after `request_timeout_s`."""
        deadline_s = time.monotonic() + self.settings.request_timeout_s
        while True:
            try:
                answers = request()
                return {asked: self.result(answer) for asked, answer in answers.items()}
            except (KafkaException, TimeoutError) as error:
                if isinstance(error, KafkaException) and error_of(error).code() == done_before:
                    return {}
                may_pass = isinstance(error, KafkaException) and (
                    may_work_later(error_of(error)) or (is_there and is_unknown(error_of(error)))
                )
                if may_pass and time.monotonic() < deadline_s:
                    self.pause(RETRY_S)
                    continue
                if isinstance(error, KafkaException):
                    raise unavailable(self.address, doing, error) from None
                raise StoreUnavailable(f"{self.address}: {doing}: no answer") from None

    def result(self, answer: Future[Any]) -> Any:
        """What came of a request. Raises KafkaException, TimeoutError; StoreUnavailable when `ended` is set."""
        deadline_s = time.monotonic() + 2 * self.settings.request_timeout_s
        while True:
            try:
                return answer.result(RETRY_S)
            except TimeoutError:
                if self.ended.is_set():
                    raise StoreUnavailable(f"{self.address}: given up, the broker ends") from None
                if time.monotonic() > deadline_s:
                    raise

    def pause(self, seconds: float) -> None:
        """Before something is tried again. Raises StoreUnavailable when `ended` is set."""
        self.client.poll(0)
        if self.ended.wait(seconds):
            raise StoreUnavailable(f"{self.address}: given up, the broker ends")

    def topics(self, look_s: float) -> dict[str, TopicMetadata]:
        """Every topic of the cluster, by name; looked for `look_s` at a time, since that cannot be broken off. Raises
        StoreUnavailable."""
        deadline_s = time.monotonic() + self.settings.request_timeout_s
        while True:
            try:
                return self.client.list_topics(timeout=look_s).topics
            except KafkaException as error:
                if time.monotonic() > deadline_s or not may_work_later(error_of(error)):
                    raise unavailable(self.address, "cannot list its topics", error) from None
            self.pause(RETRY_S)


def _option_problem(error: Exception) -> str:
    """The driver names the option that it cannot use, and its value, which may be a file's name but no password."""
    return told(error_of(error)) if isinstance(error, KafkaException) else str(error)


def let_go(close: Callable[[], object]) -> None:
    """Close a client that the process does not need any more. One that has asked something waits for the answer, with a
    Kafka that hangs a minute and more: so it is waited for `LET_GO_S`, and then left to the end of the process."""

    def end() -> None:
        try:
            close()
        except (KafkaException, RuntimeError) as error:
            LOG.debug("closing a client: %s", error)

    thread = Thread(target=end, name="kafka end", daemon=True)
    thread.start()
    thread.join(LET_GO_S)


Post = Callable[[Callable[[], None]], object]
"""Runs a callable soon on the broker's thread; may be called from any thread."""
