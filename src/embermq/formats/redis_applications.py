"""The layout of what Redis holds for applications: readers, parked messages, and groups of shared subscriptions.

Values are JSON as people read it, see docs/redis-keys.md. Scripts rely on how some begin: where a reader or a group
stands with `{"committed":12,`, a group with `{"generation":7,`; and on the order of the fields of what they change in
place. What is broken is a LayoutError that names the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from embermq.formats.redis_layout import BROKEN, MessageBody, broken, encode_name, message_body, name_in
from embermq.model.application_positions import UNCOUNTED, EarlyMark, ReaderPosition, StoredPositions
from embermq.model.parked_message import ParkedMessage, ParkedStage, ParkedState
from embermq.model.session_writes import QueueState
from embermq.model.shared_logs import SharedGroupRow, SharedMark
from embermq.model.tick_writes import ApplicationMark
from embermq.model.unacknowledged import OUTCOMES, Unacknowledged, WhyUnacknowledged

PLACE = "place"
"""The field of `s:a:{client}` that says where its reader stands; the others are marks, by offset."""
LAST = "last"
"""The field of `s:g:{client}` that counts what was sent."""
GROUP_PREFIX = "g:s:{"

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Position = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
_U16 = Annotated[int, Meta(ge=0, le=65_535)]
_Pairs = tuple[tuple[_Number, _Number], ...]
_State = Literal["sent", "released", "done"]
_Stage = Literal["parked", "due", "under way", "deleted"]
_STATES: dict[int, _State] = {
    QueueState.SENT: "sent",
    QueueState.RELEASED: "released",
    QueueState.DONE: "done",
}
_STAGES: dict[int, _Stage] = {
    ParkedStage.PARKED: "parked",
    ParkedStage.DUE: "due",
    ParkedStage.UNDER_WAY: "under way",
    ParkedStage.DELETED: "deleted",
}
_DROPPED = "dropped"
_WORDS = {why: name.replace(" ", "-") for why, name in OUTCOMES.items()}
_REASONS = {name: why for why, name in _WORDS.items()}
_STATE_OF = {name: state for state, name in _STATES.items()}
_STAGE_OF = {name: stage for stage, name in _STAGES.items()}


class GroupKeys(Struct, frozen=True):
    """The keys of one shared group, all in one slot."""

    group: str
    positions: str
    claims: str


def group_keys(share: str, topic_filter: str, prefix: str) -> GroupKeys:
    """The names for `$share/<share>/<topic filter>` of the slot with this prefix."""
    name = encode_name(f"{share}/{topic_filter}") + "}"
    return GroupKeys(*(f"{prefix}g:{kind}:{{{name}" for kind in "spm"))


class _Place(Struct, frozen=True):
    committed: _Number
    base: _Number
    floors: _Pairs

    @property
    def positions(self) -> StoredPositions:
        return StoredPositions(self.base, self.committed, self.floors)


_Early = tuple[_Number, _U16, Annotated[int, Meta(ge=1, le=2)], bool]
"""Position in the message log, packet id, QoS, whether PUBREC has come."""


class _ReaderPlace(_Place, frozen=True, omit_defaults=True):
    log_id: str
    packet_id: _U16
    served: _Pairs = ()
    early: tuple[_Early, ...] = ()
    settled: Annotated[int, Meta(ge=UNCOUNTED)] = UNCOUNTED


class _ReaderMark(Struct, frozen=True):
    packet_id: _U16
    state: _State
    source: _Position


class _ParkedState(Struct, frozen=True):
    stage: _Stage
    state: _State
    packet_id: _U16
    qos: Annotated[int, Meta(ge=0, le=2)]


class _Parked(_ParkedState, frozen=True):
    parked_ms: _Number
    record_bytes: _Number
    attempts: _Number
    retain: bool
    identifiers: tuple[_Number, ...]
    topic: str
    payload_bytes: _Number


class _ParkedWhole(_Parked, frozen=True, omit_defaults=True):
    message: MessageBody | None = None


class _SharedGroup(Struct, frozen=True):
    generation: _Number
    share: str
    topic_filter: str
    log_generation: _Number
    since: _Number
    identity: str
    starts: _Pairs


class _Sent(Struct, frozen=True, omit_defaults=True):
    order: _Number
    packet_id: _U16
    state: _State
    retain: bool
    identifiers: tuple[_Number, ...]
    message: MessageBody | None = None


_encode = msgspec.json.Encoder().encode
_decode_reader = msgspec.json.Decoder(_ReaderPlace).decode
_decode_place = msgspec.json.Decoder(_Place).decode
_decode_mark = msgspec.json.Decoder(_ReaderMark).decode
_decode_state = msgspec.json.Decoder(_ParkedState).decode
_decode_parked = msgspec.json.Decoder(_ParkedWhole).decode
_decode_group = msgspec.json.Decoder(_SharedGroup).decode
_decode_sent = msgspec.json.Decoder(_Sent).decode


# Readers


def encode_reader(position: ReaderPosition) -> bytes:
    """Encode where a reader stands: the value of the field `PLACE`."""
    at = position.positions
    early = [(source, one.packet_id, one.qos, one.is_released) for source, one in position.early.items()]
    return _encode(
        _ReaderPlace(
            at.committed_offset,
            at.base_offset,
            at.floors,
            position.log_id,
            position.packet_id,
            position.served,
            tuple(early),
            position.settled,
        )
    )


def decode_reader(key: str, value: bytes) -> ReaderPosition:
    """The inverse of `encode_reader`. Raises LayoutError."""
    try:
        found = _decode_reader(value)
    except ValueError as error:
        raise broken(f"{key}, field {PLACE}", error) from error
    early = {
        source: EarlyMark(packet_id, qos, is_released) for source, packet_id, qos, is_released in found.early
    }
    at = found.positions
    return ReaderPosition(found.log_id, found.packet_id, at, found.served, early, found.settled)


def encode_mark(mark: ApplicationMark) -> bytes:
    """The value of a mark; its field is the offset. It ends with the source, which scripts keep."""
    return _encode(_ReaderMark(mark.packet_id, _STATES[mark.state], mark.source))


def decode_mark(key: str, generation: int, field: bytes, value: bytes) -> ApplicationMark:
    """The inverse of `encode_mark`. Raises LayoutError."""
    try:
        offset, found = int(field), _decode_mark(value)
    except ValueError as error:
        raise broken(f"{key}, field {field!r}", error) from error
    return ApplicationMark(generation, offset, found.packet_id, _STATE_OF[found.state], found.source)


class NotedUnacknowledged(Struct, frozen=True):
    """What a session has not acknowledged, by position; `dropped` others, all below the position `below`, had to go."""

    why: dict[int, WhyUnacknowledged]
    dropped: int = 0
    below: int = 0


def encode_unacknowledged(one: Unacknowledged) -> str:
    """An entry of `s:u:{client}`."""
    return f"{one.position}:{_WORDS[one.why]}"


def decode_unacknowledged(key: str, entries: Sequence[bytes]) -> NotedUnacknowledged:
    """The whole of `s:u:{client}`; of one that is there twice what was said last. Raises LayoutError."""
    why: dict[int, WhyUnacknowledged] = {}
    dropped = below = 0
    for entry in entries:
        try:
            name, _, rest = entry.decode().partition(":")
            if name == _DROPPED:
                count, _, at = rest.partition(":")
                dropped, below = int(count), int(at)
            else:
                why[int(name)] = _REASONS[rest]
        except (ValueError, KeyError) as error:
            raise broken(f"{key}, entry {entry!r}", error) from error
    return NotedUnacknowledged(why, dropped, below)


# Parked messages


def encode_parked_state(at: ParkedState) -> bytes:
    """How a parked message begins, as an object of its own. Scripts put it in place of the one that is there."""
    return _encode(_ParkedState(_STAGES[at.stage], _STATES[at.state], at.packet_id, at.qos))


def encode_parked(message: ParkedMessage) -> bytes:
    """The value of a field of `s:d:{client}`; the field is the number. Raises RecordError."""
    at = message.at
    return _encode(
        _ParkedWhole(
            _STAGES[at.stage],
            _STATES[at.state],
            at.packet_id,
            at.qos,
            message.parked_ms,
            len(message.record),
            message.attempts,
            message.retain,
            message.identifiers,
            message.topic,
            message.payload_bytes,
            message_body(message.record) if message.record else None,
        )
    )


def encode_deleted(at: ParkedState) -> bytes:
    """The value of one that is deleted: nothing of the message is left."""
    return encode_parked(ParkedMessage(at, 0, 0, False, (), "", 0, b""))


def decode_parked_state(key: str, generation: int, field: bytes, value: bytes) -> ParkedState:
    """The inverse of `encode_parked_state`. Raises LayoutError."""
    try:
        return _parked_state(generation, int(field), _decode_state(value))
    except ValueError as error:
        raise broken(f"{key}, field {field!r}", error) from error


def decode_parked(key: str, generation: int, number: int, value: bytes) -> ParkedMessage:
    """The inverse of `encode_parked`. Raises LayoutError."""
    try:
        found = _decode_parked(value)
        record = found.message.record() if found.message is not None else b""
    except BROKEN as error:
        raise broken(f"{key}, field {number}", error) from error
    return ParkedMessage(
        _parked_state(generation, number, found),
        found.parked_ms,
        found.attempts,
        found.retain,
        found.identifiers,
        found.topic,
        found.payload_bytes,
        record,
    )


def _parked_state(generation: int, number: int, found: _ParkedState) -> ParkedState:
    stage, state = _STAGE_OF[found.stage], _STATE_OF[found.state]
    return ParkedState(generation, number, stage, state, found.packet_id, found.qos)


# Shared groups


def group_fence(generation: int) -> str:
    """How the JSON of a group begins: scripts compare it."""
    return f'{{"generation":{generation},'


def encode_group(row: SharedGroupRow) -> bytes:
    """The JSON of `g:s:{share/filter}`."""
    return _encode(
        _SharedGroup(
            row.generation,
            row.share,
            row.topic_filter,
            row.log_generation,
            row.since,
            row.identity,
            row.starts,
        )
    )


def decode_group(key: str, value: bytes) -> SharedGroupRow:
    """The inverse of `encode_group`. Raises LayoutError."""
    try:
        found = _decode_group(value)
        if not value.startswith(group_fence(found.generation).encode()):
            raise ValueError("does not begin with its generation")
        if f"{found.share}/{found.topic_filter}" != name_in(key):
            raise ValueError(f"is of $share/{found.share}/{found.topic_filter}")
    except ValueError as error:
        raise broken(key, error) from error
    return SharedGroupRow(
        found.share,
        found.topic_filter,
        found.generation,
        found.log_generation,
        found.since,
        found.identity,
        found.starts,
    )


def encode_positions(positions: StoredPositions) -> bytes:
    """The value of a field of `g:p:{share/filter}`; the field is the partition."""
    return _encode(_Place(positions.committed_offset, positions.base_offset, positions.floors))


def decode_positions(key: str, field: bytes, value: bytes) -> tuple[int, StoredPositions]:
    """The partition, and the inverse of `encode_positions`. Raises LayoutError."""
    try:
        return int(field), _decode_place(value).positions
    except ValueError as error:
        raise broken(f"{key}, field {field!r}", error) from error


def encode_claim(partition: int, offset: int) -> str:
    """A member of `g:m:{share/filter}`: an offset of a partition, in the order of texts."""
    return f"{partition}:{offset:019d}"


def decode_claim(key: str, member: bytes) -> tuple[int, int]:
    """The inverse of `encode_claim`. Raises LayoutError."""
    partition, _, offset = member.partition(b":")
    try:
        return int(partition), int(offset)
    except ValueError as error:
        raise broken(f"{key}, member {member!r}", error) from error


def sent_field(mark: SharedMark) -> str:
    """The field of `s:g:{client}` of a message under way: the group's generation, partition and offset."""
    return f"{mark.group}:{mark.partition}:{mark.offset}"


