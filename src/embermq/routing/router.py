"""Who gets a message: the subscriptions of all sessions, and what they come to for one topic."""

from __future__ import annotations

from binascii import crc32
from sys import getsizeof
from typing import TYPE_CHECKING, cast

from msgspec import Struct, field

from embermq.formats.log_record import IDENTIFIERS_MAX, Stamp, encode_stamps
from embermq.model.session import SubscriptionRow
from embermq.mqtt.topics.names import SHARE_PREFIX
from embermq.mqtt.topics.trie import SubscriptionTrie
from embermq.routing.match_cache import MatchCache
from embermq.routing.queue_target import QueueTarget
from embermq.routing.shared_logs import SharedLogs, stamps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from embermq.sessions.absent_session import AbsentSession
    from embermq.sessions.session import Session

MATCHES_BYTES_MAX = 30 * 1024 * 1024
"""Memory for the topics whose receivers are remembered; past it the oldest go."""
TOPIC_BYTES = 320
"""What remembering a topic takes besides its characters: its place in an ordered dictionary that has just grown."""
MATCH_BYTES = 400
"""What a `Match` takes besides its receivers and stamps."""
RECEIVER_BYTES = 90
NO_LOCAL = 4
"""Of the options of a subscription."""


class Subscriber(Struct, eq=False, gc=False):
    """One subscription of one session, `holder`: loaded or not. `topic_filter` is without the `$share/<group>/` prefix;
    `options` is the byte of MQTT 5 [MQTT-3.8.3.1].

    The garbage collector does not look at it: session and subscription name each other until the session ends.
    """

    holder: Session | AbsentSession
    topic_filter: str
    group: str
    options: int
    identifier: int
    since_offset: int

    @property
    def session(self) -> Session:
        """Whose it is, where that is known to be loaded."""
        assert self.holder.is_loaded
        return cast("Session", self.holder)

    @property
    def name(self) -> str:
        """The filter as the client spells it."""
        return f"{SHARE_PREFIX}{self.group}/{self.topic_filter}" if self.group else self.topic_filter

    @property
    def qos(self) -> int:
        """The QoS that was granted."""
        return self.options & 3

    @property
    def no_local(self) -> bool:
        """Not for what its own client publishes."""
        return bool(self.options & NO_LOCAL)

    @property
    def retain_as_published(self) -> bool:
        """The RETAIN flag is forwarded as it came."""
        return bool(self.options & 8)

    @property
    def row(self) -> SubscriptionRow:
        """The row that is stored of this subscription."""
        return SubscriptionRow(self.name, self.options, self.identifier, self.since_offset)

    @property
    def retain_handling(self) -> int:
        """When retained messages are sent: 0 always, 1 for a new subscription, 2 never."""
        return self.options >> 4 & 3


class Receiver(Struct):
    """What overlapping subscriptions of one session come to: one copy, the highest QoS, all identifiers
    [MQTT-3.3.4-2], [MQTT-3.3.4-3]. `shared` is the `share_mark` of a shared subscription, else 0."""

    session: Session
    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]
    shared: int = 0


class GroupTurn(Struct, eq=False):
    """A shared subscription, `name` as clients spell it, and whose turn it is there, over all topics. `members` are its
    subscriptions by the generation of their sessions. `behind_from` is the first record that waits in the log for it,
    -1 when none does. `queue` is the session that stands for its queue, None before there is one; `leaving` are the
    places there of what is on its way to members, or is being dropped: nobody else may touch it. `is_passing`: messages
    there were passed over, because the members that may have them were full. `is_deserted`: no member is there, as far
    as that is known."""

    name: str
    members: dict[int, Subscriber] = field(default_factory=dict)
    next: int = 0
    behind_from: int = -1
    queue: Session | None = None
    leaving: set[int] = field(default_factory=set)
    is_passing: bool = False
    is_deserted: bool = False


class MatchedGroup(Struct):
    """A shared subscription that matched: one member gets each message. `stamped`: those of QoS 1 and 2 come from a log
    that is named in the stamps."""

    receivers: list[Receiver]
    turn: GroupTurn
    stamped: bool = False


