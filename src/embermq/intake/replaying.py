"""Messages that were in the log before come in once more, by their number in a replay.

The number of the next one is stored with the records of a piece, all or nothing. So a piece that is asked for again,
because its answer was lost with the broker or with the program that asks, takes what is missing of it, and nothing
twice.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from embermq.formats.log_record import FIELD_ADDRESSED, Stamp, encode_stamps
from embermq.intake.publishing import Publishing
from embermq.model.message import Message
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import SERVED_BYTES_MAX, SERVED_LEVELS_MAX, is_system_topic, validate_topic
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.routing.router import Match, Receiver
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import PublishRefusal, RecordFields, Replayed

GRANTED_QOS = 2
"""A message that is replayed to one client keeps its QoS, whatever was granted to its subscriptions."""
ADDRESSED: RecordFields = ((FIELD_ADDRESSED, b""),)


class Replaying:
    """See the module."""

    def __init__(self, state: BrokerState, publishing: Publishing) -> None:
        self._state = state
        self._publishing = publishing

    def next_of(self, replay: str) -> int:
        """The number of the message that the replay goes on with."""
        return self._state.replays.get(replay, 0)

    def take(
        self, replay: str, first: int, messages: Sequence[Message | None], session: Session | None
    ) -> PublishRefusal | None:
        """Messages number `first` and on, of which None is passed over; for `session` alone, an application's, or for
        whoever their topics lead to. Those that were taken before are left out. Returns why one is refused: the ones
        from there on are not taken."""
        state, refusal = self._state, None
        receivers = _only(session) if session is not None else None
        fields = ADDRESSED if receivers is not None else ()
        before = number = self.next_of(replay)
        assert first <= before, "nothing is left out"
        for message in messages[before - first :]:
            if message is not None:
                refusal = self._objection(message)
                if refusal is None:
                    again = replace(message, retain=False, accepted_ms=state.tick.date_ms)
                    replayed = Replayed(replay, number, fields)
                    refusal = self._publishing.accept_operators(again, replayed, receivers)
                if refusal is not None:
                    break
            number += 1
        if number > before:
            state.replays[replay] = state.tick.writes.replays[replay] = number
        return refusal

    def _objection(self, message: Message) -> PublishRefusal | None:
        try:
            validate_topic(message.topic, SERVED_BYTES_MAX, SERVED_LEVELS_MAX)
        except TopicError as error:
            return PublishRefusal(ReasonCode.TOPIC_NAME_INVALID, str(error))
        if is_system_topic(message.topic):
            return PublishRefusal(ReasonCode.TOPIC_NAME_INVALID, "below $SYS only the broker publishes")
        return None


def _only(session: Session) -> Match:
    """What leads to one APPLICATION session, by its log."""
    stamp = Stamp(session.client_id, session.generation, GRANTED_QOS)
    receiver = Receiver(session, GRANTED_QOS, False, ())
    return Match([], [], [receiver], [], encode_stamps((stamp,)), False, False)
