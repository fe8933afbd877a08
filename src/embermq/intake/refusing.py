"""Why a message is not taken, and what its publisher is told: each reason a question of its own.

`Publishing` says in which order they are asked. A question that is answered with True has seen to the answer of the
publisher, which comes in the place of the acknowledgement.

How fast clients may publish: each of them, and all together. A client of MQTT 5 is told that a message was too much,
and may send it again. MQTT 3 has no word for that: there every message is taken, and what was too much has to even
out before more is read.
"""

from embermq.access.authorization.rule_set import Permissions
from embermq.access.authorization.rules import ADMIN_PREFIX, Principal
from embermq.formats.log_record import encode_record
from embermq.model.counters import Counters
from embermq.model.message import Message
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import SERVED_BYTES_MAX, SERVED_LEVELS_MAX, is_system_topic, validate_topic
from embermq.mqtt.wire.encoder import puback, pubrec
from embermq.mqtt.wire.packets import Puback, Publish, Pubrec, Will
from embermq.mqtt.wire.properties import Properties, is_payload_format_valid
from embermq.mqtt.wire.reason_codes import FIRST_ERROR, ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.routing.queue_target import QueueAim, QueueTarget
from embermq.routing.router import NO_MATCH, Match
from embermq.sessions.client_events import ClientEvent, EventKind
from embermq.sessions.durable_queues import PUBLISHED_PREFIXES, DurableQueues
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.settings import MqttSettings
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted, PublishRefusal, Verdict
from embermq.sessions.token_bucket import TokenBucket


class PublishRate:
    """The rates of all clients; asked for each PUBLISH while one of the limits is set."""

    def __init__(self, settings: MqttSettings, counters: Counters, now_ms: int) -> None:
        self._each = settings.publish_rate_max
        total = settings.publish_rate_total_max
        self._total = TokenBucket(total, now_ms) if total else None
        self._counters = counters

    def admits(self, link: Link, now_ms: int) -> bool:
        """Whether the message is taken. For a client of MQTT 3 it is, and `link.throttle_ms` says how long the client
        is not to be read after it."""
        buckets = [bucket for bucket in (self._total, self._own(link, now_ms)) if bucket is not None]
        if link.version is ProtocolVersion.V5:
            if not all(bucket.has_one(now_ms) for bucket in buckets):
                self._counters.refused_publish_rate += 1
                return False
            for bucket in buckets:
                bucket.take(now_ms)
            return True
        wait_ms = max(bucket.borrow(now_ms) for bucket in buckets)
        if wait_ms:
            link.throttle_ms = wait_ms
        return True

    def _own(self, link: Link, now_ms: int) -> TokenBucket | None:
        if self._each and link.rate is None:
            link.rate = TokenBucket(self._each, now_ms)
        return link.rate


def publish_rate(settings: MqttSettings, counters: Counters, now_ms: int) -> PublishRate | None:
    """None when neither limit is set."""
    if settings.publish_rate_max or settings.publish_rate_total_max:
        return PublishRate(settings, counters, now_ms)
    return None


DENIED = PublishRefusal(ReasonCode.NOT_AUTHORIZED, "not allowed to publish there")
WILL_DENIED = "not allowed to publish the will there"
IN_USE = PublishRefusal(ReasonCode.PACKET_IDENTIFIER_IN_USE, "a QoS 2 message has this packet id")
TOO_FAST = PublishRefusal(ReasonCode.QUOTA_EXCEEDED, "messages come too fast")
LOG_FULL = "too many messages wait for the message log"
BEHIND = PublishRefusal(
    ReasonCode.QUOTA_EXCEEDED, "the store of queues has been away for too long: send it again later"
)
PINNED = PublishRefusal(ReasonCode.QUOTA_EXCEEDED, "readers of the message log are too far behind")
RETAINED_FULL = PublishRefusal(ReasonCode.QUOTA_EXCEEDED, "no room for more retained messages")
WILL_IS_NO_WORD = PublishRefusal(
    ReasonCode.TOPIC_NAME_INVALID,
    "a will neither settles what a queue has delivered nor changes its settings",
)
WILL_ELSEWHERE = PublishRefusal(
    ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    "a will cannot go to a queue of responses that belongs to another slot of the cluster",
)
PUBLISHED = frozenset({QueueAim.ENQUEUE, QueueAim.RESPOND})
"""What needs the right to publish."""
ENDING = frozenset({ReasonCode.RETAIN_NOT_SUPPORTED, ReasonCode.QOS_NOT_SUPPORTED})
"""Told by DISCONNECT: CONNACK has said already that the client must not [MQTT-3.2.2-11], [MQTT-3.2.2-14]."""


