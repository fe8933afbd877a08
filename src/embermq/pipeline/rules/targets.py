"""Where the rows of a rule go. The broker keeps how far the rule is, together with its effect where it can."""

import http.client
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from pyspark.sql import Row

from embermq.formats.log_record import FIELD_RULES, encode_record
from embermq.model.message import Message
from embermq.model.position import told_place
from embermq.mqtt.topics.names import SERVED_BYTES_MAX
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.pipeline.control_socket import asked
from embermq.pipeline.errors import BrokerAway, RuleError
from embermq.pipeline.places import Places
from embermq.pipeline.rules.rows import SEPARATOR
from embermq.pipeline.rules.set_aside import ROWS_MAX, SetAside
from embermq.pipeline.rules.settings import RuleSettings

ANSWER_S = 60.0


class RuleTaken(Struct, frozen=True, kw_only=True):
    """What the broker said: see `RuleFeedTaken` of its API."""

    next: dict[int, int]
    refused: str = ""
    passes: bool = False
    is_of_queue: bool = False


class RuleDoor:
    """One rule of it."""

    def __init__(self, places: Places, rule: str, timeout_s: float = ANSWER_S) -> None:
        self._socket = places.control
        self._path = f"/api/v1/rule-feeds/{rule}"
        self._timeout_s = timeout_s

    def look(self) -> RuleTaken:
        """How far it is. Raises BrokerAway, RuleError."""
        return self._ask({})

    def begin(self, numbers: Mapping[int, int]) -> RuleTaken:
        """Where a rule begins in partitions of the log of which the broker knows nothing: in all or in none."""
        return self._ask({"begin": numbers})

    def take(self, partition: int, messages: Sequence[tuple[int, bytes]], end: int) -> RuleTaken:
        """What comes of a partition of the log, durable when it returns, all or nothing, or where the log is a store of
        its own a beginning: messages by number, and that all below `end` is done."""
        numbered = [{"number": at, "record": one} for at, one in messages]
        return self._ask({"partition": partition, "end": end, "messages": numbered})

    def _ask(self, asked_for: Mapping[str, object]) -> RuleTaken:
        try:
            status, told = asked(
                self._socket, "POST", self._path, msgspec.json.encode(asked_for), self._timeout_s
            )
        except (OSError, http.client.HTTPException) as error:
            raise BrokerAway(f"{self._socket}: the broker does not answer: {error}") from error
        if status != http.HTTPStatus.OK:
            raise RuleError(f"the broker refuses: {status} {told.decode(errors='replace')}")
        return msgspec.json.decode(told, type=RuleTaken)


TOPIC_TOO_LONG = f"a topic of more than {SERVED_BYTES_MAX} bytes"
PIECE = 500
PIECE_BYTES = 512 * 1024
RULE, OF = "rule", "rule-of"
"""User properties of what a rule publishes: its name, and "partition:offset" of the message that it comes of, with the
slot before it where there are several."""

Numbered = tuple[int, bytes]
NumberedRow = tuple[int, Row]


class RuleTarget(ABC):
    """Of one rule. `next` is the number of the row that it goes on with, by the partition of the log that rows come
    of; of those in which it has not begun there is none."""

    def __init__(self, name: str, rule: RuleSettings, door: RuleDoor, aside: SetAside) -> None:
        self.next: Mapping[int, int] = {}
        self._name = name
        self._rule = rule
        self._door = door
        self._aside = aside

    def open(self) -> None:
        """Find out `next`; may be called again after a failure."""
        self.next = self._door.look().next

    def begin(self, numbers: Mapping[int, int]) -> None:
        """Where a rule begins in partitions in which it has not begun."""
        self.next = self._door.begin(numbers).next

    def move(self, partition: int, number: int) -> None:
        """All below is done. Stored when it returns."""
        self.next = self._door.take(partition, (), number).next

    @abstractmethod
    def put(self, partition: int, rows: Sequence[NumberedRow]) -> int:
        """Give rows of a partition in the order of their numbers their effect, none below `next` twice where that can
        be; returns how many had one. What can never have one is set aside."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection that it has; it may be opened again."""

    def keep_up(self, now_ms: int) -> None:
        """Every second, while the rule runs: begin what is due of keeping the target in order."""
        return


class BrokerTarget(RuleTarget):
    """Topics and queues: the broker keeps `next` together with the messages."""

    def __init__(
        self, name: str, rule: RuleSettings, door: RuleDoor, aside: SetAside, *, slot: int | None = None
    ) -> None:
        super().__init__(name, rule, door, aside)
        self._slot = slot

    def put(self, partition: int, rows: Sequence[NumberedRow]) -> int:
        return sum(self._publish(partition, piece) for piece in pieces(self._records(partition, rows)))

    def close(self) -> None:
        """Each question to the broker has a connection of its own."""

    def _publish(self, partition: int, piece: Sequence[Numbered]) -> int:
        """All of it; what the broker can never take is passed over."""
        published = 0
        while piece:
            taken = self._door.take(partition, piece, piece[-1][0] + 1)
            self.next, done = taken.next, taken.next[partition]
            published += sum(number < done for number, _ in piece)
            if not taken.refused:
                break
            if taken.passes or (taken.is_of_queue and self._rule.to == "queue"):
                raise RuleError(f"the broker takes no more for now: {taken.refused}")
            self._aside.add("refused", partition, done, taken.refused)
            piece = [one for one in piece if one[0] > done]
        return published

    def _records(self, partition: int, rows: Sequence[NumberedRow]) -> list[Numbered]:
        found: list[Numbered] = []
        for number, row in rows:
            if len(row["topic"].encode(errors="replace")) > SERVED_BYTES_MAX:
                # A record cannot hold it; what the broker refuses for other reasons it says itself.
                self._aside.add("refused", partition, number, TOPIC_TOO_LONG)
            else:
                found.append((number, self._record(row)))
        return found

    def _record(self, row: Row) -> bytes:
        name = self._name
        of = told_place(row["partition"], row["offset"], self._slot)
        marks = Properties(user_properties=((RULE, name), (OF, of)))
        chain = SEPARATOR.join([*filter(None, [row["chain"]]), name]).encode()
        message = Message(
            row["topic"],
            bytes(row["payload"]),
            self._rule.qos,
            False,
            f"{RULE}:{name}",
            ProtocolVersion.V5,
            0,
            0,
            marks,
        )
        return encode_record(message, unknown_fields=((FIELD_RULES, chain),))


def by_partition(rows: Sequence[Row]) -> dict[int, list[NumberedRow]]:
    """Rows of each partition that they come of, numbered."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["partition"], []).append(row)
    return {partition: numbered(found[partition]) for partition in sorted(found)}


def numbered(rows: Sequence[Row]) -> list[NumberedRow]:
    """Rows of one partition, with the same numbers whenever the same rows are made, in their order."""
    found: list[NumberedRow] = []
    offset, index = -1, 0
    for row in sorted(rows, key=_in_order):
        index = index + 1 if row["offset"] == offset else 0
        offset = row["offset"]
        found.append((offset * ROWS_MAX + index, row))
    return found


def pieces(messages: Sequence[Numbered]) -> list[list[Numbered]]:
    """In their order, bounded in messages and bytes."""
    found: list[list[Numbered]] = []
    size = 0
    for one in messages:
        if not found or len(found[-1]) == PIECE or size + len(one[1]) > PIECE_BYTES:
            found.append([])
            size = 0
        found[-1].append(one)
        size += len(one[1])
    return found


def _in_order(row: Row) -> tuple[int, str, bytes]:
    return row["offset"], row["topic"], bytes(row["payload"])
