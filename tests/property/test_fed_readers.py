"""APPLICATION delivery, from logs of their own and embedded with the log's tail: broker, client, pipeline and ticks end
at any moment, in any order."""

from __future__ import annotations

from collections import Counter
from itertools import count
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support import hand_kafka
from tests.support.hand_driven import HandDrivenBroker, HandLink, dispatch
from tests.support.hand_kafka import HandKafka

from embermq.delivery.application import fed_readers, log_tail
from embermq.delivery.application.fed_readers import FedReaders
from embermq.delivery.application.settings import ApplicationSettings
from embermq.formats.log_record import decode_record
from embermq.model.client_type import ClientType
from embermq.model.session_writes import QueueState
from embermq.mqtt.wire.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from embermq.mqtt.wire.version import ProtocolVersion

SETTINGS = ApplicationSettings(max_poll_records=3, pack_timeout_s=86_400)
ROUNDS_MAX = 500
TAIL_BYTES = 1_500
"""Of a tail: three messages or four."""
UNREAD_BYTES = 300
"""So much of a log waits at a client."""


class Client(RuleBasedStateMachine):
    """One client and its log."""

    def __init__(self, kafka: HandKafka | None) -> None:
        super().__init__()
        self.narrowed = [
            patch.object(fed_readers, "OVERTAKING_MAX", 6),
            patch.object(log_tail, "BYTES_MAX", TAIL_BYTES),
            patch.object(hand_kafka, "BATCH", 2),
            patch.object(hand_kafka, "UNREAD_BYTES_MAX", UNREAD_BYTES),
        ]
        for one in self.narrowed:
            one.start()
        self.hand = HandDrivenBroker(kafka=kafka, application=SETTINGS)
        self.published: dict[bytes, int] = {}
        """Payload -> QoS."""
        self.numbers = count()
        self.sent: dict[int, bytes] = {}
        """Packet id -> what came with it last."""
        self.order: list[bytes] = []
        """As they came for the first time."""
        self.known: set[int] = set()
        """Packet ids of QoS 2 that the client has and whose PUBREL has not come."""
        self.answered: set[bytes] = set()
        """By PUBACK or PUBREC: until then it is owed."""
        self.first: Counter[bytes] = Counter()
        self.got: Counter[bytes] = Counter()
        self.comes()
        self.link.subscribes("t/#")

    # The client

    def comes(self) -> None:
        self.link: HandLink = self.hand.keeps(
            "app",
            client_type=ClientType.APPLICATION,
            acknowledges=False,
            version=ProtocolVersion.V5,
            receive_maximum=5,
        )
        self.looked_at = 0
        self.owed: list[Packet] = []

    def look(self) -> None:
        """At what has come on this connection."""
        for packet in self.link.received[self.looked_at :]:
            if isinstance(packet, Publish):
                self.sent[packet.packet_id] = packet.payload
                if packet.qos == 1:
                    self.owed.append(Puback(packet.packet_id))
                    self.got[packet.payload] += 1
                    self.first[packet.payload] += not packet.dup
                else:
                    self.owed.append(Pubrec(packet.packet_id))
                    if packet.packet_id not in self.known:
                        self.known.add(packet.packet_id)
                        self.got[packet.payload] += 1
                        self.first[packet.payload] += 1
            elif isinstance(packet, Pubrel):
                self.known.discard(packet.packet_id)
                self.owed.append(Pubcomp(packet.packet_id))
            if isinstance(packet, Publish) and packet.payload not in self.order:
                self.order.append(packet.payload)
        self.looked_at = len(self.link.received)

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.answers([self.owed.pop(data.draw(st.integers(0, len(self.owed) - 1)))])

    @rule()
    def answer_all(self) -> None:
        owed, self.owed = self.owed, []
        self.answers(owed)

    def answers(self, packets: list[Packet]) -> None:
        for packet in packets:
            if isinstance(packet, Puback | Pubrec):
                self.answered.add(self.sent[packet.packet_id])
        self.link.does(*packets)
        self.hand.settle()

    @rule()
    def drops_and_returns(self) -> None:
        self.link.drops()
        self.hand.settle()
        self.look()
        self.comes()

    @rule()
    def is_taken_over(self) -> None:
        self.look()
        self.comes()

    # The broker

    @rule(
        topic=st.sampled_from(("t/1", "t/2", "t/3")),
        qos=st.integers(1, 2),
        many=st.integers(1, 6),
        is_committed=st.booleans(),
    )
    def publish(self, topic: str, qos: int, many: int, is_committed: bool) -> None:
        """While commits take long, those before it and its own may be done; what follows from it is not."""
        payloads = [b"%d" % next(self.numbers) for _ in range(many)]
        self.published |= dict.fromkeys(payloads, qos)
        publisher = self.hand.connects("p")
        publisher.releases = True
        publisher.publishes(topic, *payloads, qos=qos)
        self.hand.settle()
        publisher.leaves()
        while is_committed and any(writes.records for writes in self.hand.state.tick.unstored()):
            self.one_commit_is_done()

    @rule()
    def commits_take_long(self) -> None:
        self.hand.held = True

    @precondition(lambda self: self.hand.held)
    @rule()
    def one_commit_is_done(self) -> None:
        """The next one takes long again."""
        if self.hand.store.busy:
            self.hand.finish_commit()
        self.hand.settle()

    @precondition(lambda self: self.hand.held)
    @rule()
    def commits_are_done(self) -> None:
        self.hand.held = False
        if self.hand.store.busy:
            self.hand.finish_commit()
        self.hand.settle()

    @rule()
    def broker_is_killed(self) -> None:
        """What was not committed was not acknowledged. What was sent, of QoS 1, and not marked comes again as new."""
        self.look()
        self.forgets_what_no_row_tells_of()
        for writes in self.hand.state.tick.unstored():
            for mark in writes.application_marks:
                if mark.state == QueueState.SENT and mark.packet_id in self.sent:
                    self.first[self.sent[mark.packet_id]] = 0
            for record in writes.records:
                del self.published[decode_record(record).message.payload]
        self.hand = self.hand.restarted()
        self.comes()

    @rule(qos=st.integers(1, 2), answers=st.booleans())
    def broker_is_killed_before_marks_are_stored(self, qos: int, answers: bool) -> None:
        self.hand.held = True
        self.publish("t/1", qos, 2, is_committed=True)
        self.look()
        if answers:
            self.answer_all()
        self.broker_is_killed()

    @rule(s=st.integers(1, 3))
    def time_passes(self, s: int) -> None:
        self.hand.passes(s=s)

    # What holds

    @invariant()
    def nothing_comes_twice(self) -> None:
        self.look()
        for payload, qos in self.published.items():
            assert self.first[payload] <= 1, f"{payload!r} comes twice"
            assert qos == 1 or self.got[payload] <= 1

    def teardown(self) -> None:
        """Everybody does their work: everything has come, and the store keeps nothing that is settled."""
        try:
            if self.hand.held:
                self.commits_are_done()
            self.dispatch_all()
            for _ in range(ROUNDS_MAX):
                self.look()
                if not self.owed:
                    break
                self.answer_all()
            self.hand.passes(s=6)
            self.look()
            assert {payload for payload, count in self.got.items() if count} == set(self.published)
            assert self.answered == set(self.published)
            self.nothing_comes_twice()
            assert self.hand.store.marks == {}
            self.ends()
        finally:
            for one in self.narrowed:
                one.stop()

    def dispatch_all(self) -> None:
        """The pipeline does its work."""
        raise NotImplementedError

    def forgets_what_no_row_tells_of(self) -> None:
        """The broker is about to be killed: what of QoS 1 has been served and is not stored as such comes as new."""

    def ends(self) -> None:
        """What holds then besides: all that there was is counted, once."""
        (position,) = self.hand.store.positions.values()
        assert position.settled == len(self.published)


