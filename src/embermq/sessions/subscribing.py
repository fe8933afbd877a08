"""SUBSCRIBE, UNSUBSCRIBE and the retained messages that a new subscription gets."""

from collections.abc import Iterator
from functools import partial

from embermq.model.session import SubscriptionRow
from embermq.mqtt.topics.errors import TopicError
from embermq.mqtt.topics.names import (
    SERVED_BYTES_MAX,
    SERVED_LEVELS_MAX,
    SHARE_PREFIX,
    has_wildcard,
    parse_shared,
    validate_filter,
)
from embermq.mqtt.value import replace
from embermq.mqtt.wire.packets import Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion
from embermq.ports.errors import StoreError
from embermq.routing.queue_target import QUEUE_PREFIX
from embermq.routing.router import Subscriber
from embermq.sessions.client_events import EventKind
from embermq.sessions.link import Link
from embermq.sessions.node_share import Answers
from embermq.sessions.retained_replay import RetainedReplay
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.waiting_subscriptions import NO_REFUSALS, Refusals, WaitingSubscriptions

RETAIN_ALWAYS, RETAIN_WHEN_NEW, RETAIN_NEVER = 0, 1, 2
NOT_RETAINED = (SHARE_PREFIX, QUEUE_PREFIX)
"""Filters that begin so get no retained messages."""
V3_FAILURE = 0x80
DENIED = "not allowed to subscribe there"
NOT_TAKEN = "the topic filter is longer, or has more levels, than is allowed here"
STORE_FULL = "sessions cannot be stored now"
NOT_READ = "what another slot of the cluster has retained cannot be read now"
CHANGED = "what the client may do has changed meanwhile"
NO_ANSWERS: Answers = {}
SWITCHED_OFF = "subscriptions of that kind are switched off"


