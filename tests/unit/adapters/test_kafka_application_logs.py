"""Who waits for application logs, and who is asked about, while Kafka does not answer for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from queue import SimpleQueue

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._topic import TopicDescription
from confluent_kafka.cimpl import NewTopic
from tests.support.waiting import wait_until

from embermq.adapters.kafka.address import KafkaSettings, parse_address
from embermq.adapters.kafka.application_logs import KafkaApplicationLogs
from embermq.adapters.kafka.application_topics import WRITTEN_AT_ONCE, ApplicationTopics, LogProperties
from embermq.adapters.kafka.client import WatchedAdmin
from embermq.formats.application_logs import ApplicationLogNames
from embermq.ports.application_logs import FoundLog, Place
from embermq.ports.errors import StoreError, StoreUnavailable

NAMES = ApplicationLogNames("embermq")
AWAY = StoreUnavailable("away")
Answers = list[tuple[int, FoundLog | StoreError]]


class Topics(ApplicationTopics):
    """Of logs that are there and can be read, or cannot."""

    def __init__(self) -> None:
        admin = WatchedAdmin(parse_address("kafka://127.0.0.1:1"), KafkaSettings())
        super().__init__(admin, NAMES, LogProperties(packet_bytes_max=1_000))
        self.there: dict[str, TopicDescription | StoreError | None] = {}
        self.looks: SimpleQueue[object] = SimpleQueue()
        self.goes_on: SimpleQueue[Exception | None] = SimpleQueue()

    def _look(
        self, logs: Collection[str], *, until_there: bool = False
    ) -> dict[str, TopicDescription | StoreError | None]:
        return {log: self.there[log] for log in logs}

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        return dict.fromkeys(places, 7)

    def ensure(self, wanted: Mapping[str, int]) -> dict[str, FoundLog | StoreError]:
        """Waits for what the test says."""
        self.looks.put(None)
        problem = self.goes_on.get(timeout=20)
        if problem is not None and not isinstance(problem, StoreError):
            raise problem
        return {log: FoundLog({0: 7}, "id") if problem is None else problem for log in wanted}


@pytest.fixture
def topics() -> Topics:
    return Topics()


@pytest.fixture
def posted() -> SimpleQueue[Callable[[], None]]:
    return SimpleQueue()


@pytest.fixture
def logs(topics: Topics, posted: SimpleQueue[Callable[[], None]]) -> Iterator[KafkaApplicationLogs]:
    found = KafkaApplicationLogs(topics, NAMES, posted.put, log_ends=dict, dispatched=dict, patience_s=0.0)
    yield found
    topics.goes_on.put(AWAY)
    found.close()


def test_a_log_that_cannot_be_read_holds_up_no_other(topics: Topics) -> None:
    there = TopicDescription.__new__(TopicDescription)
    topics.there = {"a": AWAY, "b": there, "c": None}
    assert topics.ends_of_those_there(dict.fromkeys("abc", 1)) == {("b", 0): 7}


class Answer:
    """What the driver has to say of one topic."""

    def __init__(self, error: int = 0) -> None:
        self.error = error

    def result(self, _timeout_s: float) -> None:
        if self.error:
            raise KafkaException(KafkaError(self.error))


class Client:
    """The driver's, on a Kafka that is the first to be asked for topics or the second."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.made: list[list[NewTopic]] = []
        self.deleted: list[list[str]] = []

    def create_topics(self, topics: list[NewTopic], **_: object) -> dict[str, Answer]:
        self.made.append(topics)
        return {topic.topic: Answer(self.error) for topic in topics}

    def delete_topics(self, names: list[str], **_: object) -> dict[str, Answer]:
        self.deleted.append(names)
        return {name: Answer() for name in names}


class Described(TopicDescription):
    """A topic of one partition."""

    def __init__(self) -> None:
        self.partitions = [self]  # type: ignore[list-item]
        self.topic_id = "id"  # type: ignore[assignment]


class LateToKnow(Topics):
    """The server that is asked first has not heard of a topic."""

    def __init__(self, client: Client, *, is_there: bool = True) -> None:
        super().__init__()
        self._client = client  # type: ignore[assignment]
        self.is_there = is_there
        self.asked = 0

    ensure = ApplicationTopics.ensure

    def _look(
        self, logs: Collection[str], *, until_there: bool = False
    ) -> dict[str, TopicDescription | StoreError | None]:
        self.asked += 1
        return {log: Described() if self.is_there and self.asked > 1 else None for log in logs}


@pytest.mark.promise("application-2")
def test_a_log_that_a_server_does_not_know_yet_is_not_taken_for_new() -> None:
    """Else its reader would begin where it ends, as if it were empty."""
    topics = LateToKnow(Client(KafkaError.TOPIC_ALREADY_EXISTS))
    assert topics.ensure({"log": 1}) == {"log": FoundLog({0: 7}, "id")}
    assert LateToKnow(Client()).ensure({"log": 1}) == {"log": FoundLog({0: 0}, "id", True)}


