"""Shared subscriptions: which member gets a message, and the queue for what no member can take.

A member that is there and has room gets a message at once. What nobody can take belongs to the group, as long as one of
its members keeps a session: it waits in one queue, in order, for whoever has room first (`delivery.device`). That queue
is a device queue like any other, of a session without a client whose id is the name of the shared subscription. So
limits, deadlines, repair and stores are those of sessions. It ends with the last member.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from embermq.model.client_type import ClientType
from embermq.model.session import NEVER_EXPIRES, SessionRow
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import SHARE_PREFIX, parse_shared
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.routing.router import GroupTurn, MatchedGroup, Receiver, share_mark
from embermq.routing.shared_choice import STRATEGIES, has_room, is_here, keeps
from embermq.sessions.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from embermq.sessions.state import BrokerState

QUEUE_USER: Final = "$share"
"""To whom the queues of all groups count, so that they use up no client's limits."""


def is_queue_name(client_id: str) -> bool:
    """Whether this id is for the queue of a group, and for no client."""
    return client_id.startswith(SHARE_PREFIX)


class GroupQueues:
    """See the module."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._choose = STRATEGIES[state.settings.shared_strategy]
        self.stalled: dict[int, set[GroupTurn]] = {}
        """Groups whose queue waits for room of a member, by the generation of those members."""
        self.woken: list[tuple[GroupTurn, Session]] = []
        """Those of which a member has room now, with that member."""
        self.changed: list[GroupTurn] = []
        """Those whose queue is to be read from the front: something came back, or who may receive what has changed."""

    # Who gets a message

    def present(self, group: MatchedGroup, topic: str) -> Receiver | None:
        """The next member that is there, with room or without."""
        turn = group.turn
        turn.next += 1
        receivers = group.receivers
        found = self._choose(receivers, turn.next, topic, has_room)
        return found if found is not None else self._choose(receivers, turn.next, topic, is_here)

    def with_room(self, group: MatchedGroup, topic: str) -> Receiver | None:
        """The next member that is there and has room; None also while messages wait that come before."""
        turn = group.turn
        if is_busy(turn):
            return None
        turn.next += 1
        return self._choose(group.receivers, turn.next, topic, has_room)

    def for_waiting(self, group: MatchedGroup, topic: str) -> Receiver | None:
        """The next member with room for the message that has waited longest."""
        turn = group.turn
        turn.next += 1
        return self._choose(group.receivers, turn.next, topic, has_room)

    def receiver(self, group: MatchedGroup, topic: str) -> Receiver | None:
        """Who gets a message of QoS 1 or 2: a member, or the group's queue. None: nobody."""
        found = self.with_room(group, topic)
        if found is not None:
            return found
        if self.would_keep(group):
            return self.queue_of(group.turn)
        return self._choose(group.receivers, group.turn.next, topic, is_here)

    def would_keep(self, group: MatchedGroup) -> bool:
        """Whether what no member has room for waits in the group's queue."""
        turn = group.turn  # without a member it is over since the message was matched
        return bool(turn.members) and (is_busy(turn) or any(map(keeps, group.receivers)))

    def queue_of(self, turn: GroupTurn) -> Receiver:
        """The group's queue, as one who receives everything as it was published."""
        queue = turn.queue
        if queue is None:
            queue = self._begin(turn)
        return Receiver(queue, 2, retain_as_published=True, identifiers=(), shared=share_mark(turn.name))

    # The queues

    def _begin(self, turn: GroupTurn) -> Session:
        state = self._state
        row = SessionRow(
            turn.name,
            state.new_generation(),
            1,
            ClientType.DEVICE,
            QUEUE_USER,
            ProtocolVersion.V5,
            NEVER_EXPIRES,
            False,
            0,
            state.tick.date_ms,
        )
        queue = turn.queue = Session(row, persistent=True)
        queue.group = turn
        state.sessions.add(queue)
        state.quotas.begins(queue)
        state.tick.session_writes.sessions.append(row)
        return queue

    def restore(self, end: Callable[[Session], None]) -> None:
        """All sessions have been read at the start: find the group of each queue. `end` those that have none."""
        for queue in list(self._state.sessions.loaded):
            if not is_queue_name(queue.client_id):
                continue
            try:
                shared = parse_shared(queue.client_id)
            except TopicError:
                shared = None  # a client's, from before such ids were refused
            turn = self._state.router.group(shared.group, shared.topic_filter) if shared is not None else None
            if turn is None:
                end(queue)
            else:
                turn.queue, queue.group = queue, turn

    def authorized(self) -> None:
        """Who may receive what has changed: what was passed over in the queues is looked at again."""
        self.changed += [turn for turn in self._state.router.groups if turn.queue is not None]

    def gives_back(self, turn: GroupTurn, places: list[int], had: Session) -> None:
        """These messages were stored to be sent to a member, and wait in the queue again. Nobody else gets them before
        the member's are gone from the store: after a crash they are the member's [MQTT-4.8.2-4]."""
        turn.leaving.update(places)
        assert turn.queue is not None
        free = partial(self._free, turn, turn.queue, places)
        self._state.tick.batch.when_stored(had.generation, free)

    def _free(self, turn: GroupTurn, queue: Session, places: list[int]) -> None:
        if turn.queue is queue:
            turn.leaving.difference_update(places)
            self.changed.append(turn)

    def ended(self, queue: Session) -> None:
        """A queue is no more; the next message that nobody can take begins a new one."""
        turn, queue.group = queue.group, None
        if turn is not None and turn.queue is queue:
            turn.queue, turn.is_passing = None, False
            turn.leaving.clear()

    # Room

    def has_room(self, session: Session) -> None:
        """A client may have room again: wake the groups that wait for that. Call this only while some do. Where
        messages were passed over the queue is read from its front, so that is done for half a window of room, not for
        each acknowledgement."""
        if session.generation in self.stalled and session.has_room:
            is_half_free = session.has_room_again
            self.woken += [
                (turn, session)
                for turn in self.stalled[session.generation]
                if is_half_free or not turn.is_passing
            ]


def is_busy(turn: GroupTurn) -> bool:
    """Whether messages wait in the group's queue, or are on their way from there: what is new comes behind them."""
    return turn.queue is not None and (turn.queue.queued > 0 or bool(turn.leaving))