class EmbeddedApplications(Client):
    """Records come by the log's tail, which is short, and by the pipeline; in order, by whichever."""

    def __init__(self) -> None:
        super().__init__(None)

    @precondition(lambda self: not self.hand.held)
    @rule(data=st.data())
    def dispatches(self, data: st.DataObject) -> None:
        complete = self.hand.application_log.complete
        dispatch(self.hand, until=data.draw(st.integers(complete, self.hand.store.log_end)))

    def dispatch_all(self) -> None:
        dispatch(self.hand)

    @invariant()
    def all_come_in_order(self) -> None:
        self.look()
        assert self.order == sorted(self.order, key=int)

    def ends(self) -> None:
        super().ends()
        assert isinstance(self.hand.applications, FedReaders)
        assert self.hand.applications.log_end.bytes == 0


class Applications(Client):
    """Everything that may go wrong but the loss of the log itself. Copies are written in any order."""

    def __init__(self) -> None:
        self.kafka = HandKafka()
        self.checkpoint = self.batch_end = 0
        self.unwritten: list[int] = []
        super().__init__(self.kafka)

    # The pipeline

    @precondition(lambda self: not self.unwritten)
    @rule(data=st.data())
    def plans(self, data: st.DataObject) -> None:
        self.kafka.reads(self.hand.log)
        self.batch_end = data.draw(st.integers(self.checkpoint, len(self.kafka.sources)))
        self.unwritten = list(range(self.checkpoint, self.batch_end))

    @precondition(lambda self: self.unwritten)
    @rule(data=st.data())
    def writes(self, data: st.DataObject) -> None:
        """In any order: what is left for later is a hole."""
        self.kafka.carry(self.unwritten.pop(data.draw(st.integers(0, len(self.unwritten) - 1))))
        self.hand.settle()

    @precondition(lambda self: not self.unwritten)
    @rule()
    def reports(self) -> None:
        self.checkpoint = self.batch_end
        self.kafka.report(self.checkpoint)

    @rule()
    def pipeline_is_killed(self) -> None:
        self.unwritten.clear()
        self.batch_end = self.checkpoint

    @rule(data=st.data())
    def checkpoint_is_lost(self, data: st.DataObject) -> None:
        self.checkpoint = data.draw(st.integers(0, self.checkpoint))
        self.pipeline_is_killed()

    @rule()
    def all_is_quiet(self) -> None:
        """The tail serves as soon as it may."""
        if not self.hand.held and not self.unwritten:
            self.dispatch_all()
            self.checkpoint = self.batch_end = len(self.kafka.sources)
            self.hand.passes(s=2)

    def forgets_what_no_row_tells_of(self) -> None:
        rows = list(self.hand.store.positions.values())
        served = [span for row in rows for span in row.served]
        self.kafka.reads(self.hand.log)
        for writes in self.hand.state.tick.unstored():
            for row in writes.application_positions.values():
                for source, record in self.kafka.sources:
                    was = any(start <= source < end for start, end in served)
                    if not was and any(start <= source < end for start, end in row.served):
                        self.first[record.message.payload] = 0

    def dispatch_all(self) -> None:
        self.kafka.reads(self.hand.log)
        self.kafka.carry(*range(self.checkpoint, len(self.kafka.sources)))
        self.kafka.report()
        self.hand.settle()

    def teardown(self) -> None:
        """The next message has trimmed what a broker would have trimmed that was killed."""
        if self.hand.held:
            self.commits_are_done()
        self.publish("t/1", 1, 1, True)
        super().teardown()

    def ends(self) -> None:
        super().ends()
        (position,) = self.hand.store.positions.values()
        topic = self.kafka.log_of("app")
        assert position.positions.base_offset == position.positions.committed_offset == topic.end
        assert (topic.start, topic.entries) == (topic.end, [])
        assert sum(feed.unread_bytes for feed in self.kafka.feeds.open_feeds) == 0