class Subscribing:
    """Changes of subscriptions. The answer leaves when the change is durable, for sessions that are kept."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._replay = RetainedReplay(state)
        self._logs_first = WaitingSubscriptions(state)

    def subscribe(self, link: Link, packet: Subscribe) -> None:
        """Add or replace subscriptions; one reason code each, in their order [MQTT-3.9.3-1]."""
        session = link.session
        if session is None or self._logs_first.is_behind(link, partial(self.subscribe, link, packet)):
            return
        unavailable = self._unavailable(packet.subscriptions)
        if unavailable is not None and link.version == ProtocolVersion.V5:
            link.disconnect(unavailable)
            return
        queues = self._state.queues
        if queues is not None and packet.properties is not None and packet.properties.user_properties:
            time_ms = queues.start_time(link, session, packet)
            if time_ms:
                ask = partial(queues.find_offset, time_ms)
                self._logs_first.find(link, ask, partial(self._catch_up, link, packet))
                return
        self._catch_up(link, packet, None)

    def _catch_up(self, link: Link, packet: Subscribe, start: int | StoreError | None) -> None:
        """`start` is for queues: see `DurableQueues.subscribe`."""
        catch_up = self._state.share.catch_up
        if catch_up is not None and any(map(_wants_retained, packet.subscriptions)):
            # What other nodes have acknowledged as retained by now is to be found.
            self._logs_first.find(link, catch_up, partial(self._caught_up, link, packet, start))
            return
        self._ask_others(link, packet, start, NO_ANSWERS)

    def _caught_up(
        self, link: Link, packet: Subscribe, start: int | StoreError | None, found: int | StoreError
    ) -> None:
        answers = NO_ANSWERS
        if isinstance(found, StoreError):
            wanting = filter(_wants_retained, packet.subscriptions)
            answers = {
                one.topic_filter: (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, NOT_READ) for one in wanting
            }
        self._ask_others(link, packet, start, answers)

    def _ask_others(
        self, link: Link, packet: Subscribe, start: int | StoreError | None, answers: Answers
    ) -> None:
        """Have other slots make the client a member of their groups, or a consumer of their queues, where nothing is
        against it."""
        session, members = link.session, self._state.share.members
        if session is None or link.closing:
            return
        asked: list[Subscription] = []
        if members is not None:
            lowered = _lowered(packet.subscriptions, self._state.terms_of(link).max_qos)
            asked = [
                one
                for one in lowered
                if self._is_elsewhere(one.topic_filter)
                and (self._is_shareable(session, one) or self._is_consumable(session, one))
            ]
        if members is None or not asked:
            self._subscribe_from(link, packet, start, answers)
            return

        def answered(found: Answers) -> None:
            self._subscribe_from(link, packet, start, answers | found)

        self._logs_first.ask_members(
            link, partial(members.subscribe, link, asked, packet.properties), answered
        )

    def _is_elsewhere(self, topic_filter: str) -> bool:
        """Whether it is a shared subscription whose group belongs to another slot, or one to such a queue."""
        members = self._state.share.members
        return (
            members is not None
            and topic_filter.startswith((SHARE_PREFIX, QUEUE_PREFIX))
            and not members.is_here(topic_filter)
        )

    def _subscribe_from(
        self, link: Link, packet: Subscribe, start: int | StoreError | None, answers: Answers = NO_ANSWERS
    ) -> None:
        """`start` is for queues: see `DurableQueues.subscribe`. `answers` are given already."""
        session = link.session
        if session is None or link.closing:
            return
        shared_logs = self._state.shared_logs
        then = partial(self._subscribe, link, packet, start, answers)
        if shared_logs is None or not session.is_application:
            then(NO_REFUSALS)
            return
        self._logs_first.ask(link, shared_logs, self._filters_with_logs(session, packet), then)

    def _filters_with_logs(self, session: Session, packet: Subscribe) -> list[str]:
        """Of the shared subscriptions that nothing else is against."""
        filters: set[str] = set()
        for asked in packet.subscriptions:
            if asked.topic_filter.startswith(SHARE_PREFIX) and self._is_shareable(session, asked):
                place = self._place(asked.topic_filter)
                assert place is not None, "it is shareable"
                filters.add(place[1])
        return sorted(filters)

    def _is_shareable(self, session: Session, asked: Subscription) -> bool:
        """Whether nothing is against a shared subscription."""
        place = self._place(asked.topic_filter)
        return (
            place is not None
            and not asked.no_local
            and not place[1].startswith(QUEUE_PREFIX)
            and self._unavailable((asked,)) is None
            and self._state.may_subscribe(session.permissions, place[1])
        )

    def _is_consumable(self, session: Session, asked: Subscription) -> bool:
        """Whether nothing is against a subscription to a queue but what its own slot is asked."""
        place = self._place(asked.topic_filter)
        return (
            place is not None
            and not (place[0] and asked.no_local)
            and place[1].startswith(QUEUE_PREFIX)
            and self._unavailable((asked,)) is None
            and self._state.may_subscribe(session.permissions, place[1])
        )

    def _subscribe(
        self,
        link: Link,
        packet: Subscribe,
        start: int | StoreError | None,
        answers: Answers,
        refusals: Refusals,
    ) -> None:
        session = link.session
        if session is None or link.closing:
            return
        state = self._state
        identifiers = packet.properties.subscription_identifiers if packet.properties is not None else ()
        identifier = identifiers[0] if identifiers else 0
        codes: list[int] = []
        added: list[tuple[Subscriber, bool]] = []
        reason = ""
        has_queue = False
        max_qos = state.terms_of(link).max_qos
        for asked in _lowered(packet.subscriptions, max_qos):
            place = self._place(asked.topic_filter)
            if place is not None and place[0] and asked.no_local:  # [MQTT-3.8.3-4]
                link.disconnect(ReasonCode.PROTOCOL_ERROR, "No Local on a shared subscription")
                return
            if place is not None and place[0] and place[1] in refusals:
                refusal = refusals[place[1]]
                reason = reason or refusal.text
                codes.append(refusal.code if link.version == ProtocolVersion.V5 else V3_FAILURE)
                continue
            given = answers.get(asked.topic_filter)
            if given is not None:
                code, text = given
                codes.append(code if code < V3_FAILURE or link.version == ProtocolVersion.V5 else V3_FAILURE)
                reason = reason or text
                continue
            objection = self._objection(link, session, asked, place)
            if objection is not None or place is None:
                code, text = objection or (V3_FAILURE, "")
                codes.append(code)
                reason = reason or text
                continue
            if state.queues is not None and place[1].startswith(QUEUE_PREFIX):
                code, text = state.queues.subscribe(
                    link, session, asked, identifier, packet.properties, start=start
                )
                if code == ReasonCode.NOT_AUTHORIZED:
                    state.tell(link.event(EventKind.DENIED, text, code, topic=asked.topic_filter))
                codes.append(code)
                reason = reason or text
                has_queue = True
                continue
            subscriber, new = self._put(session, asked, *place, identifier)
            codes.append(subscriber.qos)
            added.append((subscriber, new))
        horizon = state.offset_next
        said = Properties(reason_string=reason) if reason and link.problem_information else None
        if reason and link.version != ProtocolVersion.V5:
            link.note_refusal(f"SUBSCRIBE: {reason}")
        suback = Suback(packet.packet_id, tuple(codes), said)
        answer = partial(self._answer, link, suback, session, added, horizon)
        # What was published before this SUBSCRIBE and is still being committed may be retained: wait for it.
        if has_queue and state.queues is not None:
            state.queues.subscribed(session, answer)
        elif session.persistent and not self._is_stored(session):
            state.tick.batch.when_stored(session.generation, answer)
        elif horizon > state.log_end:
            state.tick.batch.after_log.append(answer)
        else:
            answer()

    def _is_stored(self, session: Session) -> bool:
        """Whether the session's subscriptions are, while nothing new can be: the answer does not wait for room then."""
        if self._state.store_failure is None:
            return False
        return not any(
            generation == session.generation
            for writes in self._state.tick.unstored()
            for generation, _, _ in writes.session.subscriptions
        )

    def _place(self, topic_filter: str) -> tuple[str, str] | None:
        """Share name, "" without one, and the filter itself; None for one past our limits: a filter that is wrong does
        not come here."""
        try:
            validate_filter(topic_filter, SERVED_BYTES_MAX, SERVED_LEVELS_MAX)
            shared = parse_shared(topic_filter)
        except TopicError:
            return None
        return (shared.group, shared.topic_filter) if shared is not None else ("", topic_filter)

    def _objection(
        self, link: Link, session: Session, asked: Subscription, place: tuple[str, str] | None
    ) -> tuple[int, str] | None:
        """The failure with which a subscription is answered, and why; None when it can be made."""
        v5 = link.version == ProtocolVersion.V5
        if self._unavailable((asked,)) is not None:
            return V3_FAILURE, SWITCHED_OFF  # MQTT 5 clients have been sent away
        if place is None:
            return (ReasonCode.TOPIC_FILTER_INVALID if v5 else V3_FAILURE), NOT_TAKEN
        if text := self._over_limit(session, asked.topic_filter):
            return (ReasonCode.QUOTA_EXCEEDED if v5 else V3_FAILURE), text
        if not self._state.may_subscribe(session.permissions, place[1]):
            self._state.counters.subscriptions_denied += 1
            event = link.event(EventKind.DENIED, DENIED, ReasonCode.NOT_AUTHORIZED, topic=asked.topic_filter)
            self._state.tell(event)
            return _denied(link.version, asked.qos), DENIED
        if self._is_elsewhere(asked.topic_filter):  # it was not allowed when others were asked
            return (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR if v5 else V3_FAILURE), CHANGED
        return None

    def _over_limit(self, session: Session, topic_filter: str) -> str:
        """Why one more would be too many, "" when it is not; replacing one is not one more. So is one that has to wait
        for a session store for which too much waits."""
        if topic_filter in session.subscriptions or topic_filter in session.queue_filters:
            return ""
        failed = self._state.must_wait(session.client_id) or self._state.store_failure is not None
        if failed and session.persistent:
            self._state.counters.refused_subscriptions += 1
            return STORE_FULL
        return self._state.quotas.objection_to_filter(session, topic_filter)

    def _unavailable(self, asked: tuple[Subscription, ...]) -> ReasonCode | None:
        """Which of the features that are switched off a SUBSCRIBE wants [MQTT 5.0, 3.2.2.3.11 and 13]."""
        off = self._state.settings.unavailable
        filters = [subscription.topic_filter for subscription in asked]
        if "shared" in off and any(text.startswith(SHARE_PREFIX) for text in filters):
            return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if "wildcards" in off and any(map(has_wildcard, filters)):
            return ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        return None

    def _put(
        self, session: Session, asked: Subscription, group: str, topic_filter: str, identifier: int
    ) -> tuple[Subscriber, bool]:
        state = self._state
        old = session.subscriptions.get(asked.topic_filter)
        subscriber = Subscriber(
            session,
            topic_filter,
            group,
            asked.qos | asked.no_local << 2 | asked.retain_as_published << 3 | asked.retain_handling << 4,
            identifier,
            old.since_offset if old is not None else state.offset_next,
        )
        session.subscriptions[asked.topic_filter] = subscriber
        if old is None:
            state.quotas.adds(session, asked.topic_filter)
        state.router.put(subscriber, old)
        is_known = old is not None and (old.options, old.identifier) == (subscriber.options, identifier)
        if session.persistent and not is_known:
            entry = (session.generation, asked.topic_filter, subscriber.row)
            state.tick.session_writes.subscriptions.append(entry)
        return subscriber, old is None

    def _when_durable(self, session: Session, answer: partial[None]) -> None:
        if session.persistent:
            self._state.tick.batch.when_stored(session.generation, answer)
        else:
            answer()

    def _answer(
        self,
        link: Link,
        packet: Suback,
        session: Session,
        added: list[tuple[Subscriber, bool]],
        horizon: int,
    ) -> None:
        if session.link is not link:
            return
        link.send_packet(packet)
        for subscriber, new in added:
            if subscriber.group and session.subscriptions.get(subscriber.name) is subscriber:
                self._state.durable.joined(subscriber)
            handling = subscriber.retain_handling
            if subscriber.group or handling == RETAIN_NEVER or (handling == RETAIN_WHEN_NEW and not new):
                continue
            self._replay.start(session, subscriber, horizon)

    def unsubscribe(self, link: Link, packet: Unsubscribe) -> None:
        """Remove subscriptions [MQTT-3.10.4-1]; messages already on their way still arrive."""
        session = link.session
        if session is None or self._logs_first.is_behind(link, partial(self.unsubscribe, link, packet)):
            return
        members = self._state.share.members
        elsewhere = [one for one in packet.topic_filters if self._is_elsewhere(one)]
        if members is None or not elsewhere:
            self._unsubscribe(link, packet, NO_ANSWERS)
            return
        ask = partial(members.unsubscribe, link, elsewhere)
        self._logs_first.ask_members(link, ask, partial(self._unsubscribe, link, packet))

    def _unsubscribe(self, link: Link, packet: Unsubscribe, answers: Answers) -> None:
        session = link.session
        if session is None or link.closing:
            return
        codes: list[int] = []
        for topic_filter in packet.topic_filters:
            if topic_filter in answers:
                code, text = answers[topic_filter]
                if code >= V3_FAILURE and link.version != ProtocolVersion.V5:
                    link.close(text)  # MQTT 3 cannot refuse it
                    return
                codes.append(code)
                continue
            if topic_filter in session.queue_filters and self._state.queues is not None:
                self._state.queues.unsubscribe(session, topic_filter)
                codes.append(ReasonCode.SUCCESS)
                continue
            subscriber = session.subscriptions.pop(topic_filter, None)
            if subscriber is None:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
                continue
            self._state.router.discard(subscriber)
            self._state.quotas.removes(session, topic_filter)
            if subscriber.group:
                self._state.durable.parted(subscriber)
            codes.append(ReasonCode.SUCCESS)
            if session.persistent:
                self._state.path(session).write_down(session)
                self._state.tick.session_writes.subscriptions.append((session.generation, topic_filter, None))
        self._when_durable(session, partial(self._confirm, link, Unsuback(packet.packet_id, tuple(codes))))

    def _confirm(self, link: Link, packet: Unsuback) -> None:
        if link.session is not None:
            link.send_packet(packet)

    def cap_offsets(self, generations: set[int]) -> None:
        """Subscriptions of these sessions counted on records that could not be stored."""
        if not generations:
            return
        log_end = self._state.log_end
        if self._state.shared_logs is not None:
            self._state.shared_logs.cap_offsets()
        for session in self._state.sessions.of(generations):
            for subscriber in session.subscriptions.values():
                subscriber.since_offset = min(subscriber.since_offset, log_end)

    def restore(self, session: Session, row: SubscriptionRow) -> None:
        """A subscription read at start."""
        shared = parse_shared(row.topic_filter)
        name = shared.topic_filter if shared else row.topic_filter
        if self._state.queues is not None and name.startswith(QUEUE_PREFIX):
            self._state.queues.restore_subscription(session, row)
            return
        group = shared.group if shared else ""
        subscriber = Subscriber(session, name, group, row.options, row.identifier, row.since_offset)
        session.subscriptions[row.topic_filter] = subscriber
        self._state.quotas.adds(session, row.topic_filter)
        self._state.router.put(subscriber)


def _wants_retained(asked: Subscription) -> bool:
    return asked.retain_handling != RETAIN_NEVER and not asked.topic_filter.startswith(NOT_RETAINED)


def _lowered(subscriptions: tuple[Subscription, ...], max_qos: int) -> Iterator[Subscription]:
    """The subscriptions with the QoS that can be granted."""
    for asked in subscriptions:
        yield replace(asked, qos=max_qos) if asked.qos > max_qos else asked


def _denied(version: ProtocolVersion, qos: int) -> int:
    """The answer to a subscription that the rules do not allow. MQTT 3.1 has no word for it: it is granted there, and
    stands for nothing (3.8, Response)."""
    if version is ProtocolVersion.V5:
        return ReasonCode.NOT_AUTHORIZED
    return qos if version is ProtocolVersion.V31 else V3_FAILURE