class Match(Struct):
    """All that a topic leads to.

    `direct` receivers keep nothing past their connection and never wait for a store; `durable` ones are served
    from the log; `applications` get their QoS 1 and 2 messages by way of the pipeline, named in `stamps`.
    `no_local` is True when some subscription excludes its client's own messages: ask `Router.match_for` then. `denied`
    counts those who have subscribed and may not receive it. `is_special` is True when one of the two has to be looked
    at. `queue` is the durable queue that a topic below `$queue/` names, or what else such a topic asks for; subscribers
    of the router get nothing of it.
    """

    direct: list[Receiver]
    durable: list[Receiver]
    applications: list[Receiver]
    groups: list[MatchedGroup]
    stamps: bytes
    no_local: bool
    is_empty: bool
    denied: int = 0
    is_special: bool = False
    queue: QueueTarget | None = None


NO_MATCH = Match([], [], [], [], b"", False, True)


class Router:
    """Keeps the subscriptions and remembers what topics matched. `session_of` loads the session of a holder that is not
    loaded. Not thread-safe."""

    def __init__(self, session_of: Callable[[Session | AbsentSession], Session]) -> None:
        self._session_of = session_of
        self._trie: SubscriptionTrie[Subscriber] = SubscriptionTrie()
        self._matches: MatchCache[Match] = MatchCache(MATCHES_BYTES_MAX)
        self.known: Callable[[str], Match | None] = self._matches.get
        """What `match` remembers of a topic."""
        self._turns: dict[tuple[str, str], GroupTurn] = {}
        self.on_group_end: Callable[[GroupTurn], None] = _nothing
        """Told of a shared subscription whose last member has left."""
        self.shared_stamps: dict[str, Stamp] = {}
        """Filters of shared subscriptions that have a log of their own for applications, and what is stamped for it;
        empty where such logs are not kept."""
        self.shared_logs: SharedLogs | None = None

    def __len__(self) -> int:
        return len(self._trie)

    @property
    def shared_count(self) -> int:
        """How many subscriptions are members of a shared one."""
        return sum(len(turn.members) for turn in self._turns.values())

    def put(self, subscriber: Subscriber, replaced: Subscriber | None = None) -> None:
        """Add a subscription, in place of the one that its session had to the same filter."""
        self._matches.changed(subscriber.topic_filter)
        if replaced is not None:
            self._trie.discard(replaced.topic_filter, replaced)
        if subscriber.group:
            key = (subscriber.group, subscriber.topic_filter)
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = GroupTurn(subscriber.name)
            turn.members[subscriber.holder.generation] = subscriber
        self._trie.add(subscriber.topic_filter, subscriber)
        if self.shared_logs is not None and subscriber.group and subscriber.session.is_application:
            self.shared_logs.joined(subscriber)

    def discard(self, subscriber: Subscriber) -> None:
        """Remove; nothing happens when it is not there."""
        self._matches.changed(subscriber.topic_filter)
        if self._trie.discard(subscriber.topic_filter, subscriber) and subscriber.group:
            turn_key = (subscriber.group, subscriber.topic_filter)
            turn = self._turns[turn_key]
            turn.members.pop(subscriber.holder.generation, None)
            if not turn.members:
                del self._turns[turn_key]
                self.on_group_end(turn)
            if self.shared_logs is not None and subscriber.session.is_application:
                self.shared_logs.left(subscriber)

    def turn(self, subscriber: Subscriber) -> GroupTurn:
        """Whose turn it is in the shared subscription that this one is a member of."""
        return self._turns[subscriber.group, subscriber.topic_filter]

    @property
    def groups(self) -> Collection[GroupTurn]:
        return self._turns.values()

    def group(self, share: str, topic_filter: str) -> GroupTurn | None:
        """The shared subscription of this name and filter; None when it has no member."""
        return self._turns.get((share, topic_filter))

    def forget(self) -> None:
        """Who may receive what has changed: look at every topic anew."""
        self._matches.clear()

    def remember(self, topic: str, match: Match) -> None:
        """Remember who gets a topic, for `known` to find."""
        self._matches.put(topic, match, _memory(topic, match))

    def match(self, topic: str) -> Match:
        """Receivers of a topic. The result is shared: do not change it."""
        found = self._matches.get(topic)
        if found is None:
            found = self._find(topic, None, -1)
            self.remember(topic, found)
        return found

    def match_for(self, topic: str, publisher: str, offset: int = -1) -> Match:
        """The same without the publisher's No Local subscriptions [MQTT-3.8.3-3] and, for a record that is read
        again at `offset`, without subscriptions younger than it."""
        return self._find(topic, publisher, offset)

    def _find(self, topic: str, publisher: str | None, offset: int) -> Match:
        plain: dict[int, list[Subscriber]] = {}
        shared: dict[tuple[str, str, bool], list[Subscriber]] = {}
        no_local = False
        denied = 0
        for subscriber in self._trie.match(topic):
            if 0 <= offset < subscriber.since_offset:
                continue
            holder = subscriber.holder
            if subscriber.options & NO_LOCAL:
                no_local = True
                if holder.client_id == publisher:
                    continue
            session = self._session_of(holder)
            permissions = session.permissions
            if permissions is not None and not permissions.may_receive(topic):
                denied += 1
                continue
            if subscriber.group:
                stamped = bool(self.shared_stamps) and self._is_stamped(subscriber)
                key = (subscriber.group, subscriber.topic_filter, stamped)
                shared.setdefault(key, []).append(subscriber)
            else:
                plain.setdefault(session.generation, []).append(subscriber)
        if not plain and not shared:
            if no_local or denied:
                return Match([], [], [], [], b"", no_local, True, denied, True)
            return NO_MATCH
        match = Match([], [], [], [], b"", no_local, False, denied, no_local or denied > 0)
        stamps: list[Stamp] = []
        for subscribers in plain.values():
            receiver = _merge(subscribers)
            session = receiver.session
            if session.is_application:
                match.applications.append(receiver)
                if receiver.qos:
                    stamps.append(_stamp(receiver))
            elif session.persistent:
                match.durable.append(receiver)
            else:
                match.direct.append(receiver)
        stamped_filters: set[str] = set()
        for (group, topic_filter, stamped), subscribers in shared.items():
            receivers = [_merge([subscriber]) for subscriber in subscribers]
            match.groups.append(MatchedGroup(receivers, self._turns[group, topic_filter], stamped))
            if stamped:
                stamped_filters.add(topic_filter)
        if stamped_filters:
            stamps += stamps_of(self.shared_stamps, stamped_filters)
        match.stamps = encode_stamps(tuple(stamps))
        return match

    def _is_stamped(self, subscriber: Subscriber) -> bool:
        return subscriber.session.is_application and subscriber.topic_filter in self.shared_stamps