class OrderedApplications(Applications):
    """Copies of one topic are written in the order of their records, as by the pipeline: so the client gets them."""

    @precondition(lambda self: self.unwritten)
    @rule(data=st.data())
    def writes(self, data: st.DataObject) -> None:
        """Topics do not wait for one another."""
        topics = {self.topic_of(number): number for number in reversed(self.unwritten)}
        number = topics[data.draw(st.sampled_from(sorted(topics)))]
        self.unwritten.remove(number)
        self.kafka.carry(number)
        self.hand.settle()

    def topic_of(self, number: int) -> str:
        return self.kafka.sources[number][1].message.topic

    @invariant()
    def all_of_a_topic_come_in_order(self) -> None:
        self.look()
        last: dict[str, int] = {}
        topics = {record.message.payload: record.message.topic for _, record in self.kafka.sources}
        for payload in self.order:
            topic = topics.get(payload)
            if topic is not None:
                assert last.get(topic, -1) < int(payload), f"{payload!r} is overtaken"
                last[topic] = int(payload)


OrderedApplications.TestCase.settings = settings(stateful_step_count=40)
TestOrderedApplications = OrderedApplications.TestCase
Applications.TestCase.settings = settings(stateful_step_count=40)
TestApplications = Applications.TestCase
EmbeddedApplications.TestCase.settings = settings(stateful_step_count=40)
TestEmbeddedApplications = EmbeddedApplications.TestCase
