"""What one session has of queues: its subscriptions, what waits to be sent, what has not reached the socket."""

from __future__ import annotations

from collections import OrderedDict, deque

from embermq.model.message import Message
from embermq.queues.mqtt.in_window import QueueDelivery
from embermq.queues.mqtt.subscription import QueueSubscription
from embermq.queues.queue import ConsumerDelivery as Owed
from embermq.sessions.link import Link
from embermq.sessions.session import Session

MessageKey = tuple[str, str, str]
"""Queue, group, message id."""


class MqttConsumer:
    """Lives as long as the session has a subscription to a queue. `link` is the connection on which it is served, None
    while the client is away."""

    __slots__ = (
        "asked",
        "handed_bytes",
        "link",
        "lost",
        "outbox",
        "places",
        "read",
        "releasing",
        "sent",
        "session",
        "subscriptions",
        "tries",
        "unsent_bytes",
        "unwritten",
    )

    def __init__(self, session: Session) -> None:
        self.session = session
        self.link: Link | None = None
        self.subscriptions: dict[str, QueueSubscription] = {}
        """By filter."""
        self.places: dict[tuple[str, str], QueueSubscription] = {}
        """By queue and group: the newest that is for it."""
        self.outbox: OrderedDict[MessageKey, Owed] = OrderedDict()
        """Handed out by the core, in this order, and not sent. What is given back and handed out again stands there
        once."""
        self.asked: set[int] = set()
        """Offsets whose bodies are being read."""
        self.read: dict[int, Message | None] = {}
        """Bodies that have been read for the outbox."""
        self.sent: list[QueueDelivery] = []
        """Put on the link since its last flush."""
        self.unwritten: deque[tuple[int, list[QueueDelivery]]] = deque()
        """By flush, with how many bytes were handed to the network with it and before it."""
        self.handed_bytes = 0
        self.unsent_bytes = 0
        """Of these, what the socket had not taken when it was looked at last."""
        self.tries = 0
        """How often that was done in vain."""
        self.lost: set[MessageKey] = set()
        """What the last connection was sent, or was to be, and did not acknowledge."""
        self.releasing: dict[int, QueueDelivery] = {}
        """By packet id, QoS 2 deliveries of connections before whose PUBREL is sent anew."""

    @property
    def is_writing(self) -> bool:
        """Whether something was sent of which nobody knows that the socket has it."""
        return bool(self.unwritten or self.sent)

    def put(self, subscription: QueueSubscription) -> None:
        """Add a subscription, or replace the one with the same filter."""
        self.subscriptions[subscription.topic_filter] = subscription
        self.places[subscription.place] = subscription

    def remove(self, topic_filter: str) -> tuple[str, str] | None:
        """Returns the place that is not taken any more, if there is one."""
        removed = self.subscriptions.pop(topic_filter)
        others = [each for each in self.subscriptions.values() if each.place == removed.place]
        if others:
            self.places[removed.place] = others[-1]
            return None
        del self.places[removed.place]
        self.drop_unsent(removed.place)
        return removed.place

    def drop_unsent(self, place: tuple[str, str]) -> None:
        """What waits to be sent from there has been given back."""
        for key in [key for key in self.outbox if key[:2] == place]:
            del self.outbox[key]

    @property
    def takes(self) -> bool:
        """Whether its socket has taken everything, and its window has room."""
        session, link = self.session, self.link
        has_room = not session.resend and len(session.window) < session.window_max
        is_open = link is not None and not (link.paused or link.closing)
        return has_room and is_open and not self.is_writing

    def put_out(self, owed: Owed) -> None:
        """The core has handed it out: it is sent after what was handed out before."""
        key = _key(owed)
        self.outbox[key] = owed
        self.outbox.move_to_end(key)

    def flushed(self, size: int) -> None:
        """The link has handed `size` bytes to the network; called by it."""
        self.handed_bytes += size
        if self.sent:
            self.unwritten.append((self.handed_bytes, self.sent))
            self.sent = []
        self.tries = 0

    def begin(self, link: Link) -> None:
        """Begin with a connection of its client."""
        self.link = link
        self._forget_connection()

    def end(self) -> None:
        """It is gone. What it has acknowledged it has; the rest it has to get anew."""
        sent = self.sent  # those of QoS 0 are in no window
        for _, flushed in self.unwritten:
            sent += flushed
        self.lost = {*self.outbox, *(_key(each.owed) for each in sent if not each.is_written)}
        before, self.releasing = self.releasing, {}
        for delivery in [*self.session.window.values(), *(self.session.resend or ())]:
            packet_id = delivery.packet_id
            if not isinstance(delivery, QueueDelivery):
                if delivery.released and packet_id in before:
                    self.releasing[packet_id] = before[packet_id]
            elif delivery.released:
                self.releasing[packet_id] = delivery
            else:
                self.lost.add(_key(delivery.owed))
        if self.link is not None:
            self.link.flushed = None
        self.link = None
        self._forget_connection()

    def _forget_connection(self) -> None:
        self.outbox.clear()
        self.asked = set()
        self.read.clear()
        self.sent.clear()
        self.unwritten.clear()
        self.handed_bytes = self.unsent_bytes = self.tries = 0

    def lacks(self, queue: str, group: str, message_id: str) -> bool:
        """Whether the client has not got a message that it holds."""
        return (queue, group, message_id) in self.lost


def _key(owed: Owed) -> MessageKey:
    return owed.queue, owed.stamps.group, owed.stamps.message_id
