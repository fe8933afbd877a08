"""Queues of responses, `$queue/responses/<id>`: in memory, one consumer each, gone soon after it [queues-38].

One is made by the SUBSCRIBE of who asks, and stands as long as that client is connected and subscribed; after that for
the timeout of the request and the grace for a new connection, so that an answer finds who comes back. What comes for
none is late: it is dropped and counted, and its publisher is told that nobody waits. PUBACK settles.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from embermq.model.message import Message, said_bytes
from embermq.mqtt.topics.names import SHARE_PREFIX, shown
from embermq.mqtt.value import replace
from embermq.mqtt.wire.packets import Subscription
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.queues.durations import parse_delay
from embermq.queues.errors import PropertyRefused, QueueRefusal
from embermq.queues.mqtt.frames import put_on_link
from embermq.queues.mqtt.in_window import ResponseDelivery
from embermq.queues.names import QUEUE_PREFIX, RESPONSE_PREFIX, parse_filter
from embermq.queues.publication import UserProperties, without_reserved
from embermq.queues.settings import BrokerQueueSettings
from embermq.sessions.forwarded_frames import message_frame
from embermq.sessions.link import Link
from embermq.sessions.member_ids import client_of
from embermq.sessions.packet_ids import next_packet_id
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import PublishRefusal, Verdict
from embermq.sessions.timers import Timer

TIMEOUT = "timeout"
"""User property of the SUBSCRIBE: how long a request waits; seconds or a duration."""
TIMEOUT_MS = 30_000
"""How long a queue stays when its client is gone and has not said otherwise, besides `disconnect_grace_ms`."""
TIMEOUT_MAX_MS = 24 * 3_600_000
"""Queues whose client is gone stay so long at most: who asks under ever new names would fill the memory."""
QUEUES_MAX = 100
"""Queues of responses that one client may have, each for many requests; in each wait at most `WAITING_MAX`."""
WAITING_MAX = 1_000
"""Responses that wait in one queue while its client does not take them: they are in memory alone."""
BYTES_MAX = 4 * 1024 * 1024
"""Bytes of their topics, payloads and properties; past either a response is refused with 0x97."""
V3_FAILURE = 0x80
LATE = "nobody waits for this response"
FULL = "too many responses wait for their consumer"


class ResponseQueue:
    """`session` is None once that of its consumer is over; only the same client and user gets in again."""

    def __init__(self, name: str, topic_filter: str, session: Session) -> None:
        self.name = name
        self.topic_filter = topic_filter
        self.owner = (client_of(session.client_id), session.principal.user)
        self.session: Session | None = session
        self.qos = 0
        self.identifiers: tuple[int, ...] = ()
        self.timeout_ms = 0
        self.waiting: deque[Message] = deque()
        self.waiting_bytes = 0
        self.ending: Timer | None = None

    def put(self, message: Message) -> None:
        self.waiting.append(message)
        self.waiting_bytes += said_bytes(message)

    def put_back(self, messages: list[Message]) -> None:
        """What a connection took with it, before the rest."""
        self.waiting.extendleft(reversed(messages))
        self.waiting_bytes += sum(map(said_bytes, messages))

    def take(self) -> Message:
        message = self.waiting.popleft()
        self.waiting_bytes -= said_bytes(message)
        return message


class Responses:
    """All queues of responses, by name."""

    def __init__(self, state: BrokerState, settings: BrokerQueueSettings) -> None:
        self._state = state
        self._settings = settings
        self._queues: dict[str, ResponseQueue] = {}
        self._of_client: dict[str, dict[str, ResponseQueue]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    # Who asks

    def subscribe(
        self,
        link: Link,
        session: Session,
        asked: Subscription,
        identifier: int,
        user_properties: UserProperties,
    ) -> tuple[int, str]:
        """See `DurableQueues.subscribe`; QoS 2 is not granted."""
        try:
            queue = self._open(session, asked.topic_filter, user_properties)
        except QueueRefusal as refusal:
            self._state.counters.queue_subscriptions_refused += 1
            is_v5 = link.version is ProtocolVersion.V5
            return (refusal.reason_code if is_v5 else V3_FAILURE), refusal.message
        queue.qos = min(asked.qos, 1)
        queue.identifiers = (identifier,) if identifier else ()
        self._state.tick.batch.when_stored(session.generation, partial(self._pump, queue))
        return queue.qos, ""

    def _open(self, session: Session, topic_filter: str, user_properties: UserProperties) -> ResponseQueue:
        parsed = parse_filter(topic_filter)
        if parsed.group:
            raise QueueRefusal(
                f"{shown(topic_filter)}: a queue of responses has one consumer",
                ReasonCode.TOPIC_FILTER_INVALID,
            )
        timeout_ms = self._timeout_ms(user_properties)
        queue = self._queues.get(parsed.name)
        if queue is None:
            own = self._of_client.setdefault(client_of(session.client_id), {})
            if len(own) >= QUEUES_MAX:
                raise QueueRefusal(
                    f"{session.client_id} has {len(own)} queues of responses, the limit is {QUEUES_MAX}",
                    ReasonCode.QUOTA_EXCEEDED,
                )
            queue = self._queues[parsed.name] = own[parsed.name] = ResponseQueue(
                parsed.name, topic_filter, session
            )
        elif queue.owner != (client_of(session.client_id), session.principal.user):
            raise QueueRefusal(
                f"{shown(topic_filter)} has another consumer already", ReasonCode.NOT_AUTHORIZED
            )
        queue.timeout_ms = timeout_ms
        self._stays(queue, session)
        if topic_filter not in session.queue_filters:
            session.queue_filters |= {topic_filter}
            self._state.quotas.adds(session, topic_filter)
        return queue

    def _timeout_ms(self, user_properties: UserProperties) -> int:
        texts = [value for name, value in user_properties if name == TIMEOUT]
        if not texts:
            return TIMEOUT_MS
        try:
            timeout_ms = int(parse_delay(texts[0]))
        except ValueError as error:
            raise PropertyRefused(f"user property {TIMEOUT}: {error}") from None
        if timeout_ms > TIMEOUT_MAX_MS:
            raise PropertyRefused(f"user property {TIMEOUT}: {shown(texts[0])} is longer than a day")
        return timeout_ms

    def unsubscribe(self, session: Session, topic_filter: str) -> bool:
        """False when it is no queue of responses of this session."""
        queue = next(
            (each for each in self._of(session) if each.topic_filter == topic_filter),
            None,
        )
        if queue is None:
            return False
        session.queue_filters -= {topic_filter}
        self._state.quotas.removes(session, topic_filter)
        self._remove(queue)
        return True

    def connected(self, session: Session) -> None:
        """Go on for a client that is back: send what waits for it."""
        for queue in self._of(session):
            self._stays(queue, session)
            self._pump(queue)

    def gone(self, session: Session) -> None:
        """Its connection is over, its window not cleared yet: what was not acknowledged comes again."""
        for queue in self._of(session):
            queue.put_back(
                [
                    delivery.message
                    for delivery in session.window.values()
                    if isinstance(delivery, ResponseDelivery) and delivery.queue is queue
                ]
            )
            self._ends_later(queue)

    def ended(self, session: Session) -> None:
        """Its session is over: its client may come back with another one."""
        self.gone(session)
        for queue in self._of(session):
            queue.session = None

    def _of(self, session: Session) -> list[ResponseQueue]:
        own = self._of_client.get(client_of(session.client_id)) if self._of_client else None
        return [queue for queue in own.values() if queue.session is session] if own else []

    def _stays(self, queue: ResponseQueue, session: Session) -> None:
        queue.session = session
        self._state.timers.cancel(queue.ending)
        queue.ending = None

    def _ends_later(self, queue: ResponseQueue) -> None:
        self._state.timers.cancel(queue.ending)
        due_ms = self._state.tick.now_ms + queue.timeout_ms + self._settings.disconnect_grace_ms
        queue.ending = self._state.timers.at(due_ms, partial(self._end, queue))

    def _end(self, queue: ResponseQueue) -> None:
        queue.ending = None
        session = queue.session
        if session is not None:
            session.queue_filters -= {queue.topic_filter}
            self._state.quotas.removes(session, queue.topic_filter)
        self._remove(queue)

    def _remove(self, queue: ResponseQueue) -> None:
        self._state.timers.cancel(queue.ending)
        self._state.counters.queue_responses_late += len(queue.waiting)
        del self._queues[queue.name]
        own = self._of_client[queue.owner[0]]
        del own[queue.name]
        if not own:
            del self._of_client[queue.owner[0]]

    # Who answers

    def put(self, message: Message, name: str) -> Verdict | PublishRefusal:
        """What a PUBLISH to a queue of responses comes to, or a will."""
        queue = self._queues.get(name)
        counters = self._state.counters
        if queue is None:
            counters.queue_responses_late += 1
            return Verdict(ReasonCode.NO_MATCHING_SUBSCRIBERS, LATE)
        if queue.waiting_bytes + said_bytes(message) > BYTES_MAX or (len(queue.waiting) >= WAITING_MAX):
            counters.queue_responses_dropped += 1
            return PublishRefusal(ReasonCode.QUOTA_EXCEEDED, FULL)
        queue.put(_cleaned(message))
        self._pump(queue)
        return Verdict(ReasonCode.SUCCESS)

    # On their way

    def _pump(self, queue: ResponseQueue) -> None:
        session = queue.session
        link = session.link if session is not None else None
        if session is None or link is None:
            return
        now_ms, counters = self._state.tick.now_ms, self._state.counters
        while queue.waiting and not (link.closing or link.paused):
            if session.resend or len(session.window) >= session.window_max:
                return
            message = queue.take()
            if message.is_expired(now_ms):
                counters.dropped_expired += 1
                continue
            if session.permissions is not None and not session.permissions.may_receive(message.topic):
                counters.deliveries_denied += 1
                continue
            qos = min(message.qos, queue.qos)
            delivery = ResponseDelivery(
                message, b"", -1, qos, False, queue.identifiers, from_queue=True, queue=queue
            )
            if qos:
                delivery.packet_id = next_packet_id(session)
            frame = message_frame(
                message,
                qos=qos,
                retain=False,
                version=link.version,
                identifiers=queue.identifiers,
                now_ms=now_ms,
            )
            if put_on_link(link, delivery, message.topic, frame, counters) > link.packet_bytes_max:
                counters.dropped_too_large += 1
            elif qos:
                session.window[delivery.packet_id] = delivery

    def writable(self, session: Session) -> None:
        """The socket or the window has room."""
        for queue in self._of(session):
            self._pump(queue)


def is_of_responses(topic_filter: str) -> bool:
    """Whether a filter below `$queue/`, shared or not, is about them; it may be wrong otherwise."""
    if topic_filter.startswith(SHARE_PREFIX):
        topic_filter = topic_filter[len(SHARE_PREFIX) :].partition("/")[2]
    return topic_filter.startswith(QUEUE_PREFIX + RESPONSE_PREFIX)


def _cleaned(message: Message) -> Message:
    """Without user properties that are the broker's own [queues-3]."""
    properties = message.properties
    if properties is None or not properties.user_properties:
        return message
    kept = without_reserved(properties.user_properties)
    return replace(message, properties=replace(properties, user_properties=kept))
