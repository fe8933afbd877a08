"""A broker without sockets: packets are handed in, time is set, ticks are run and committed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import msgspec
from msgspec.structs import replace
from tests.support.hand_kafka import HandKafka
from tests.support.held_sessions import HeldSessions
from tests.support.stand_in_shared import HandFeeds, HandLogs, HandProgress
from tests.support.stand_in_store import (
    StandInAppender,
    StandInApplicationLog,
    StandInHistory,
    StandInLog,
    StandInParked,
    StandInParkedMessages,
    StandInQueue,
    StandInReaderPositions,
    StandInSessions,
    StandInStore,
)

from embermq.access.authentication.identity import Identity
from embermq.access.authorization.rule_set import RuleSet
from embermq.access.authorization.settings import AuthorizationSettings
from embermq.delivery.application.embedded_feeds import EmbeddedFeeds
from embermq.delivery.application.fed_readers import FedReaders
from embermq.delivery.application.log_lifecycle import LogLifecycle
from embermq.delivery.application.log_place import LogPlace, OwnPlace
from embermq.delivery.application.parking import Parking
from embermq.delivery.application.readers import ApplicationDelivery, OwnAndShared
from embermq.delivery.application.rounds import ROUND_MS
from embermq.delivery.application.settings import ApplicationSettings
from embermq.delivery.application.shared_readers import SharedPlace, SharedReaders
from embermq.delivery.device.path import DevicePath
from embermq.delivery.device.settings import DeviceSettings
from embermq.delivery.direct.path import DirectPath
from embermq.delivery.durable_path import DurablePath
from embermq.durability.log_first import LogFirstStore, Post
from embermq.durability.recovery import Recovery, complete, lagging
from embermq.formats.log_record import decode_record, iter_frames
from embermq.intake.broker import Broker
from embermq.model.client_type import ClientType
from embermq.model.message import said_bytes
from embermq.model.session_writes import QueueState
from embermq.mqtt.wire.decoder import Decoder, Role
from embermq.mqtt.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.device_queue import DeviceQueueHistory
from embermq.ports.errors import StoreError
from embermq.ports.tick_store import Receipt, TickStore
from embermq.routing.shared_logs import SharedLogReaders
from embermq.sessions.link import Link
from embermq.sessions.settings import MqttSettings
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Batch, Tick

START_MS = 1_700_000_000_000
ROUNDS_MAX = 10_000
Wanted = TypeVar("Wanted", bound=Packet)


class HandLink(Link):
    """A client's end. What the broker writes is decoded and checked at once: CONNACK comes first and once, nothing
    comes after DISCONNECT, no packet id is used twice at a time, and the Receive Maximum is kept.

    `acknowledges`: PUBLISH and PUBREL are answered by themselves as they come; `releases`: PUBREC too.
    """

    __slots__ = (
        "acknowledges",
        "asked_method",
        "auto",
        "decoder",
        "dropped",
        "ended",
        "hand",
        "in_flight",
        "is_in",
        "is_over",
        "receive_maximum",
        "received",
        "releases",
    )

    def __init__(self, hand: HandDrivenBroker, version: ProtocolVersion, receive_maximum: int | None) -> None:
        super().__init__(hand.state.tick.dirty, "test", hand.state.tick.now_ms)
        self.version = version
        self.decoder = Decoder(Role.CLIENT, packet_bytes_max=268_435_460, version=version)
        self.hand = hand
        self.acknowledges = True
        self.releases = False
        self.receive_maximum = receive_maximum or 65_535
        self.received: list[Packet] = []
        self.in_flight: set[int] = set()
        self.ended = self.dropped = self.is_in = self.is_over = False
        self.auto: list[Packet] = []
        self.asked_method: list[tuple[bytes | None, bool]] = []
        """What the authentication method was given, and whether it began anew."""

    def flush(self) -> None:
        if self.dropped:
            self.out.clear()
        if self.out and self.flushed is not None:
            self.flushed(sum(map(len, self.out)))
        for data in self.out:
            assert not self.is_over, f"{data!r} after DISCONNECT"
            for packet in self.decoder.feed(data):
                self._take(packet)
            assert self.decoder.error is None, self.decoder.error
        self.out.clear()
        self.bulk_bytes = 0
        if self.closing:
            self.ended = True

    def authenticate(self, data: bytes | None, *, anew: bool) -> None:
        self.asked_method.append((data, anew))

    def _take(self, packet: Packet) -> None:
        assert not self.ended, f"{packet} after the end"
        if not (isinstance(packet, Auth) and self.authentication is not None):
            assert isinstance(packet, Connack) is (not self.is_in), f"{packet} after {self.received}"
            self.is_in = True
        assert not self.is_over, f"{packet} after DISCONNECT"
        self.is_over = isinstance(packet, Disconnect)
        self.received.append(packet)
        if isinstance(packet, Publish) and packet.qos:
            assert packet.packet_id not in self.in_flight, f"{packet}: the id is in use"
            self.in_flight.add(packet.packet_id)
            assert len(self.in_flight) <= self.receive_maximum, f"{packet} is past the Receive Maximum"
            if self.acknowledges:
                self.auto.append((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
        elif isinstance(packet, Pubrec) and self.releases and packet.reason_code < 0x80:
            self.auto.append(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self.in_flight.add(packet.packet_id)
            if self.acknowledges:
                self.auto.append(Pubcomp(packet.packet_id))

    # The client speaks

    def does(self, *packets: Packet) -> None:
        """Send packets, in one piece; nothing happens on a connection that is closing."""
        if self.closing:
            return
        for packet in packets:
            if isinstance(packet, Puback | Pubcomp) or (
                isinstance(packet, Pubrec) and packet.reason_code >= 0x80
            ):
                self.in_flight.discard(packet.packet_id)
        self.last_ms = self.hand.state.tick.now_ms
        self.hand.broker.handle(self, list(packets))

    def drops(self) -> None:
        """The network breaks."""
        self.ended = self.dropped = True
        self.hand.broker.connecting.link_lost(self)

    def leaves(self, reason: int = 0, properties: Properties | None = None) -> None:
        """A DISCONNECT, then the end of the connection."""
        self.does(Disconnect(reason, properties))
        self.hand.run()
        self.drops()

    def subscribes(
        self,
        *filters: str,
        qos: int = 2,
        identifier: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> tuple[int, ...]:
        """SUBSCRIBE to the filters and wait for the answer."""
        asked = tuple(
            Subscription(text, qos, no_local, retain_as_published, retain_handling) for text in filters
        )
        self.does(
            Subscribe(1, asked, Properties(subscription_identifiers=(identifier,)) if identifier else None)
        )
        self.hand.settle()
        return self.last(Suback).reason_codes

    def unsubscribes(self, *filters: str) -> None:
        self.does(Unsubscribe(2, filters))
        self.hand.settle()

    def publishes(
        self, topic: str, *payloads: bytes, qos: int = 1, retain: bool = False, first_id: int = 1
    ) -> None:
        """PUBLISHes with packet ids from `first_id` on; nothing is waited for."""
        self.does(
            *(
                Publish(topic, payload, qos, first_id + number if qos else 0, retain)
                for number, payload in enumerate(payloads)
            )
        )

    # What it has seen

    def all(self, kind: type[Wanted]) -> list[Wanted]:
        return [packet for packet in self.received if isinstance(packet, kind)]

    def last(self, kind: type[Wanted]) -> Wanted:
        return self.all(kind)[-1]

    @property
    def messages(self) -> list[Publish]:
        return self.all(Publish)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    def forgets(self) -> None:
        """Start a new page: keep only the CONNACK."""
        self.received[:] = self.all(Connack)


class HandDrivenBroker:
    """The deciding rooms on stand-in stores. `run` is one tick of the server, `settle` as many as there is work for.
    `failures` answer the next commits: an error refuses one. `held` keeps commits open until `finish_commit`."""

    def __init__(
        self,
        *,
        mqtt: MqttSettings | None = None,
        device: DeviceSettings | None = None,
        application: ApplicationSettings | None = None,
        store: StandInStore | None = None,
        now_ms: int = START_MS,
        rules: RuleSet | None = None,
        authorization: AuthorizationSettings | None = None,
        sessions: HeldSessions | None = None,
        connect_wait_s: float = 5.0,
        waiting_bytes_max: int = 0,
        logs: HandLogs | None = None,
        kafka: HandKafka | None = None,
        feeds: HandFeeds | None = None,
    ) -> None:
        self.kafka = kafka
        self.store = store or StandInStore()
        self.logs = logs
        self.sessions = sessions
        self.connect_wait_s = connect_wait_s
        self.waiting_bytes_max = waiting_bytes_max
        self.queue = sessions or StandInQueue(self.store)
        self.application_log = StandInApplicationLog(self.store)
        self.bodies = StandInParked()
        self.log = StandInLog(self.store)
        self.settings = (
            mqtt or MqttSettings(),
            device or DeviceSettings(),
            application or ApplicationSettings(),
        )
        self.authorization = authorization
        state = self.state = BrokerState(self.settings[0], Tick(), authorization)
        state.rules = rules
        self.device = DevicePath(state, self.queue, self.settings[1])
        self.notices: list[str] = []
        self.parking = Parking(
            state, self.settings[2], StandInParkedMessages(self.store), self.notices.append
        )
        self.applications = self._make_readers()
        self.delivery = DurablePath(state, self.device, self._with_shared(feeds))
        state.direct, state.durable = DirectPath(state), self.delivery
        self.broker = Broker(self.state)
        if logs is not None:
            readers = self.shared if feeds is not None else SharedLogReaders()
            self.state.share_by_logs(logs, 2, readers)
        self.links, self.held = list[HandLink](), False
        self.failures: list[StoreError] = []
        self.full: StoreError | None = None  # why nothing can be stored; the server tries in vain meanwhile
        self._batch: Batch | None = None
        self.state.tick.now_ms = now_ms
        self.posted: list[Callable[[], None]] = []
        self.fed = False
        """Whether the last tick got something from application logs of their own."""
        self.ticks: TickStore = self.store
        self.recovered = self._restore()
        if kafka is not None:
            assert isinstance(self.applications, FedReaders)
            life = LogLifecycle(self.state, kafka.logs, kafka.logs.names)
            self.applications.life = self.state.application_logs = life

    def _make_readers(self) -> ApplicationDelivery:
        kafka = self.kafka
        if kafka is None:
            feeds = EmbeddedFeeds(self.application_log, self.log, self.bodies)
            return FedReaders(self.state, LogPlace(feeds, StandInReaderPositions(self.store)), self.parking)
        kafka.begin()
        positions = StandInReaderPositions(self.store)
        place = LogPlace(kafka.feeds, positions, OwnPlace(kafka.logs, kafka.progress, kafka.records))
        return FedReaders(self.state, place, self.parking)

    def _with_shared(self, feeds: HandFeeds | None) -> ApplicationDelivery:
        self.feeds, self.progress = feeds, HandProgress()
        if feeds is None or self.logs is None:
            return self.applications
        feeds.members.clear()
        place = SharedPlace(feeds, self.logs, self.progress, self.store.shared)
        gave_ids = cast(FedReaders, self.applications).gave_ids
        self.shared = SharedReaders(self.state, place, self.parking, gave_ids)
        return OwnAndShared(self.applications, self.shared)

    def _restore(self) -> int:
        beside = StandInSessions(self.store)
        sessions, state = self.sessions, self.state
        if state.shared_logs is not None:
            if self.feeds is not None:
                self.shared.restore(state.shared_logs)
            else:
                state.shared_logs.restore(self.store.shared.load().groups)
        if sessions is None:
            stored = beside.load()
            kept = self.broker.restore(stored, beside.load_retained())
            history: DeviceQueueHistory = StandInHistory(self.store)
        else:
            stored = replace(sessions.load(), log_end=self.store.log_end)
            sessions.beside = self.store
            kept = complete(self.broker, stored, sessions.load_retained(), self.log)
            self.ticks = self.log_first()
            state.connect_wait_ms = int(self.connect_wait_s * 1000)
            self.device.behind.read_log = self.log.read_later(self.posted)
            history = sessions.history
        if state.shared_logs is not None:
            state.shared_logs.begin()
        self.parking.restore(kept)
        return Recovery(state, self.device, self.log, history).run(stored.dispatcher_floor, lagging(stored))

    def log_first(self, *, settle_ms: int = 0, post: Post | None = None) -> LogFirstStore:
        """The way of ticks on servers: the log is that of `store`."""
        assert self.sessions is not None
        return LogFirstStore(
            StandInAppender(self.store),
            self.sessions,
            self.state,
            post or self.posted.append,
            log_end=self.store.log_end,
            settle_ms=settle_ms,
            waiting_bytes_max=self.waiting_bytes_max,
        )

    def restarted(self, *, after_ms: int = 1_000) -> HandDrivenBroker:
        """Another broker on what a crash leaves: a tick that is not committed is lost."""
        if self.store.busy:
            self.store.lose()
        if self.sessions is not None:
            self.sessions.crash()
        mqtt, device, application = self.settings
        again = HandDrivenBroker(
            mqtt=mqtt,
            device=device,
            application=application,
            store=self.store,
            now_ms=self.now_ms + after_ms,
            rules=self.state.rules,
            authorization=self.authorization,
            sessions=self.sessions,
            connect_wait_s=self.connect_wait_s,
            waiting_bytes_max=self.waiting_bytes_max,
            logs=self.logs,
            kafka=self.kafka,
            feeds=self.feeds,
        )
        again.application_log.entries = self.application_log.entries
        again.application_log.complete = self.application_log.complete
        return again

    @property
    def now_ms(self) -> int:
        return self.state.tick.now_ms

    # The server's part

    def run(self) -> None:
        """One tick."""
        state = self.state
        state.timers.advance(self.now_ms)
        due_ms = self.device.next_ms
        if due_ms and due_ms <= self.now_ms:
            self.device.advance(self.now_ms)
        if self.device.wants_pages:
            self.device.read_pages()
        self.device.behind.read_on()
        if not self.ticks.busy:
            self._commit()
        if self.store.busy and not self.held:
            self.finish_commit()
        posted, self.posted[:] = self.posted[:], []
        for call in posted:
            call()
        if self.sessions is not None:
            self.sessions.answer()
        if self.kafka is not None:
            self.applications.poll()
            self.fed = self.kafka.run()
        self._flush()
        self._acknowledge()

    def _commit(self) -> None:
        batch = self.state.tick.batch
        if self.full is None and self.state.store_failure is not None and batch.writes.is_empty():
            batch.writes.generation_reserved = self.state.generations_reserved
        if self.full is not None and not batch.writes.is_empty():
            if self.state.store_failure is None or batch.accepted:
                self._batch = self.state.tick.take()
                self._done(self.full)
            return
        if batch.writes.is_empty():
            if not batch.is_empty():
                taken = self.state.tick.take()
                self._committed(taken, Receipt(self.state.log_end, 0, whole=not self.ticks.waits))
            elif self.ticks.owes:
                self._submit()
            return
        self._submit()

    def _submit(self) -> None:
        self._batch = self.state.tick.take()
        self.state.committing_records = len(self._batch.writes.records)
        self.store.now_ms = self.now_ms
        self.ticks.submit(self._batch.writes, self._done)

    def _done(self, result: Receipt | StoreError) -> None:
        batch, self._batch = self._batch, None
        assert batch is not None
        if isinstance(result, Receipt):
            works_again, self.state.store_failure = self.state.store_failure is not None, None
            self._committed(batch, result)
            if works_again:
                self.device.store_works()
        else:
            self.state.store_failure = result
            self.broker.refused(batch, result)

    def _committed(self, batch: Batch, receipt: Receipt) -> None:
        self.broker.committed(batch, receipt)
        if not receipt.whole:
            for generation, call in batch.waiting():
                self.ticks.when_stored(generation, call)
        self.device.linger.close_tick(self.state.log_end, self.now_ms)

    def finish_commit(self) -> None:
        """The store answers: with the next of `failures`, else with success."""
        if self.failures:
            self.store.refuse(self.failures.pop(0))
        else:
            self.store.commit()

    def _flush(self) -> None:
        dirty = list(self.state.tick.dirty)
        self.state.tick.dirty.clear()
        for link in dirty:
            link.flush()
        for ended in [link for link in self.links if link.ended]:
            self.links.remove(ended)
            self.broker.connecting.link_lost(ended)

    def _acknowledge(self) -> None:
        for link in self.links:
            answers, link.auto = link.auto, []
            if answers and not link.closing:
                link.does(*answers)

    def counts_queues(self) -> None:
        """Check what sessions count of their stored queues against the store; at rest only."""
        for session in self.state.sessions.loaded:
            stored = [row for row in self.store.queue.values() if row.generation == session.generation]
            left = [row for row in stored if row.state != QueueState.DONE]
            assert (session.queued, session.queued_bytes) == (len(left), sum(len(row.record) for row in left))
            waiting = sum(said_bytes(delivery.message) for delivery in session.waiting or ())
            assert session.waiting_bytes == waiting

    def counts_rows(self, sessions: HeldSessions) -> None:
        """The same for a session store of its own."""
        for session in self.state.sessions.loaded:
            rows = sessions.rows(session.generation)
            assert session.queued == sum(state != QueueState.DONE for _, state, _ in rows)
            assert (session.uncommitted, session.paging) == (0, False)

    def settle(self) -> None:
        """Run ticks until there is nothing left to do, without letting time pass."""
        for _ in range(ROUNDS_MAX):
            self.run()
            batch = self.state.tick.batch
            working = bool(
                self.state.tick.dirty
                or self.device.wants_pages
                or any(link.auto for link in self.links)
                or (self.store.busy and not self.held)
                or self.posted
                or self.fed
                or (self.sessions is not None and self.sessions.waiting and not self.sessions.held)
            )
            waits = self.held or (self.full is not None and not batch.accepted)
            if not working and (waits or (batch.is_empty() and not self.ticks.owes)):
                return
        raise AssertionError("the broker does not come to rest")

    def passes(self, *, ms: int = 0, s: float = 0) -> None:
        """Let time pass, and do what falls due; long times go in steps, so that timers fire in their order."""
        end_ms = self.now_ms + ms + int(s * 1000)
        while self.now_ms < end_ms:
            due = [due for due in (self.state.timers.next_ms, self.device.next_ms) if due > self.now_ms]
            if self.kafka is not None:
                due.append(self.now_ms + ROUND_MS)
            self.state.tick.now_ms = min([*due, end_ms])
            self.settle()

    # Clients

    def connects(
        self,
        client_id: str,
        *,
        version: ProtocolVersion = ProtocolVersion.V5,
        clean_start: bool = True,
        expiry_s: int = 0,
        keep_alive_s: int = 0,
        will: Will | None = None,
        receive_maximum: int | None = None,
        properties: Properties | None = None,
        client_type: ClientType = ClientType.DEVICE,
        then: Iterable[Packet] = (),
        settles: bool = True,
        acknowledges: bool = True,
        user: str = "",
        certificate: str = "",
    ) -> HandLink:
        """A CONNECT; `then` is what comes in one piece behind it. CONNACK is there when `settles`."""
        link = HandLink(self, version, receive_maximum)
        link.acknowledges = acknowledges
        self.links.append(link)
        if version is ProtocolVersion.V5 and (expiry_s or receive_maximum):
            properties = msgspec.structs.replace(
                properties or Properties(),
                session_expiry_interval=expiry_s or None,
                receive_maximum=receive_maximum,
            )
        packet = Connect(client_id, version, clean_start, keep_alive_s, None, None, will, properties)
        link.inbox = list(then)
        self.broker.connect(link, packet, Identity(user, client_type, "given-id", certificate=certificate))
        if settles:
            self.settle()
        return link

    def keeps(self, client_id: str, **options: object) -> HandLink:
        """A client whose session is kept for a day, and resumed when there is one."""
        return self.connects(client_id, clean_start=False, expiry_s=86_400, **options)  # type: ignore[arg-type]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Payloads b"0000", b"0001", ..."""
    return [b"%04d" % number for number in range(start, start + count)]


def dispatch(hand: HandDrivenBroker, *, until: int | None = None) -> None:
    """What the pipeline does: every stamped record below `until` goes to its application logs."""
    if hand.kafka is not None:
        kafka = hand.kafka
        kafka.reads(hand.log)
        end = len(kafka.sources) if until is None else until
        kafka.carry(*range(kafka.carried, end))
        kafka.carried = end
        kafka.report(end)
        hand.settle()
        return
    log = hand.application_log
    end = hand.store.log_end if until is None else until
    for batch in hand.log.read(log.complete, records_max=10**6, bytes_max=2**30):
        for number, frame in enumerate(iter_frames(batch.body)):
            offset = batch.base_offset + number
            if log.complete <= offset < end:
                for stamp in decode_record(frame).stamps:
                    log.entries[stamp.generation].append(offset)
    log.complete = end
    hand.applications.poll()
    hand.settle()
