"""What a control message asks for, and the one answer to a batch [queues-5] [queues-28]."""

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum

from msgspec import Struct

from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.queues.durations import parse_delay
from embermq.queues.errors import PropertyRefused
from embermq.queues.names import Verb
from embermq.queues.publication import UserProperties

BATCH_MAX = 1_000
"""Message ids in one control message."""
REASON_CHARACTERS_MAX = 256
"""Of a reason that a consumer gives; the rest is cut off."""


class Outcome(IntEnum):
    """What became of one message id; from the best to the worst."""

    DONE = 0
    ALREADY_SETTLED = 1
    LATE = 2
    UNKNOWN = 3
    NOT_YOURS = 4


_CODES = {
    Outcome.DONE: ReasonCode.SUCCESS,
    Outcome.ALREADY_SETTLED: ReasonCode.SUCCESS,
    Outcome.LATE: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    Outcome.UNKNOWN: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    Outcome.NOT_YOURS: ReasonCode.NOT_AUTHORIZED,
}
_TEXTS = {
    Outcome.DONE: "done",
    Outcome.ALREADY_SETTLED: "already settled",
    Outcome.LATE: "too late, ignored",
    Outcome.UNKNOWN: "unknown",
    Outcome.NOT_YOURS: "not yours",
}


class SettleRequest(Struct, frozen=True, gc=False):
    """`group` is "" when the consumer names none; `delay_ms` is None without a `delay`."""

    verb: Verb
    message_ids: tuple[str, ...]
    group: str = ""
    reason: str = ""
    delay_ms: int | None = None


class SettleAnswer(Struct, frozen=True):
    """For the PUBACK or PUBREC of a control message. `reason_string` is "" where there is nothing to say."""

    reason_code: ReasonCode
    reason_string: str


def read_request(verb: Verb, properties: UserProperties) -> SettleRequest:
    """What a message to a settling topic asks for, read from its user properties. Raises PropertyRefused."""
    message_ids: list[str] = []
    single = {"group-id": "", "reason": "", "delay": ""}
    for name, value in properties:
        if name == "message-id":
            message_ids.append(value)
        elif name in single:
            if single[name]:
                raise PropertyRefused(f"user property {name} stands there more than once")
            single[name] = value
    if not message_ids:
        raise PropertyRefused(f"{verb} needs a user property message-id")
    if len(message_ids) > BATCH_MAX:
        raise PropertyRefused(f"{len(message_ids)} message ids at once, the limit is {BATCH_MAX}")
    delay_ms = None
    if single["delay"]:
        if verb is not Verb.NACK:
            raise PropertyRefused(f"user property delay belongs to {Verb.NACK}, not to {verb}")
        try:
            delay_ms = int(parse_delay(single["delay"]))
        except ValueError as error:
            raise PropertyRefused(f"user property delay: {error}") from None
    return SettleRequest(
        verb, tuple(message_ids), single["group-id"], single["reason"][:REASON_CHARACTERS_MAX], delay_ms
    )


def answer(outcomes: Iterable[Outcome]) -> SettleAnswer:
    """The worst of them, and how many of each when there are several."""
    counted = Counter(outcomes)
    worst = max(counted)
    if counted.total() > 1:
        text = ", ".join(f"{counted[outcome]} {_TEXTS[outcome]}" for outcome in Outcome if counted[outcome])
    else:
        text = "" if worst is Outcome.DONE else _TEXTS[worst]
    return SettleAnswer(_CODES[worst], text)


def message_id_of(queue: int, sequence: int) -> str:
    """The same for every delivery of a message [queues-21]."""
    return f"{hex(queue)[2:]}-{hex(sequence)[2:]}"  # noqa: FURB116 - `:x` takes three times as long


def sequence_of(queue: int, message_id: str) -> int:
    """-1 when it is no message id of that queue."""
    _, separator, sequence = message_id.partition("-")
    if not separator or len(message_id) > 40:
        return -1
    try:
        found = int(sequence, 16)
    except ValueError:
        return -1
    return found if message_id == message_id_of(queue, found) else -1