def test_one_request_makes_as_much_as_kafka_s_controller_writes_at_once() -> None:
    """With 10,000 records and more it refuses all of it."""
    client = Client()
    topics = LateToKnow(client)
    topics.ensure(dict.fromkeys(map(str, range(3_000)), 1) | {"wide": 1_000})
    assert sum(map(len, client.made)) == 3_001
    for made in client.made:
        assert sum(1 + topic.num_partitions + len(topic.config or {}) for topic in made) <= WRITTEN_AT_ONCE
    gone = LateToKnow(client, is_there=False)
    gone.delete(list(map(str, range(2_500))))
    assert [len(names) for names in client.deleted] == [1_000, 1_000, 500]


def test_a_log_that_does_not_go_is_not_called_deleted() -> None:
    topics = LateToKnow(Client())
    topics.asked, topics._timeout_s = 1, 0.1
    with pytest.raises(StoreUnavailable, match="was deleted and is still there"):
        topics.delete(["log"])


def test_a_log_that_does_not_go_is_left_alone_for_a_while(
    logs: KafkaApplicationLogs, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trial waits long for it, and who wants to be let in waits for the same thread."""
    failed_s: list[float] = []

    def fails(_names: object) -> None:
        failed_s.append(time.monotonic())
        raise AWAY

    monkeypatch.setattr(topics, "delete", fails)
    logs.ended("log")
    wait_until(lambda: logs.failing, 20, "it cannot be deleted")
    assert len(failed_s) == 1
    assert logs._ended["log"].due_s >= failed_s[0] + 30


@pytest.mark.promise("application-2")
def test_a_log_that_was_asked_for_after_all_is_not_cleaned_away(
    logs: KafkaApplicationLogs,
    topics: Topics,
    posted: SimpleQueue[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client comes back behind the question, and is let in before it is carried out."""
    deleted: SimpleQueue[list[str]] = SimpleQueue()
    held: SimpleQueue[dict[Place, int]] = SimpleQueue()
    monkeypatch.setattr(topics, "delete", lambda names: deleted.put(list(names)))
    monkeypatch.setattr(topics, "ends_of_those_there", lambda _logs: held.get(timeout=20))
    answers: Answers = []
    logs.ends({"log": 1}, lambda _: None)  # the thread waits for this
    logs.delete(["app", "left"], lambda _: None)
    logs.ensure("app", 1, lambda found: answers.append((0, found)))
    topics.goes_on.put(None)
    held.put({})
    while not answers:
        posted.get(timeout=20)()
    assert deleted.get(timeout=20) == ["left"]


@pytest.mark.promise("application-2")
def test_who_has_waited_long_enough_is_answered_although_others_come(
    logs: KafkaApplicationLogs, topics: Topics, posted: SimpleQueue[Callable[[], None]]
) -> None:
    answers: Answers = []
    logs.ensure("log", 1, lambda found: answers.append((0, found)))
    topics.looks.get(timeout=20)
    logs._patience_s = 3_600
    logs.ensure("log", 1, lambda found: answers.append((1, found)))
    topics.goes_on.put(AWAY)
    posted.get(timeout=20)()
    assert answers == [(0, AWAY)]
    topics.looks.get(timeout=20)
    topics.goes_on.put(None)
    posted.get(timeout=20)()
    assert answers[1:] == [(1, FoundLog({0: 7}, "id"))]


def test_what_nobody_foresaw_is_told_and_the_log_is_made_all_the_same(
    logs: KafkaApplicationLogs,
    topics: Topics,
    posted: SimpleQueue[Callable[[], None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: Answers = []
    logs._patience_s = 3_600
    logs.ensure("log", 1, lambda found: answers.append((0, found)))
    topics.goes_on.put(KeyError("nobody foresaw this"))
    topics.goes_on.put(None)
    posted.get(timeout=20)()
    assert answers == [(0, FoundLog({0: 7}, "id"))]
    assert "nobody foresaw this" in caplog.text


def test_who_asks_is_answered_also_when_nobody_foresaw_what_happens(
    logs: KafkaApplicationLogs,
    topics: Topics,
    posted: SimpleQueue[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(_logs: object) -> dict[Place, int]:
        raise KeyError("nobody foresaw this")

    monkeypatch.setattr(topics, "ends_of_those_there", breaks)
    found: list[object] = []
    for _ in range(2):
        logs.ends({"log": 1}, found.append)
        posted.get(timeout=20)()
    assert all(isinstance(answer, StoreUnavailable) for answer in found)
