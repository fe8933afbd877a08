"""From the core's deliveries to PUBLISH: in order for each consumer, as far as its window and its socket go.

What is handed to a consumer waits in its outbox until there is room, then until its body is read. The lease begins when
the socket has the PUBLISH; what waits for a slow socket is not charged. A consumer that takes nothing costs nobody else
anything: no body is read for it, it holds no more than its prefetch, and that no longer than a lease.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

from embermq.model.message import Message
from embermq.mqtt.value import replace
from embermq.mqtt.wire.reason_codes import FIRST_ERROR, ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError
from embermq.queues.mqtt.bodies import BodyCache
from embermq.queues.mqtt.consumer import MqttConsumer
from embermq.queues.mqtt.frames import put_on_link, queue_frame
from embermq.queues.mqtt.in_window import QueueDelivery
from embermq.queues.mqtt.subscription import AckMode, QueueSubscription
from embermq.queues.mqtt.writing import Writing
from embermq.queues.names import QUEUE_PREFIX, QueueKind, Verb, kind_of
from embermq.queues.queue import ConsumerDelivery as Owed
from embermq.queues.queues import Queues
from embermq.queues.settling import REASON_CHARACTERS_MAX, SettleRequest
from embermq.sessions.link import Link
from embermq.sessions.packet_ids import next_packet_id
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState

READ_AHEAD = 32
"""Bodies that are read at a time for one consumer."""
READ_AHEAD_ALL = 256
"""And for all together."""
BULK_BYTES_MAX = 256 * 1024
"""Bytes of packets put on one link in one tick."""
ROUNDS_MAX = 8
"""How often one tick asks the core, while it hands out something; what is left is the next one's."""
TOO_LARGE_MS = 1_000
"""How long a dead letter waits at least that was too large for a consumer: without a pause it would be tried all the
time."""
RETRY_MS = 500
"""When bodies could not be read they are asked for again so much later."""

_UNREAD = Message("", b"", 0, False, "", 5, 0)
_NOTHING = Message("", b"", 1, False, "", 5, 0)
"""Stands for a body that has been sent."""