def decode_sent_field(key: str, name: bytes) -> tuple[int, int, int]:
    """The inverse of `sent_field`. Raises LayoutError."""
    try:
        group, partition, offset = map(int, name.split(b":"))
    except ValueError as error:
        raise broken(f"{key}, field {name!r}", error) from error
    return group, partition, offset


def encode_sent(mark: SharedMark) -> tuple[bytes, bytes, bytes]:
    """The value of such a field, behind the order that a script gives, in three parts: what is changed, what stays as
    it was when it was sent, and the message. Raises RecordError."""
    state = b',"packet_id":%d,"state":%s' % (mark.packet_id, _encode(_STATES[mark.state]))
    sent = b',"retain":%s,"identifiers":%s' % (_encode(mark.retain), _encode(mark.identifiers))
    return state, sent, b',"message":' + _encode(message_body(mark.record)) if mark.record else b""


def decode_sent(key: str, session: int, field: bytes, value: bytes) -> tuple[int, SharedMark]:
    """In which order it was sent, and the inverse of `encode_sent`. Raises LayoutError."""
    group, partition, offset = decode_sent_field(key, field)
    try:
        found = _decode_sent(value)
        record = found.message.record() if found.message is not None else b""
    except BROKEN as error:
        raise broken(f"{key}, field {field!r}", error) from error
    return found.order, SharedMark(
        group,
        partition,
        offset,
        session,
        found.packet_id,
        _STATE_OF[found.state],
        record,
        found.identifiers,
        found.retain,
    )