def share_mark(name: str) -> int:
    """What tells what came by this shared subscription from what came by another one; odd."""
    return crc32(name.encode()) << 1 | 1


def _nothing(_turn: GroupTurn) -> None:
    return


def _memory(topic: str, match: Match) -> int:
    """Bytes that remembering it takes, roughly and rather too many."""
    found = getsizeof(topic) + TOPIC_BYTES
    if match is not NO_MATCH:
        receivers = len(match.direct) + len(match.durable) + len(match.applications)
        for group in match.groups:
            receivers += len(group.receivers) + 1
        found += MATCH_BYTES + len(match.stamps) + RECEIVER_BYTES * receivers
    return found


def _stamp(receiver: Receiver) -> Stamp:
    session = receiver.session
    return Stamp(
        session.client_id,
        session.generation,
        receiver.qos,
        receiver.retain_as_published,
        receiver.identifiers[:IDENTIFIERS_MAX],
    )


def _merge(subscribers: list[Subscriber]) -> Receiver:
    first = subscribers[0]
    if len(subscribers) == 1:
        identifiers = (first.identifier,) if first.identifier else ()
        shared = share_mark(first.name) if first.group else 0
        return Receiver(first.session, first.qos, first.retain_as_published, identifiers, shared)
    return Receiver(
        first.session,
        max(subscriber.qos for subscriber in subscribers),
        any(subscriber.retain_as_published for subscriber in subscribers),
        tuple(sorted(subscriber.identifier for subscriber in subscribers if subscriber.identifier)),
    )
