"""Shared subscriptions without a kept session when a member leaves: what it has not acknowledged goes to another one.

QoS 1 messages in flight and all that was never sent are handed over; QoS 2 messages in flight end with their session
[MQTT-4.8.2-4], [MQTT-4.8.2-5]. Where a member has a kept session the group's queue does the same
(`delivery/device/group_queue.py`).
"""

from embermq.formats.log_record import encode_record
from embermq.routing.router import NO_MATCH, GroupTurn, MatchedGroup
from embermq.routing.shared_choice import choose_member
from embermq.sessions.forwarded_frames import counted_anew
from embermq.sessions.session import Delivery, Session
from embermq.sessions.state import BrokerState
from embermq.sessions.tick import Accepted

Groups = list[tuple[GroupTurn, tuple[int, ...]]]
"""The shared subscriptions of a session: whose turn it is, and the subscription identifiers."""


class Handover:
    """Finds another member for each message of one that leaves."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def leave(self, session: Session) -> None:
        """The session has ended. Its subscriptions still stand."""
        groups = self._groups(session)
        if not groups:
            return
        window, waiting = session.window, session.waiting
        offered = [one for one in window.values() if one.shared and one.qos == 1 and one.shared_queue is None]
        for delivery in offered:
            if self._take(session, groups, delivery):
                del window[delivery.packet_id]
        for delivery in [one for one in waiting or () if one.shared]:
            if waiting and self._take(session, groups, delivery):
                waiting.remove(delivery)
                session.waiting_bytes -= delivery.waiting_bytes

    def _groups(self, leaving: Session) -> Groups:
        router = self._state.router
        return [
            (router.turn(subscriber), (subscriber.identifier,) if subscriber.identifier else ())
            for subscriber in leaving.subscriptions.values()
            if subscriber.group
        ]

    def _take(self, leaving: Session, groups: Groups, delivery: Delivery) -> bool:
        """True when another member has the message now."""
        state, message = self._state, delivery.message
        now_ms = state.tick.now_ms
        group = None if message.is_expired(now_ms) else self._group(groups, delivery)
        if group is None:
            return False
        members = [receiver for receiver in group.receivers if receiver.session is not leaving]
        record = delivery.record or encode_record(message, b"")
        if group.turn.queue is not None:
            group.turn.queue.deliver(members, Accepted(message, record, NO_MATCH, None, 0, delivery.offset))
            return True
        group.turn.next += 1
        receiver = choose_member(members, group.turn.next, state.settings.shared_strategy, message.topic)
        if receiver is None:
            return False
        message = counted_anew(message, now_ms)  # the interval that is forwarded counts from here
        accepted = Accepted(message, record, NO_MATCH, None, 0, delivery.offset)
        state.direct.deliver(receiver.session, receiver, accepted)
        return True

    def _group(self, groups: Groups, delivery: Delivery) -> MatchedGroup | None:
        """The group by which the message came. Of several that could be it, the one whose subscription identifier the
        delivery has."""
        # Not by the receivers: who may not receive it any more is none of them.
        identifiers = {id(turn): found for turn, found in groups}
        found = [
            (identifiers[id(group.turn)] != delivery.identifiers, group)
            for group in self._state.router.match(delivery.message.topic).groups
            if id(group.turn) in identifiers and not group.stamped
        ]
        return min(found, key=lambda pair: pair[0])[1] if found else None
