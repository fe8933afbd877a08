"""Which application logs there have to be: decided when sessions end, come back, and are asked for."""

from __future__ import annotations

import logging
from hashlib import sha256

import pytest
from tests.support.hand_driven import HandDrivenBroker, HandLink
from tests.support.logs_in_memory import LogsInMemory

from embermq.delivery.application.log_lifecycle import LogLifecycle, LogOverview
from embermq.formats.application_logs import ApplicationLogNames
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Connack
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.application_logs import FoundLog
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.routing.shared_logs import SharedLogReaders

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
LOG = "p.msg.app.app"
DAY_S = 86_400
Restored = list[int | StoreError | None]


class Place:
    """A broker, and logs in memory."""

    def __init__(self) -> None:
        self.hand = HandDrivenBroker()
        self.logs = LogsInMemory()
        self.life = LogLifecycle(self.hand.state, self.logs, ApplicationLogNames("p"))
        self.hand.state.application_logs = self.life

    def comes(self, client_id: str = "app", *, clean_start: bool = False, settles: bool = True) -> HandLink:
        return self.hand.connects(
            client_id,
            expiry_s=DAY_S,
            clean_start=clean_start,
            client_type=ClientType.APPLICATION,
            settles=settles,
        )

    def finds(self, client_id: str = "app") -> list[FoundLog]:
        """As its reader does before CONNACK."""
        found: list[FoundLog] = []
        self.life.recall(self.hand.state.sessions[client_id], found.append)
        return found

    def ends(self) -> None:
        """The client leaves for good, nothing is stored of that yet."""
        self.hand.broker.connecting.remove(self.hand.state.sessions["app"], lambda: None)

    def restores(self, log: str = LOG) -> Restored:
        answers: Restored = []
        self.life.restore(log, answers.append)
        return answers


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.mark.promise("application-2")
def test_a_log_is_made_with_its_session_and_goes_when_its_end_is_durable(place: Place) -> None:
    place.comes()
    assert place.finds()[0].is_new
    place.hand.held = True
    place.ends()
    place.hand.settle()
    assert place.logs.over == []
    place.hand.held = False
    place.hand.settle()
    assert place.logs.over == [LOG]


@pytest.mark.promise("application-2")
def test_a_session_that_ends_with_its_connection_ends_its_log(place: Place) -> None:
    place.comes().drops()
    place.hand.settle()
    assert place.logs.over == []
    place.hand.passes(s=DAY_S + 1)
    assert place.logs.over == [LOG]


@pytest.mark.promise("application-2")
def test_a_client_that_is_back_at_once_keeps_the_log(place: Place) -> None:
    place.comes()
    place.finds()
    for _ in range(3):
        place.comes(clean_start=True)
        assert place.logs.over == []
    place.hand.held = True
    place.comes(clean_start=True, settles=False)
    place.hand.settle()
    place.comes(clean_start=True, settles=False)
    place.ends()
    place.hand.held = False
    place.hand.settle()
    assert place.logs.over == [LOG]


@pytest.mark.promise("application-2")
def test_a_device_has_no_log_and_neither_has_a_session_that_is_not_kept(place: Place) -> None:
    place.hand.connects("app", expiry_s=DAY_S)
    place.hand.connects("other", client_type=ClientType.APPLICATION).drops()
    place.hand.settle()
    assert place.life.wanted() == {}
    place.comes("app", clean_start=True)
    assert list(place.life.wanted()) == [LOG]
    assert place.logs.over == []


