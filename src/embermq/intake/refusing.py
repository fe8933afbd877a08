"""Why a PUBLISH is not taken, and what its publisher is told: each reason a question of its own.

A question that is answered with True has seen to the answer of the publisher, which comes in the place of the
acknowledgement."""

from embermq.formats.log_record import encode_record
from embermq.intake.publish_rate import publish_rate
from embermq.model.message import Message
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import SERVED_BYTES_MAX, SERVED_LEVELS_MAX, is_system_topic, validate_topic
from embermq.mqtt.wire.encoder import puback, pubrec
from embermq.mqtt.wire.packets import Puback, Publish, Pubrec
from embermq.mqtt.wire.properties import Properties, is_payload_format_valid
from embermq.mqtt.wire.reason_codes import FIRST_ERROR, ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.routing.router import NO_MATCH, Match
from embermq.sessions.client_events import EventKind
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.settings import payload_too_large
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted, Verdict

DENIED = "not allowed to publish there"
PINNED = "readers of the message log are too far behind"
BEHIND = "the store of sessions is too far behind"
LOG_FULL = "too much waits for the message log"
TOO_LARGE = "too many applications are to get it, the message log does not take that"


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

    def is_denied(self, link: Link, session: Session, packet: Publish, topic: str) -> bool:
        """The client may not publish there: answered in its place, or dropped when there is no answer. What repeats a
        QoS 2 message that was taken belongs to that one."""
        permissions, qos = session.permissions, packet.qos
        if permissions is None or permissions.may_publish(topic):
            return False
        if qos == 2 and session.receiving is not None and packet.packet_id in session.receiving:
            return False
        self._counters.publishes_denied += 1
        self._state.tell(link.event(EventKind.DENIED, DENIED, ReasonCode.NOT_AUTHORIZED, topic=topic))
        if qos:
            self.refuse_in_place(link, packet, ReasonCode.NOT_AUTHORIZED, DENIED)
        elif link.version is not ProtocolVersion.V5 and self._state.authorization.denied_publish_3 == "close":
            link.close(DENIED)
        return True

    def is_refused(self, link: Link, packet: Publish, topic: str) -> bool:
        """Nobody may publish there: that is a matter of this message alone [MQTT 5.0, 3.4.2.1]. What is wrong in itself
        does not come here. Of QoS 0 it is dropped."""
        code = ReasonCode.TOPIC_NAME_INVALID
        if is_system_topic(topic):
            text = "topics below $SYS are the broker's own"
            if link.version is not ProtocolVersion.V5:
                code = ReasonCode.NOT_AUTHORIZED  # 3.x is told neither; there is a setting for what it gets
        else:
            try:
                validate_topic(topic, SERVED_BYTES_MAX, SERVED_LEVELS_MAX)
            except TopicError as error:
                text = str(error)
            else:
                return False
        self.refuse(link, packet, code, text)
        return True

    def is_in_use(self, link: Link, session: Session, packet: Publish) -> bool:
        """A QoS 1 message with the id of a QoS 2 message that is not released: the client has another idea of the
        session than we have [MQTT 5.0, 3.4.2.1]. 3.x has no word for it, and no harm comes of it there."""
        if link.version is not ProtocolVersion.V5 or packet.packet_id not in (session.receiving or ()):
            return False
        self.refuse_in_place(
            link, packet, ReasonCode.PACKET_IDENTIFIER_IN_USE, "a QoS 2 message has this packet id"
        )
        return True

    def has_room(self, message: Message) -> bool:
        """Whether the message may be retained; one that only deletes always may."""
        if not message.payload:
            return True
        limit_bytes = self._state.settings.retained_bytes_max
        size_bytes = len(encode_record(message, b""))  # properties may be the most of it
        return self._state.retained.has_room(message.topic, size_bytes, limit_bytes)

    def refuse_retained(self, link: Link, packet: Publish) -> None:
        """There is no room to retain the message; of QoS 0 it is dropped."""
        self._counters.refused_retained += 1
        if packet.qos:
            text = "no room for more retained messages"
            self.refuse_in_place(link, packet, ReasonCode.QUOTA_EXCEEDED, text)

    def is_too_large(self, link: Link, packet: Publish, record: bytes) -> bool:
        """The log would not take it, although the packet is not too large: too many applications are to get it. It
        counts as unanswered already."""
        if not self._state.record_objection(record):
            return False
        if packet.qos:
            self.answer_later(link, packet, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, TOO_LARGE)
        else:
            self._counters.publishes_refused += 1
        return True

    def is_unwanted(self, link: Link, packet: Publish) -> bool:
        """The settings do not allow it; only asked when they do not allow everything."""
        settings = self._state.settings
        if packet.retain and not settings.retain_available:  # [MQTT-3.2.2-14]
            link.disconnect(ReasonCode.RETAIN_NOT_SUPPORTED, "messages are not retained here")
            return True
        max_qos = self._state.terms_of(link).max_qos
        if packet.qos > max_qos:  # [MQTT-3.2.2-11]
            link.disconnect(ReasonCode.QOS_NOT_SUPPORTED, f"QoS {packet.qos}, the maximum is {max_qos}")
            return True
        if settings.payload_bytes_max and len(packet.payload) > settings.payload_bytes_max:
            text = payload_too_large(packet.payload, settings)
            self.refuse(link, packet, ReasonCode.QUOTA_EXCEEDED, text)
            return True
        if settings.validate_payload_format and not is_payload_format_valid(
            packet.properties, packet.payload
        ):
            self._refuse_format(link, packet)
            return True
        return False

    def is_too_fast(self, link: Link, session: Session, packet: Publish) -> bool:
        """The client publishes more than the settings allow. What repeats a QoS 2 message that is held adds nothing."""
        repeats = packet.qos == 2 and session.receiving is not None and packet.packet_id in session.receiving
        if repeats or self._rate is None or self._rate.admits(link, self._tick.now_ms):
            return False
        if packet.qos:
            self.refuse_in_place(link, packet, ReasonCode.QUOTA_EXCEEDED, "messages come too fast")
        return True

    def _refuse_format(self, link: Link, packet: Publish) -> None:
        """The payload is not the UTF-8 text that its format indicator announces [MQTT-3.3.2-4]: answered in its place,
        or by DISCONNECT when there is no answer to a PUBLISH."""
        text = "the payload is not UTF-8"
        if packet.qos:
            self.refuse_in_place(link, packet, ReasonCode.PAYLOAD_FORMAT_INVALID, text)
        else:
            link.disconnect(ReasonCode.PAYLOAD_FORMAT_INVALID, text)

    def is_pinned(self, link: Link, packet: Publish, match: Match) -> bool:
        """Readers that are too far behind hold the log, or the session store or the log itself is: nothing more is
        taken, for them or at all."""
        if self._state.log_full:  # an answer in its place would have to wait as well
            self._counters.refused_log_full += 1
            link.disconnect(ReasonCode.QUOTA_EXCEEDED, LOG_FULL)
            return True
        if self._state.session_store_full:
            self._counters.refused_session_store += 1
            self.answer_later(link, packet, ReasonCode.QUOTA_EXCEEDED, BEHIND)
            return True
        refused = self._state.refused_generations
        if not self._state.refuse_all and not any(
            receiver.session.generation in refused for receiver in match.applications
        ):
            return False
        self.answer_later(link, packet, ReasonCode.QUOTA_EXCEEDED, PINNED)
        return True

    def refuse(self, link: Link, packet: Publish, code: ReasonCode, text: str) -> None:
        """A message that nobody may publish: answered in its place; of QoS 0 it is dropped."""
        if packet.qos:
            self.refuse_in_place(link, packet, code, text)
        else:
            self._counters.publishes_refused += 1

    def refuse_in_place(self, link: Link, packet: Publish, code: ReasonCode, text: str) -> None:
        """The answer to a QoS 1 or 2 message keeps the order in which messages came."""
        link.unanswered += 1
        if link.unanswered > self._receive_maximum and link.version is ProtocolVersion.V5:
            self.end_at_receive_maximum(link)
        else:
            self.answer_later(link, packet, code, text)

    def answer_later(self, link: Link, packet: Publish, code: ReasonCode, text: str) -> None:
        message = Message("", b"", packet.qos, False, "", link.version, self._tick.now_ms)
        self._tick.batch.accepted.append(
            Accepted(message, b"", NO_MATCH, link, packet.packet_id, refusal=text, refusal_code=code)
        )

    def end_at_receive_maximum(self, link: Link) -> None:
        """More of the client's messages are unanswered than it was told it may have [MQTT-3.3.4-7]."""
        limit = self._receive_maximum
        link.disconnect(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, f"the Receive Maximum is {limit}")

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

    def answer(self, link: Link, qos: int, packet_id: int, reason: ReasonCode, text: str) -> None:
        """Refuse a message whose turn to be answered has come. MQTT 5 says why; 3.x has no word for it, so it
        loses the connection."""
        self._counters.publishes_refused += 1
        if not qos or link.closing:
            return
        link.unanswered -= 1
        if link.version is not ProtocolVersion.V5:
            link.note_refusal(f"PUBLISH: {text}")
            if reason is ReasonCode.NOT_AUTHORIZED and self._state.authorization.denied_publish_3 == "drop":
                link.send((puback if qos == 1 else pubrec)(packet_id))  # [MQTT 3.1.1, MQTT-3.3.5-2]
            else:
                link.close(f"PUBLISH: {text}")
            return
        properties = Properties(reason_string=text) if link.problem_information else None
        link.send_packet((Puback if qos == 1 else Pubrec)(packet_id, reason, properties))
