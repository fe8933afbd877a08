"""Messages that were in the log before come in once more, by their number in a replay.

The number of the next one is stored with the records of a piece: all or nothing, or where the log is a store of its
own behind them, and each record has its number (`durability.recovery`). So a piece that is asked for again, because
its answer was lost with the broker or with the program that asks, takes what is missing of it, and nothing twice. What
rules publish comes in by the same way. What is for a durable queue of another slot is a record here, by which that slot
takes it over.
"""

from collections.abc import Mapping, Sequence

from embermq.formats.log_record import FIELD_ADDRESSED, Stamp, encode_stamps, replayed_field
from embermq.intake.publishing import Publishing
from embermq.model.message import Message
from embermq.mqtt.value import replace
from embermq.routing.router import Match, Receiver
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import PublishRefusal, RecordFields, Replayed

GRANTED_QOS = 2
"""A message that is replayed to one client keeps its QoS, whatever was granted to its subscriptions."""
RULE = "rule/"
"""Before the name of a rule, in the id of what counts as its replay; behind it `/PARTITION`, which the first one has
not."""
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
        self,
        replay: str,
        first: int,
        messages: Sequence[Message | None],
        session: Session | None,
        marks: Mapping[int, RecordFields] | None = None,
    ) -> PublishRefusal | None:
        """Messages number `first` and on, of which None is passed over; for `session` alone, an application's, or for
        whoever their topics lead to. `marks` are fields of their records, by number. Those that were taken before are
        left out. Returns why one is refused: the ones from there on are not taken."""
        receivers = _only(session) if session is not None else None
        fields = ADDRESSED if receivers is not None else ()
        assert first <= self.next_of(replay), "nothing is left out"
        numbered = [
            (_numbered(replay, number, fields + (marks or {}).get(number, ())), message)
            for number, message in enumerate(messages, first)
            if message is not None
        ]
        return self._take(replay, numbered, first + len(messages), receivers)

    def take_of_rule(
        self, rule: str, partition: int, messages: Sequence[tuple[int, RecordFields, Message]], end: int
    ) -> PublishRefusal | None:
        """Messages of a rule that come of a partition of the log, by number, in their order, with the fields of their
        records; `end`: all below is done."""
        replay = _replay_of(rule, partition)
        numbered = [(_numbered(replay, number, fields), message) for number, fields, message in messages]
        return self._take(replay, numbered, end, None, is_new=True)

    def places_of_rule(self, rule: str) -> dict[int, int]:
        """The number that the rule goes on with in each partition of the log in which it has begun."""
        found: dict[int, int] = {}
        while (number := self._state.replays.get(_replay_of(rule, len(found)))) is not None:
            found[len(found)] = number
        return found

    def begin_rule(self, rule: str, begin: Mapping[int, int]) -> None:
        """Where it begins in partitions in which it has not, all or nothing. Those of a log are numbered without
        gaps, and it begins in all that there are."""
        for partition, number in begin.items():
            replay = _replay_of(rule, partition)
            if replay not in self._state.replays:
                self._go_on(replay, number)

    def _take(
        self,
        replay: str,
        numbered: Sequence[tuple[Replayed, Message]],
        end: int,
        receivers: Match | None,
        *,
        is_new: bool = False,
    ) -> PublishRefusal | None:
        """What `is_new` has to keep to the settings; all else did when it came in first."""
        state, before = self._state, self.next_of(replay)
        for replayed, message in numbered:
            if replayed.number < before:
                continue
            refusal = self._objection(message, is_new=is_new)
            if refusal is None:
                again = replace(message, retain=False, accepted_ms=state.tick.date_ms)
                refusal = self._publishing.accept_operators(again, replayed, receivers)
            if refusal is not None:
                if replayed.number > before:
                    self._go_on(replay, replayed.number)
                return refusal
        if end > before:
            self._go_on(replay, end)
        return None

    def _go_on(self, replay: str, number: int) -> None:
        self._state.replays[replay] = self._state.tick.writes.replays[replay] = number

    def _objection(self, message: Message, *, is_new: bool) -> PublishRefusal | None:
        refusing = self._publishing.refusing
        found = refusing.objection_to(message, self._state.settings.max_qos) if is_new else None
        return found or refusing.objection_to_topic(message.topic)


def _replay_of(rule: str, partition: int) -> str:
    return f"{RULE}{rule}/{partition}" if partition else RULE + rule


def _numbered(replay: str, number: int, fields: RecordFields) -> Replayed:
    return Replayed(replay, number, (*fields, replayed_field(replay, number)))


def _only(session: Session) -> Match:
    """What leads to one APPLICATION session, by its log."""
    stamp = Stamp(session.client_id, session.generation, GRANTED_QOS)
    receiver = Receiver(session, GRANTED_QOS, False, ())
    return Match([], [], [receiver], [], encode_stamps((stamp,)), False, False)
