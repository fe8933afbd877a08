"""When a lease begins: what the socket has taken, and what it has not."""

from __future__ import annotations

from embermq.model.client_type import ClientType
from embermq.model.message import Message
from embermq.model.queue_rows import Attempts
from embermq.model.session import SessionRow
from embermq.queues.message_status import Handed
from embermq.queues.mqtt.consumer import MqttConsumer
from embermq.queues.mqtt.in_window import QueueDelivery
from embermq.queues.mqtt.subscription import AckMode
from embermq.queues.mqtt.writing import SLOW_MS, TRIES, Writing
from embermq.queues.publication import Stamps
from embermq.queues.queue import ConsumerDelivery as Owed
from embermq.sessions.link import Link
from embermq.sessions.session import Delivery, Session
from embermq.sessions.settings import MqttSettings
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Tick


class Pipe(Link):
    """A connection whose socket has taken all but `left` bytes."""

    def __init__(self) -> None:
        super().__init__([], "peer", 0)
        self.left: int | None = 0

    def unsent_bytes(self) -> int | None:
        return self.left

    def writes(self, size: int) -> None:
        assert self.left is not None
        self.left += size
        if self.flushed is not None:
            self.flushed(size)


class Desk:
    def __init__(self) -> None:
        self.began: list[int] = []
        self.writing = Writing(
            BrokerState(MqttSettings(), Tick()),
            lambda _session, deliveries: self.began.extend(one.packet_id for one in deliveries),
        )
        row = SessionRow("c", 1, 1, ClientType.DEVICE, "", 5, 0, True, 0, 0)
        self.consumer = MqttConsumer(Session(row, persistent=False))
        self.pipe = Pipe()
        self.consumer.begin(self.pipe)

    def sends(self, packet_id: int) -> None:
        handed = Handed(packet_id, "c", 1, Attempts())
        owed = Owed("q", "c", 1, packet_id, 0, Stamps("1-1", "g", 1, 0, packet_id, 0), handed)
        message = Message("$queue/q", b"", 1, False, "p", 5, 0)
        delivery = QueueDelivery(
            message, b"", -1, 1, False, (), 0, packet_id, from_queue=True, owed=owed, mode=AckMode.EXPLICIT
        )
        self.writing.sent(self.consumer, self.pipe, delivery)


def test_a_lease_begins_when_the_socket_has_the_bytes() -> None:
    desk = Desk()
    desk.pipe.left = 50  # of something else, before
    desk.sends(1)
    desk.pipe.writes(100)
    desk.sends(2)
    desk.pipe.writes(100)
    desk.writing.look(0)
    assert desk.began == []
    desk.pipe.left = 101
    desk.writing.look(1)
    assert desk.began == []
    desk.pipe.left = 100
    desk.writing.look(2)
    assert desk.began == [1]
    desk.pipe.writes(1_000)  # of something else, behind
    desk.pipe.left = 1_000
    desk.writing.note(desk.consumer)
    assert desk.began == [1, 2]
    assert desk.pipe.flushed is None, "nobody asks any more"
    desk.writing.look(2 + SLOW_MS)
    assert desk.writing.next_due_ms is None


def test_a_slow_socket_is_looked_at_now_and_then() -> None:
    desk = Desk()
    desk.sends(1)
    assert desk.writing.next_due_ms == 0
    desk.pipe.writes(100)
    for _ in range(TRIES):
        desk.writing.look(10)
    assert desk.writing.next_due_ms == 10 + SLOW_MS
    desk.pipe.left = 0
    desk.writing.look(10 + SLOW_MS - 1)
    assert desk.began == []
    desk.writing.look(10 + SLOW_MS)
    assert desk.began == [1] and desk.writing.next_due_ms is None


def test_at_the_end_only_a_socket_that_took_everything_counts_as_having_it() -> None:
    free, slow, over = Desk(), Desk(), Desk()
    for desk in (free, slow, over):
        desk.sends(1)
        desk.pipe.writes(100)
    slow.writing.look(0)
    over.pipe.left = None
    over.pipe.paused = True
    for desk in (free, slow, over):
        desk.writing.end(desk.consumer)
        desk.consumer.end()
    assert (free.began, slow.began, over.began) == ([1], [], [])
    assert free.writing.next_due_ms is None and slow.writing.next_due_ms is None


def test_who_has_taken_everything_and_has_room_takes_more() -> None:
    desk = Desk()
    consumer, session = desk.consumer, desk.consumer.session
    session.window_max = 1

    def takes() -> bool:
        return consumer.takes

    assert takes()
    desk.sends(1)
    desk.pipe.writes(100)
    desk.writing.look(0)
    assert not takes(), "the socket has not"
    desk.pipe.left = 0
    desk.writing.look(1)
    assert takes()
    for state in ("paused", "closing"):
        setattr(desk.pipe, state, True)
        assert not takes()
        setattr(desk.pipe, state, False)
    session.window[1] = Delivery(Message("t", b"", 1, False, "p", 5, 0), b"", 0, 1, False, ())
    assert not takes(), "its window is full"
    session.window.clear()
    consumer.link = None
    assert not takes()
