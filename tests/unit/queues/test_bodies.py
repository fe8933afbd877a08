"""Bodies of messages from memory and from the store."""

from collections.abc import Callable, Mapping, Sequence

from embermq.formats.damaged_records import DamagedRecords
from embermq.formats.log_record import encode_record
from embermq.model.counters import Counters
from embermq.model.message import Message
from embermq.model.queue_rows import Move, StoredQueue
from embermq.mqtt.wire.properties import Properties
from embermq.ports.errors import StoreError, StoreUnavailable
from embermq.ports.queue_store import BodiesFound, QueueStore
from embermq.queues.mqtt.bodies import MESSAGE_BYTES, BodyCache


def message(text: str) -> Message:
    return Message("$queue/q", text.encode(), 1, False, "p", 5, 1)


class Shelf(QueueStore):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.records: dict[int, bytes | None] = {}
        self.asked: list[tuple[int, Sequence[tuple[int, int]], BodiesFound]] = []

    def load(self) -> list[StoredQueue]:
        return []

    def next_generation(self) -> int:
        return 1

    def bodies(self, queue: int, messages: Sequence[tuple[int, int]], then: BodiesFound) -> None:
        self.asked.append((queue, messages, then))

    def confirm(self, queue: int, then: Callable[[], None]) -> None:
        then()

    def close(self) -> None:
        pass


def test_the_newest_are_remembered_up_to_a_limit() -> None:
    size = 3 * (MESSAGE_BYTES + len("$queue/q") + 10)
    bodies = BodyCache(Shelf(), size, DamagedRecords(Counters()))
    for offset in range(5):
        bodies.keep(offset, message(f"{offset:10}"))
    assert [bodies.message(offset) is not None for offset in range(5)] == [False, False, True, True, True]
    assert bodies.kept_bytes == size
    bodies.keep(5, message("large" * 2_000))
    assert bodies.message(5) is None and bodies.message(4) is not None, "it would have driven out all others"
    bodies.keep(4, message("again" * 2))
    assert bodies.kept_bytes == size


def test_properties_take_room_as_payloads_do() -> None:
    """A million of them are a packet that is taken, and memory would be full of what counts as nothing."""
    bodies = BodyCache(Shelf(), 100_000, DamagedRecords(Counters()))
    pairs = tuple((f"n{number}", "v" * 90) for number in range(100))
    for offset, properties in enumerate(
        (
            Properties(user_properties=pairs),
            Properties(correlation_data=bytes(30_000)),
            Properties(content_type="c" * 30_000),
            Properties(response_topic="r" * 30_000),
            Properties(user_properties=(("", ""),) * 200),
        )
    ):
        bodies.keep(offset, Message("$queue/q", b"", 1, False, "p", 5, 1, 0, properties))
    assert [bodies.message(offset) is not None for offset in range(5)] == [False, False, True, True, True]
    assert 90_000 < bodies.kept_bytes <= 100_000
    bodies.keep(5, Message("$queue/q", b"", 1, False, "p", 5, 1, 0, Properties(user_properties=pairs * 5)))
    assert bodies.message(5) is None


def test_others_are_read_and_what_is_lost_or_damaged_is_told() -> None:
    shelf = Shelf()
    bodies = BodyCache(shelf, 0, DamagedRecords(Counters()))
    seen: list[Mapping[int, Message | None] | StoreError] = []
    bodies.ask(7, ((1, 11), (2, 12), (3, 13)), seen.append)
    queue, messages, then = shelf.asked[0]
    assert (queue, messages) == (7, ((1, 11), (2, 12), (3, 13)))
    then({1: encode_record(message("one"))})
    then({2: None, 3: b"\x00\x00"})
    error = StoreUnavailable("gone")
    then(error)
    assert seen == [{1: message("one")}, {2: None, 3: None}, error]


def test_what_has_moved_is_read_where_it_was_until_the_store_is_told() -> None:
    """A dead letter that was put back at once, beside one that stays."""
    shelf, moves = Shelf(), [Move(1, 5, "g", 2, 9), Move(2, 9, "", 3, 4)]
    bodies = BodyCache(shelf, 0, DamagedRecords(Counters()), lambda: moves)
    bodies.ask(3, ((100, 4), (101, 6)), lambda _: None)
    assert [(queue, messages) for queue, messages, _ in shelf.asked] == [(1, ((100, 5),)), (3, ((101, 6),))]
