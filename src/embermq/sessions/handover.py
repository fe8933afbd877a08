"""Shared subscriptions when a member leaves: what it has not acknowledged goes to another one.

QoS 1 messages in flight and all that was never sent are handed over; QoS 2 messages in flight stay with their session,
and end with it [MQTT-4.8.2-4], [MQTT-4.8.2-5].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from embermq.formats.log_record import encode_record
from embermq.routing.router import NO_MATCH, GroupTurn, MatchedGroup, Receiver, share_mark
from embermq.routing.shared_choice import is_here
from embermq.sessions.forwarded_frames import counted_anew
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

Groups = list[tuple[GroupTurn, tuple[int, ...]]]
"""The shared subscriptions of a session: whose turn it is, and the subscription identifiers."""


class _Offer:
    """The messages of one session that leaves, `keepers` those who have taken some since they were noted."""

    def __init__(self, leaving: Session, ended: bool) -> None:
        self.leaving = leaving
        self.ended = ended
        self.keepers: set[Session] = set()
        self.given_back: dict[int, tuple[GroupTurn, list[int]]] = {}
        """By the generation of a group's queue, what is there again."""
        self.unsent = {id(delivery) for delivery in leaving.unsent or ()}
        self.is_over = False


class Handover:
    """Finds another member for each message of one that leaves."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def leave(self, session: Session, *, ended: bool, then: Callable[[], None] | None = None) -> None:
        """The client is gone. Its subscriptions still stand. While its session goes on, only members that are there
        get what it was sent; what it was not, and all when it has ended, goes back to the group. `then` is called when
        all has been offered, possibly later."""
        shared = [subscriber for subscriber in session.subscriptions.values() if subscriber.group]
        if shared:
            for subscriber in shared:
                self._state.durable.parted(subscriber)
            offer = _Offer(session, ended)
            take = partial(self._take, offer, self._groups(session))
            offered = partial(self._offered, offer, then)
            self._state.path(session).hand_over(session, take, ended=ended, then=offered)
            if not offer.is_over:
                self._note(offer)
                self._state.tick.session_writes.handing_on.append(session.generation)
        elif then is not None:
            then()

    def _offered(self, offer: _Offer, then: Callable[[], None] | None) -> None:
        offer.is_over = True
        self._note(offer)
        if then is not None:
            then()

    def _note(self, offer: _Offer) -> None:
        """They have it now, and store it before it goes from here: the log may have been passed."""
        state = self._state
        for keeper in offer.keepers:
            state.path(keeper).write_down(keeper)
            state.tick.session_writes.handed_on.append((offer.leaving.generation, keeper.generation))
        offer.keepers.clear()
        for turn, places in offer.given_back.values():
            state.groups.gives_back(turn, places, offer.leaving)
        offer.given_back.clear()

    def _groups(self, leaving: Session) -> Groups:
        router = self._state.router
        return [
            (router.turn(subscriber), (subscriber.identifier,) if subscriber.identifier else ())
            for subscriber in leaving.subscriptions.values()
            if subscriber.group
        ]

    def _take(self, offer: _Offer, groups: Groups, delivery: Delivery) -> bool:
        """True when another member has the message now."""
        now_ms = self._state.tick.now_ms
        message = delivery.message
        receiver = None if message.is_expired(now_ms) else self._another(offer, groups, delivery)
        if receiver is None:
            return False
        record = delivery.record or encode_record(message, b"")
        if message.expires_ms:  # the interval that is forwarded counts from here
            message = counted_anew(message, now_ms)
        accepted = Accepted(message, record, NO_MATCH, None, 0, delivery.offset)
        path = self._state.path(receiver.session) if receiver.qos else self._state.direct
        turn = receiver.session.group
        if turn is not None and self._was_to_be_sent(offer, delivery):
            place = receiver.session.queue_seq_next
            offer.given_back.setdefault(receiver.session.generation, (turn, []))[1].append(place)
        path.deliver(receiver.session, receiver, accepted)
        if receiver.qos and receiver.session.persistent:
            offer.keepers.add(receiver.session)
        return True

    def _was_to_be_sent(self, offer: _Offer, delivery: Delivery) -> bool:
        """Whether the leaving session has it stored as sent with QoS 2, and it was not. Another member would have it
        before it is gone from there, and a crash in between would send it to both."""
        return not offer.ended and delivery.qos == 2 and delivery.seq > 0 and id(delivery) in offer.unsent

    def _another(self, offer: _Offer, groups: Groups, delivery: Delivery) -> Receiver | None:
        """The next member of the group by which the message came, or its queue. Of several groups that could be it, the
        one whose mark the delivery has; where it was stored without one, whose subscription identifier it has. What was
        sent before comes before all that waits in the queue."""
        router = self._state.router
        # Not by the receivers: who may not receive it any more is none of them.
        identifiers = {id(turn): found for turn, found in groups}
        found = [
            (
                (
                    share_mark(group.turn.name) != delivery.shared,
                    identifiers[id(group.turn)] != delivery.identifiers,
                ),
                group,
            )
            for group in router.match(delivery.message.topic).groups
            if id(group.turn) in identifiers and not group.stamped
        ]
        if not found:
            return None
        group = min(found, key=lambda pair: pair[0])[1]
        others = MatchedGroup(
            [one for one in group.receivers if one.session is not offer.leaving], group.turn
        )
        may_wait = offer.ended or id(delivery) in offer.unsent
        if not others.receivers or not (may_wait or any(map(is_here, others.receivers))):
            return None
        if self._was_to_be_sent(offer, delivery) and self._state.groups.would_keep(group):
            return self._state.groups.queue_of(group.turn)
        topic = delivery.message.topic
        return self._state.groups.for_waiting(others, topic) or self._state.groups.receiver(others, topic)