class Deliveries:
    """Sends deliveries to all consumers of this broker, by client id."""

    def __init__(self, state: BrokerState, core: Queues, bodies: BodyCache) -> None:
        self._state = state
        self._core = core
        self._bodies = bodies
        self._writing = Writing(state, self._began)
        self.consumers: dict[str, MqttConsumer] = {}
        self.failing = ""
        """The last error of the store of bodies, "" when it works."""
        self._later: OrderedDict[MqttConsumer, None] = OrderedDict()
        """Consumers for whom the next tick goes on."""
        self._reading = 0
        self._readers_waiting: OrderedDict[MqttConsumer, None] = OrderedDict()
        self._retry_at_ms = 0
        self._goes_on = False
        self._stalled: dict[MqttConsumer, list[tuple[str, str]]] = {}
        """Who has taken nothing for a whole lease, with its places in groups where it gets nothing until it does."""

    # Ticks

    def run(self) -> None:
        """Hand out what the core has, and send what can be sent."""
        now_ms = self._state.tick.now_ms
        self._writing.look(now_ms)
        if self._stalled:
            self._let_in(now_ms)
        later, self._later = self._later, OrderedDict()
        if self._goes_on or 0 < self._retry_at_ms <= now_ms:
            if self._retry_at_ms <= now_ms:
                self._retry_at_ms = 0
            self._goes_on = False
            for consumer in self.consumers.values():
                later[consumer] = None
        for _ in range(ROUNDS_MAX):
            handed = self._core.run(now_ms)
            for owed in handed:
                taker = self.consumers.get(owed.client_id)
                if taker is None or taker.link is None or taker.session.held_under != owed.epoch:
                    self._core.leave(owed.queue, owed.stamps.group, owed.client_id, now_ms)
                    continue
                taker.put_out(owed)
                later[taker] = None
            self._leave_out()
            while later:
                self.pump(later.popitem(last=False)[0])
            if not handed or self._core.next_due_ms() != 0:
                break

    def next_due_ms(self) -> int | None:
        """When `run` has something to do; 0 for at once."""
        if self._later:
            return 0
        due = (self._core.next_due_ms(), self._writing.next_due_ms, self._retry_at_ms or None)
        return min((each for each in due if each is not None), default=None)

    # Consumers that take nothing

    def _leave_out(self) -> None:
        """Those whom the core has found to have stalled: they hold nothing that waits here any more."""
        for queue, group, client_id in self._core.take_stalled():
            consumer = self.consumers.get(client_id)
            if consumer is not None and consumer.link is not None:
                self._state.counters.queue_consumers_stalled += 1
                consumer.drop_unsent((queue, group))
                self._stalled.setdefault(consumer, []).append((queue, group))

    def _let_in(self, now_ms: int) -> None:
        """Those who take again what they are sent."""
        for consumer in [each for each in self._stalled if each.takes]:
            for queue, group in self._stalled.pop(consumer):
                self._core.resume(queue, group, consumer.session.client_id, now_ms)

    # Sending

    def pump(self, consumer: MqttConsumer) -> None:
        """Send what there is room for."""
        session, link, outbox = consumer.session, consumer.link, consumer.outbox
        while outbox and link is not None and not link.closing:
            if link.paused:
                consumer.read.clear()  # they would wait in memory for as long as the client likes
                return
            if session.resend or len(session.window) >= session.window_max:
                return  # what is sent anew keeps its packet id, and goes first
            if link.bulk_bytes >= BULK_BYTES_MAX:
                self._later[consumer] = None
                return
            owed = next(iter(outbox.values()))
            if self._core.doubts and owed.queue in self._core.doubts:
                self._core.run_soon(owed.queue)
                self._state.tick.wake()
                return
            body = self._body(consumer, owed.offset)
            if body is _UNREAD:
                self._read(consumer)
                return
            self._send(consumer, link, outbox.popitem(last=False)[1], body)
        if not outbox:
            consumer.read.clear()

    def go_on(self) -> None:
        """What waits because its queue was in doubt may be sent by the next tick."""
        self._goes_on = True

    def _send(self, consumer: MqttConsumer, link: Link, owed: Owed, body: Message | None) -> None:
        """One message, unless something is against it now; then the core hears of it."""
        session, counters, now_ms = consumer.session, self._state.counters, self._state.tick.now_ms
        subscription = consumer.places.get((owed.queue, owed.stamps.group))
        if subscription is None or not self._core.holds(owed, session.held_under):
            return  # it was given back, or has ended
        topic = QUEUE_PREFIX + owed.queue
        if session.permissions is not None and not session.permissions.may_consume(topic):
            counters.deliveries_denied += 1
            self._core.leave(owed.queue, owed.stamps.group, session.client_id, now_ms)
            return
        if owed.expires_ms <= now_ms:
            self._settle(session, owed, Verb.NACK, "its time was over before it could be sent")
            return
        if body is None:
            counters.queue_bodies_missing += 1
            self._settle(session, owed, Verb.REJECT, "its body is lost")
            return
        if owed.stamps.delivery_count == 1 and owed.stamps.first_delivered_ms != now_ms:
            owed = replace(owed, stamps=replace(owed.stamps, first_delivered_ms=now_ms))
        mode = mode_on(subscription, link)
        qos = 0 if mode is AckMode.NONE else min(body.qos or 1, subscription.qos)
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        delivery = QueueDelivery(
            body, b"", -1, qos, False, identifiers, from_queue=True, owed=owed, mode=mode
        )
        if qos:
            delivery.packet_id = next_packet_id(session)
        size = put_on_link(link, delivery, topic, queue_frame(body, delivery, owed, link, now_ms), counters)
        if size > link.packet_bytes_max:
            self._cannot_take(session, owed, size, link.packet_bytes_max)
            return
        if qos:
            session.window[delivery.packet_id] = delivery
        link.bulk_bytes += size
        delivery.message = _NOTHING
        self._writing.sent(consumer, link, delivery)

    def _cannot_take(self, session: Session, owed: Owed, size: int, limit: int) -> None:
        """Larger than the client takes, today and with every try: a dead letter at once, so that it holds up nothing.
        A dead letter itself stays where it is, for a consumer that takes more."""
        self._state.counters.dropped_too_large += 1
        reason = f"a packet of {size} bytes, {session.client_id} takes {limit}"
        if kind_of(owed.queue) is QueueKind.DEAD_LETTERS:
            backoff_ms = self._core.queue(owed.queue).settings.retry_policy.initial_backoff
            delay_ms = max(TOO_LARGE_MS, backoff_ms)
            self._settle(session, owed, Verb.NACK, reason, delay_ms=delay_ms)
        else:
            self._settle(session, owed, Verb.REJECT, reason)

    # Bodies

    def _body(self, consumer: MqttConsumer, offset: int) -> Message | None:
        body = consumer.read.pop(offset, _UNREAD)
        if body is _UNREAD:
            body = self._bodies.message(offset) or _UNREAD
        return body

    def _read(self, consumer: MqttConsumer) -> None:
        """Ask for the next bodies of a consumer, when its turn comes."""
        if consumer.asked or self._retry_at_ms:
            return
        if self._reading >= READ_AHEAD_ALL:
            self._readers_waiting[consumer] = None
            return
        wanted: dict[str, dict[int, int]] = {}
        asked = consumer.asked = set()
        for owed in islice(consumer.outbox.values(), READ_AHEAD):
            offset = owed.offset
            if offset not in asked and offset not in consumer.read and self._bodies.message(offset) is None:
                asked.add(offset)
                wanted.setdefault(owed.queue, {})[offset] = owed.stamps.sequence
        self._reading += len(asked)
        for name, numbers in wanted.items():
            queue = self._core.find(name)
            generation = queue.generation if queue is not None else 0  # nobody has it any more
            self._bodies.ask(generation, tuple(numbers.items()), partial(self._take, consumer, asked))

    def _take(
        self, consumer: MqttConsumer, asked: set[int], found: Mapping[int, Message | None] | StoreError
    ) -> None:
        if isinstance(found, StoreError):
            self.failing = str(found)
            self._retry_at_ms = self._state.tick.now_ms + RETRY_MS
            self._reading -= len(asked)
            asked.clear()
        else:
            self.failing = ""
            self._reading -= len(asked & found.keys())
            asked.difference_update(found)
            if consumer.asked is asked:
                consumer.read.update(found)
                self._later[consumer] = None
        if self._reading < READ_AHEAD_ALL:
            self._later.update(self._readers_waiting)  # those for whom there is no room yet wait again
            self._readers_waiting.clear()
        self._state.tick.wake()

    # Leases and settling

    def note_written(self, session: Session) -> None:
        """Have leases begin for what the client must have by now: it is about to say something of it."""
        consumer = self.consumers.get(session.client_id)
        if consumer is not None:
            self._writing.note(consumer)

    def _began(self, session: Session, deliveries: Sequence[QueueDelivery]) -> None:
        """The socket has these PUBLISHes [queues-22]."""
        fresh = [delivery for delivery in deliveries if not delivery.is_written]
        if not fresh:
            return
        self._core.written([delivery.owed for delivery in fresh], self._state.tick.now_ms)
        for delivery in fresh:
            delivery.is_written = True
            if delivery.mode is AckMode.NONE:
                self._settle(session, delivery.owed, Verb.ACK, "")

    def settled(self, session: Session, delivery: QueueDelivery, reason_code: int, reason: str) -> None:
        """PUBACK, PUBCOMP or PUBREC with an error: its packet id is free [queues-27]. It may come after an
        UNSUBSCRIBE."""
        self._began(session, (delivery,))
        if delivery.mode is AckMode.PUBACK:
            verb = _verb(reason_code)
            owed = delivery.owed
            now_ms = self._state.tick.now_ms
            is_done = verb is Verb.ACK and self._core.acknowledge(owed, session.held_under, now_ms)
            # An ack is as good as one that names the message; an error is of this delivery alone, and may be late.
            if not is_done and (verb is Verb.ACK or self._core.is_newest(owed)):
                self._settle(session, owed, verb, reason)
        self.writable(session)

    def writable(self, session: Session) -> None:
        """The socket takes data again, or the window has room."""
        consumer = self.consumers.get(session.client_id)
        if consumer is not None and consumer.session is session:
            if consumer in self._stalled:
                self._state.tick.wake()
            self.pump(consumer)

    def released(self, session: Session, delivery: QueueDelivery) -> None:
        """PUBREC: the client has it."""
        self._began(session, (delivery,))

    def completed(self, session: Session, packet_id: int) -> None:
        """Something else of the session was acknowledged: there is room; and it may be a PUBREL of a connection
        before."""
        consumer = self.consumers.get(session.client_id)
        if consumer is None:
            return
        delivery = consumer.releasing.pop(packet_id, None) if consumer.releasing else None
        if delivery is not None and delivery.mode is AckMode.PUBACK:
            self._settle(session, delivery.owed, Verb.ACK, "")
        self.writable(session)

    def _settle(
        self, session: Session, owed: Owed, verb: Verb, reason: str, *, delay_ms: int | None = None
    ) -> None:
        stamps = owed.stamps
        said = reason[:REASON_CHARACTERS_MAX]
        request = SettleRequest(verb, (stamps.message_id,), stamps.group, said, delay_ms)
        self._core.settle(owed.queue, request, session.client_id, session.held_under, self._state.tick.now_ms)

    # Consumers come and go

    def open(self, consumer: MqttConsumer, link: Link) -> None:
        """Begin to deliver to a consumer whose client is connected."""
        consumer.begin(link)

    def close(self, consumer: MqttConsumer) -> None:
        """Its client is gone; what the socket took before is charged."""
        self._writing.end(consumer)
        self._later.pop(consumer, None)
        self._readers_waiting.pop(consumer, None)
        self._stalled.pop(consumer, None)
        consumer.end()


def _verb(reason_code: int) -> Verb:
    if reason_code < FIRST_ERROR:
        return Verb.ACK
    return Verb.REJECT if reason_code == ReasonCode.PAYLOAD_FORMAT_INVALID else Verb.NACK


def mode_on(subscription: QueueSubscription, link: Link) -> AckMode:
    """What settles on this connection: a client that speaks MQTT 3 now has no control topics, since it is told no
    message id."""
    if subscription.ack_mode is AckMode.EXPLICIT and link.client_version is not ProtocolVersion.V5:
        return AckMode.PUBACK
    return subscription.ack_mode