class Refusing:
    """What stands in the way of a message. `Publishing` asks, each question only where it may matter."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._tick = state.tick
        self._counters = state.counters
        self._receive_maximum = state.settings.receive_maximum
        self._rate = publish_rate(state.settings, state.counters, state.tick.now_ms)

    @property
    def limits_rate(self) -> bool:
        """Whether `is_too_fast` has to be asked."""
        return self._rate is not None

    # What the message is: asked of a PUBLISH, and of a will at CONNECT.

    def objection_to_will(
        self, link: Link, will: Will, permissions: Permissions | None
    ) -> PublishRefusal | None:
        """Why a will cannot be left, asked at CONNECT: it is owed from its CONNACK on."""
        found = self.objection_to(will, self._state.terms_of(link).max_qos) or self.objection_to_topic(
            will.topic
        )
        if found is not None:
            return PublishRefusal(found.code, f"the will: {found.text}")
        if will.topic.startswith(ADMIN_PREFIX):
            return WILL_IS_NO_WORD
        if permissions is not None and not permissions.may_publish(will.topic):
            self._counters.publishes_denied += 1
            return PublishRefusal(ReasonCode.NOT_AUTHORIZED, WILL_DENIED)
        queues = self._state.queues
        if queues is None or not will.topic.startswith(PUBLISHED_PREFIXES):
            return None
        target = self.target_of_will(queues, will.topic)
        return target if isinstance(target, PublishRefusal) else None

    def target_of_will(self, queues: DurableQueues, topic: str) -> QueueTarget | PublishRefusal:
        """What a will to a topic below `$queue/` leads to, or why it cannot: it is a message, no word to a queue."""
        target = queues.look_up(topic)
        if isinstance(target, PublishRefusal):
            return target
        if target.elsewhere and target.aim is QueueAim.RESPOND:
            return WILL_ELSEWHERE
        return target if target.aim in PUBLISHED else WILL_IS_NO_WORD

    def objection_to(self, packet: Publish | Will | Message, max_qos: int) -> PublishRefusal | None:
        """What the settings do not allow."""
        settings = self._state.settings
        if packet.retain and "retain" in settings.unavailable:
            return PublishRefusal(ReasonCode.RETAIN_NOT_SUPPORTED, "messages are not retained here")
        if packet.qos > max_qos:
            return PublishRefusal(ReasonCode.QOS_NOT_SUPPORTED, f"QoS {packet.qos}, the maximum is {max_qos}")
        payload = packet.payload
        if settings.payload_bytes_max and len(payload) > settings.payload_bytes_max:
            text = f"a payload of {len(payload)} bytes, the largest allowed is {settings.payload_bytes_max}"
            return PublishRefusal(ReasonCode.QUOTA_EXCEEDED, text)
        if settings.validate_payload_format and not is_payload_format_valid(packet.properties, payload):
            return PublishRefusal(
                ReasonCode.PAYLOAD_FORMAT_INVALID, "the payload is not UTF-8"
            )  # [MQTT-3.3.2-4]
        return None

    def is_unwanted(self, link: Link, packet: Publish) -> bool:
        """The settings do not allow it; only asked when they do not allow everything."""
        found = self.objection_to(packet, self._state.terms_of(link).max_qos)
        if found is None:
            return False
        is_malformed = found.code is ReasonCode.PAYLOAD_FORMAT_INVALID
        if found.code in ENDING or (is_malformed and not packet.qos):
            link.disconnect(found.code, found.text)
        else:
            self.refuse(link, packet.qos, packet.packet_id, found)
        return True

    def objection_to_topic(self, topic: str) -> PublishRefusal | None:
        """Why nobody may publish there: a matter of this message alone [MQTT 5.0, 3.4.2.1]."""
        if is_system_topic(topic):
            return PublishRefusal(
                ReasonCode.TOPIC_NAME_INVALID, "topics below $SYS are reserved for the broker"
            )
        try:
            validate_topic(topic, SERVED_BYTES_MAX, SERVED_LEVELS_MAX)
        except TopicError as error:
            return PublishRefusal(ReasonCode.TOPIC_NAME_INVALID, str(error))
        return None

    def is_refused(self, link: Link, packet: Publish, topic: str) -> bool:
        """Nobody may publish there; what is wrong in itself does not come here."""
        found = self.objection_to_topic(topic)
        if found is None:
            return False
        if is_system_topic(topic) and link.version is not ProtocolVersion.V5:
            found = PublishRefusal(
                ReasonCode.NOT_AUTHORIZED, found.text
            )  # so it is dropped, as what rules deny
        self.refuse(link, packet.qos, packet.packet_id, found)
        return True

    # Who publishes it, and how.

    def is_denied(self, link: Link, session: Session, packet: Publish, topic: str) -> bool:
        """The client may not publish there: answered in its place, or dropped when there is no answer."""
        permissions, qos = session.permissions, packet.qos
        if permissions is None or permissions.may_publish(topic):
            return False
        self.note_denied(link, DENIED, topic)
        self.refuse(link, qos, packet.packet_id, DENIED)
        return True

    def is_will_denied(self, topic: str, principal: Principal, permissions: Permissions | None) -> bool:
        """Who left the will may not publish it any more: the rules have changed since."""
        if permissions is None or permissions.may_publish(topic):
            return False
        self._counters.publishes_denied += 1
        self._state.tell(
            ClientEvent(
                kind=EventKind.DENIED,
                peer="",
                listener="",
                client_id=principal.client_id,
                user=principal.user,
                reason=WILL_DENIED,
                topic=topic,
            )
        )
        return True

    def note_denied(self, link: Link, refusal: PublishRefusal, topic: str) -> None:
        """Rules do not allow a PUBLISH: count it, and tell the log."""
        self._counters.publishes_denied += 1
        self._state.tell(link.event(EventKind.DENIED, refusal.text, refusal.code, topic=topic))

    def is_in_use(self, link: Link, session: Session, packet: Publish) -> bool:
        """A QoS 1 message with the id of a QoS 2 message that is not released: the client has another idea of the
        session than we have [MQTT 5.0, 3.4.2.1]. MQTT 3 cannot signal this, and no harm comes of it there."""
        if link.version is not ProtocolVersion.V5 or packet.packet_id not in (session.receiving or ()):
            return False
        self.refuse(link, packet.qos, packet.packet_id, IN_USE)
        return True

    def is_too_fast(self, link: Link, packet: Publish) -> bool:
        """The client publishes more than the settings allow."""
        if (
            self._rate is None
            or link.member_version is not None
            or self._rate.admits(link, self._tick.now_ms)
        ):
            return False
        self.refuse(link, packet.qos, packet.packet_id, TOO_FAST)
        return True

    # Whether there is room.

    def is_pinned(self, link: Link, packet: Publish, match: Match) -> bool:
        """Readers that are too far behind hold the log, or the session store or the log itself is: nothing more is
        taken, for them, for queues, or at all."""
        state = self._state
        if state.log_full:  # an answer in its place would have to wait as well
            self._counters.refused_log_full += 1
            link.disconnect(ReasonCode.QUOTA_EXCEEDED, LOG_FULL)
            return True
        queue = match.queue
        if queue is not None and state.must_queue_wait(queue.name):  # all else can wait in the log
            self._counters.refused_session_store += 1
            self.refuse(link, packet.qos, packet.packet_id, BEHIND)
            return True
        refused = state.refused_generations
        if not state.refuse_all and not any(
            receiver.session.generation in refused for receiver in match.applications
        ):
            return False
        self.refuse(link, packet.qos, packet.packet_id, PINNED)
        return True

    def has_room(self, message: Message) -> bool:
        """Whether the message may be retained; one that only deletes always may. What may not is counted."""
        if not message.payload:
            return True
        limit_bytes = self._state.settings.retained_bytes_max
        size_bytes = len(encode_record(message, b""))  # properties may be the most of it
        if self._state.retained.has_room(message.topic, size_bytes, limit_bytes):
            return True
        self._counters.refused_retained += 1
        return False

    def objection_to_record(self, record: bytes) -> PublishRefusal | None:
        """Why the log would not take it: it would have its whole tick refused. The packet is not too large: stamps of
        many applications are in it, or the log's own limit is lower."""
        if not self._state.record_objection(record):
            return None
        text = f"the message log does not take a record of {len(record)} bytes"
        return PublishRefusal(ReasonCode.QUOTA_EXCEEDED, text)

    # Answers.

    def refuse(self, link: Link | None, qos: int, packet_id: int, refusal: PublishRefusal) -> None:
        """Answer a QoS 1 or 2 message with an error, in the order in which messages came; count what is dropped because
        nobody can be told."""
        if link is None or not qos:
            self._counters.publishes_refused += 1
            return
        message = Message(
            "", b"", qos, False, "", link.version, self._tick.now_ms
        )  # its payload would wait in vain
        self._tick.batch.accepted.append(Accepted(message, b"", NO_MATCH, link, packet_id, refusal=refusal))

    def is_past_receive_maximum(self, link: Link) -> bool:
        """More of the client's messages are unanswered than it was told it may have [MQTT-3.3.4-7]; for a member its
        own node counts, for all slots."""
        if link.version is not ProtocolVersion.V5 or link.member_version is not None:
            return False
        limit = self._receive_maximum
        link.disconnect(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, f"the Receive Maximum is {limit}")
        return True

    def acknowledge(self, link: Link, accepted: Accepted, verdict: Verdict) -> None:
        """Tell a client of MQTT 5 that its message has been taken, or what became of it. PUBREC with an error ends it
        [MQTT-4.3.3-4]."""
        said = Properties(reason_string=verdict.text) if verdict.text and link.problem_information else None
        if accepted.message.qos == 1:
            link.send_packet(Puback(accepted.packet_id, verdict.code, said))
            return
        if verdict.code >= FIRST_ERROR:
            link.unanswered -= 1
        link.send_packet(Pubrec(accepted.packet_id, verdict.code, said))

    def answer(self, link: Link, qos: int, packet_id: int, refusal: PublishRefusal) -> None:
        """Refuse a message whose turn to be answered has come. MQTT 5 says why; MQTT 3 cannot, so the client loses the
        connection."""
        self._counters.publishes_refused += 1
        if not qos or link.closing:
            return
        link.unanswered -= 1
        text = refusal.text
        if link.version is not ProtocolVersion.V5:
            link.note_refusal(f"PUBLISH: {text}")
            if refusal.code is ReasonCode.NOT_AUTHORIZED:
                link.send((puback if qos == 1 else pubrec)(packet_id))  # [MQTT 3.1.1, MQTT-3.3.5-2]
            else:
                link.close(f"PUBLISH: {text}")
            return
        properties = Properties(reason_string=text) if link.problem_information else None
        link.send_packet((Puback if qos == 1 else Pubrec)(packet_id, refusal.code, properties))