@pytest.mark.promise("application-2")
def test_a_log_that_cannot_be_had_keeps_the_client_waiting(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.comes()
    place.logs.trouble = StoreUnavailable("kafka is away")
    assert place.finds() == []
    assert "client 'app' is refused, its application log is not available: kafka is away" in caplog.text


@pytest.mark.promise("application-2", "pipeline-4")
def test_a_missing_log_is_made_again_while_a_session_wants_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.comes().subscribes("t")
    assert place.restores() == [None]
    assert LOG in place.logs.there
    assert f"{LOG} of client 'app' was missing and is there again, empty: what it held" in caplog.text
    place.logs.trouble = StoreUnavailable("away")
    assert place.restores() == [place.logs.trouble]


@pytest.mark.promise("application-2", "pipeline-14")
def test_all_logs_that_are_missing_are_made_again_together(place: Place) -> None:
    told: list[str] = []
    place.life.restored = lambda session, identity: told.append(session.client_id)
    for client_id in ("a", "b", "c"):
        place.comes(client_id).subscribes("t")
    place.logs.there = {"p.msg.app.b": 5, "p.msg.app.left": 1}
    assert place.restores("p.msg.app.c") == [None]
    assert set(place.logs.there) == {"p.msg.app.a", "p.msg.app.b", "p.msg.app.c", "p.msg.app.left"}
    assert told == ["a", "c"]
    place.logs.trouble = StoreUnavailable("away")
    assert place.restores("p.msg.app.c") == [place.logs.trouble]


@pytest.mark.promise("application-2")
def test_who_reads_is_told_which_log_is_there_now(place: Place) -> None:
    """Also when it was made by a question whose answer was lost: it is not new then."""
    told: list[tuple[str, str]] = []
    place.life.restored = lambda session, identity: told.append((session.client_id, identity))
    place.comes()
    place.logs.there = {LOG: 5}
    assert place.restores() == [None]
    assert told == [("app", f"{LOG} 0")]


@pytest.mark.promise("application-11", "pipeline-4")
def test_who_reads_a_shared_log_hears_that_it_was_made_again(place: Place) -> None:
    shared_logs = place.hand.state.share_by_logs(place.logs, 1, SharedLogReaders())
    place.comes().subscribes("$share/g/t")
    (before,) = [group.row for group in shared_logs.groups()]
    place.logs.there.clear()
    assert place.restores("p.msg.app.shared.t") == [None]
    (after,) = [group.row for group in shared_logs.groups()]
    assert after.identity != before.identity
    assert after.generation > before.generation


@pytest.mark.promise("application-2", "pipeline-4")
def test_stamps_for_a_log_that_nobody_wants_are_told_by_generation(place: Place) -> None:
    place.comes()
    generation = place.hand.state.sessions["app"].generation
    place.hand.held = True
    place.ends()
    place.hand.settle()
    # After a crash now the session would be back: its stamps are not to be thrown away.
    assert place.restores() == [None]
    place.hand.held = False
    place.hand.settle()
    place.logs.ensured.clear()
    answer = place.restores()
    assert answer == [place.hand.state.generation_next - 1]
    assert isinstance(answer[0], int) and answer[0] >= generation
    assert place.logs.ensured == []
    place.comes(settles=False)
    assert place.hand.state.sessions["app"].generation > answer[0]
    assert place.restores() == [None]


@pytest.mark.promise("application-2")
def test_a_start_puts_right_what_a_crash_left(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    place.comes("subscribed").subscribes("t")
    place.comes("new")
    place.comes("whole").subscribes("t")
    place.logs.there = {"p.msg.app.whole": 9, "p.msg.app.left": 5}
    place.life.reconcile(may_delete=True)
    assert place.logs.over == ["p.msg.app.left"]
    assert sorted(place.logs.ensured) == ["p.msg.app.new", "p.msg.app.subscribed"]
    told = {record.levelno: record.message for record in caplog.records}
    assert "p.msg.app.subscribed of client 'subscribed' was missing" in told[logging.ERROR]
    assert told[logging.INFO] == "application log p.msg.app.new of client 'new' is made"


@pytest.mark.promise("application-2")
def test_logs_of_another_data_directory_are_told_and_stay(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.comes()
    place.logs.there = {"p.msg.app.left": 5}
    place.life.reconcile(may_delete=False)
    assert place.logs.over == []
    assert "1 application logs that no session of this data directory reads, p.msg.app.left" in caplog.text
    place.logs.trouble = StoreUnavailable("away")
    place.life.reconcile(may_delete=True)
    assert "which application logs there are is not known, those of ended sessions stay until" in caplog.text


@pytest.mark.promise("application-2")
def test_what_a_start_could_not_put_right_is_put_right_later(place: Place) -> None:
    place.comes()
    place.logs.there = {"p.msg.app.left": 5}
    place.logs.trouble = StoreUnavailable("away")
    place.life.reconcile(may_delete=True)
    place.hand.passes(s=40)
    assert (place.logs.over, LOG in place.logs.there) == ([], False)
    place.logs.trouble = None
    place.hand.passes(s=40)
    assert (place.logs.over, LOG in place.logs.there) == (["p.msg.app.left"], True)
    asked = len(place.logs.ensured)
    place.hand.passes(s=120)
    assert len(place.logs.ensured) == asked


@pytest.mark.promise("application-2")
def test_logs_are_shown_and_those_without_reader_are_cleaned(place: Place) -> None:
    place.comes()
    place.logs.there = {LOG: 10, "p.msg.app.left": 5}
    place.life.committed = lambda _generation, then: then({0: 4})
    shown: list[list[LogOverview] | StoreError] = []
    place.life.overview(shown.append)
    assert shown == [
        [LogOverview(LOG, "app", (), 10, 6), LogOverview("p.msg.app.left", "", (), 5, None)],
    ]
    place.logs.problems = {LOG: "partition 0 has no leader"}
    place.life.overview(shown.append)
    assert shown[1:] == [
        [
            LogOverview(LOG, "app", (), None, None, "partition 0 has no leader"),
            LogOverview("p.msg.app.left", "", (), 5, None),
        ],
    ], "the others are told of all the same"
    gone: list[list[str] | StoreError] = []
    place.life.clean([LOG, "p.msg.app.left", "p.msg.all"], gone.append)
    assert gone == [["p.msg.app.left"]]
    assert list(place.logs.there) == [LOG]


@pytest.mark.promise("application-11")
def test_a_shared_log_is_behind_by_the_slowest_of_its_groups(place: Place) -> None:
    shared_logs = place.hand.state.share_by_logs(place.logs, 1, SharedLogReaders())
    link = place.hand.keeps("one", client_type=ClientType.APPLICATION)
    link.subscribes("$share/g/t", "$share/h/t")
    groups = tuple(group.name for group in shared_logs.groups())
    log = "p.msg.app.shared.t"
    place.logs.there[log] = 10
    shown: list[list[LogOverview] | StoreError] = []
    place.life.overview(shown.append)
    place.life.shared_committed = lambda name: [{0: 9}, {0: 4}] if name == log else []
    place.life.overview(shown.append)
    assert [found[-1] for found in shown if isinstance(found, list)] == [
        LogOverview(log, "", groups, 10, 10),
        LogOverview(log, "", groups, 10, 6),
    ]


@pytest.mark.promise("application-2")
def test_with_the_validation_on_every_id_has_a_log(place: Place) -> None:
    place.comes("a/b")
    assert list(place.life.wanted()) == [f"p.msg.app.{sha256(b'a/b').hexdigest()}"]


@pytest.mark.promise("application-2")
@pytest.mark.parametrize(("version", "code"), [(V5, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID), (V311, 2)])
def test_with_the_validation_off_an_unfit_id_is_refused_by_name(
    place: Place, version: ProtocolVersion, code: int
) -> None:
    place.comes("a/b").drops()
    place.hand.settle()
    place.hand.state.strict_names = ApplicationLogNames("p", client_id_validation=False)
    for clean_start in (True, False):
        link = place.hand.connects(
            "a/b",
            version=version,
            expiry_s=DAY_S if version is V5 else 0,
            clean_start=clean_start and version is V5,
            client_type=ClientType.APPLICATION,
        )
        answer = link.last(Connack)
        assert answer.reason_code == code
        if version is V5:
            assert answer.properties is not None
            assert "client id 'a/b' has no application log" in str(answer.properties.reason_string)
    as_device = place.hand.connects("a/b", version=version, clean_start=False, expiry_s=0)
    assert as_device.last(Connack).reason_code == code, "the session it would go on with is an application's"
    place.hand.connects("a/c", expiry_s=DAY_S)
    place.comes("fit")
    assert set(place.hand.state.sessions) == {"a/b", "a/c", "fit"}
    assert len(place.life.wanted()) == 2, "who is stored keeps the log"
