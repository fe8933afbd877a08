"""The broker: packets in, decisions out."""

from collections.abc import Callable
from typing import Any

from embermq.access.authentication.identity import Identity
from embermq.access.authorization.rule_set import RuleSet
from embermq.formats.log_record import RecordError
from embermq.intake.publishing import Publishing
from embermq.intake.system_topics import EventTopics, SystemTopics
from embermq.model.client_type import ClientType
from embermq.model.session import RetainedRow
from embermq.mqtt.wire.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from embermq.ports.errors import StoreError
from embermq.ports.sessions import StoredSession, StoredState
from embermq.ports.tick_store import Receipt
from embermq.sessions.absent_session import is_idle
from embermq.sessions.acknowledgements import Acknowledging
from embermq.sessions.awaiting_pubrel import Holding
from embermq.sessions.connecting import Connecting
from embermq.sessions.enhanced_authentication import Authenticating
from embermq.sessions.link import Link
from embermq.sessions.session import Session
from embermq.sessions.state import BrokerState
from embermq.sessions.subscribing import Subscribing
from embermq.sessions.tick import Batch
from embermq.sessions.wills import Wills


class Broker:
    """Drives the parts of this room. The server calls it with packets, commits what a tick gathered, and reports the
    outcome by `committed` or `refused`."""

    def __init__(self, state: BrokerState) -> None:
        self.state = state
        holding = Holding(state)
        self.publishing = Publishing(state, holding)
        self.acknowledging = Acknowledging(state, holding)
        self.subscribing = Subscribing(state)
        self.wills = Wills(state, self.publishing)
        self.system = SystemTopics(state, self.publishing)
        self.events = EventTopics(state, self.publishing)
        self.connecting = Connecting(
            state, self.wills, holding, self.publishing.refusing.objection_to_will, self._opened
        )
        self.authenticating = Authenticating(state, self.connecting)
        handlers: dict[type, Callable[[Link, Any], None]] = {
            Publish: self.publishing.accept,
            Puback: self.acknowledging.puback,
            Pubrec: self.acknowledging.pubrec,
            Pubrel: self.acknowledging.pubrel,
            Pubcomp: self.acknowledging.pubcomp,
            Subscribe: self.subscribing.subscribe,
            Unsubscribe: self.subscribing.unsubscribe,
            Pingreq: self._ping,
            Disconnect: self.connecting.disconnect,
            Auth: self.authenticating.auth,
        }
        self._handlers = handlers

    def handle(self, link: Link, packets: list[Packet]) -> None:
        """Decide about packets of a client that has been authenticated; those before its CONNACK wait."""
        if link.inbox is not None:
            if link.authentication is None:
                link.inbox.extend(packets)
            else:
                self.authenticating.before_connack(link, packets)
            return
        handlers = self._handlers
        for packet in packets:
            if link.closing:
                return
            handlers[type(packet)](link, packet)

    def _opened(self, link: Link) -> None:
        """CONNACK is queued: what the client sent after its CONNECT gets its turn."""
        waiting, link.inbox = link.inbox, None
        link.opened()
        if waiting:
            self.handle(link, waiting)

    def connect(self, link: Link, packet: Connect, identity: Identity) -> None:
        """A CONNECT of a client that may enter."""
        self.connecting.connect(link, packet, identity)

    def authorize(self, rules: RuleSet) -> None:
        """These rules hold from now on, for clients and sessions that are there as well. What has been sent already is
        not taken back."""
        state = self.state
        state.rules = rules
        for session in state.sessions.loaded:
            session.permissions = state.permissions(session.principal)
        state.router.forget()
        state.groups.authorized()
        if state.queues is not None:
            state.queues.authorized()

    def _ping(self, link: Link, _packet: Pingreq) -> None:
        link.send_packet(Pingresp())

    def committed(self, batch: Batch, receipt: Receipt) -> None:
        """The batch is durable: its records at least, and all of it when the receipt is whole."""
        state = self.state
        state.counters.commits += 1
        state.log_end = receipt.base_offset + receipt.record_count
        state.committing_records = 0
        state.tick.under_way = None
        if batch.writes.session.retained:
            self.publishing.retain(batch, receipt.base_offset)
        for call in batch.after_log:
            call()
        if receipt.whole:
            for _, call in batch.waiting():
                call()
        self.publishing.committed(batch, receipt)
        if batch.enqueued and state.queues is not None:
            state.queues.committed(batch, receipt)

    def refused(self, batch: Batch, error: StoreError) -> None:
        """The batch could not be stored: publishers hear of it, everything else is tried again with the next."""
        state = self.state
        state.counters.commits_failed += 1
        state.committing_records = 0
        state.tick.under_way = None
        state.tick.give_back(batch)
        self.connecting.store_failed()
        self.subscribing.cap_offsets(state.tick.writes.cap_offsets(state.log_end))
        lost = state.queues.refused(batch) if batch.enqueued and state.queues is not None else set()
        self.publishing.refused(batch, error, lost)

    def restore(self, stored: StoredState, retained: list[RetainedRow]) -> list[Session]:
        """Take over what the store holds; returns the sessions that are loaded: those of applications, and those that
        owe something. Clients that were connected when the broker ended count as gone now."""
        state = self.state
        state.set_generations(stored.generation_reserved)
        state.log_end = stored.log_end
        state.replays = dict(stored.replays)
        for entry in stored.sessions:
            row = entry.row
            if row.client_id not in state.sessions:
                if not (self._restore(entry) and state.sessions.put_away(row.client_id)):
                    state.sessions.stay(row.client_id)
                continue
            state.tick.session_writes.deleted_sessions.append(row.generation)  # a newer one came before
            if row.client_type is ClientType.APPLICATION:
                state.tick.writes.ended_applications.append(row.generation)
        for kept in retained:
            try:
                state.retained.restore(kept)
            except RecordError as error:
                state.damaged.note(f"the retained message of {kept.topic!r}: {error}")
        with_wills = {generation for generation, _ in stored.wills}
        with_sessions = {session.generation for session in state.sessions.of(with_wills)}
        for generation, will in stored.wills:
            self.wills.restore(generation, will, has_session=generation in with_sessions)
        state.groups.restore(self.connecting.session_end.end)
        return list(state.sessions.loaded)

    def _restore(self, entry: StoredSession) -> bool:
        """Take over a session; returns whether it may be put away."""
        state, row = self.state, entry.row
        session = Session(row, persistent=True)
        session.permissions = state.permissions(session.principal)
        state.quotas.begins(session)
        session.receiving = set(entry.receiving) or None
        state.restored_ids.update((session.generation, packet_id) for packet_id in entry.receiving)
        session.queue_seq_next = entry.queue_seq_next
        session.queued = entry.queued
        session.queued_bytes = entry.queued_bytes
        if row.connected:
            session.expires_ms = _deadline(row.expiry_interval_s, state.tick.now_ms)
            state.tick.session_writes.sessions.append(session.row())
        state.sessions.add(session)
        for subscription in entry.subscriptions:
            self.subscribing.restore(session, subscription)
        return is_idle(session)


def _deadline(expiry_interval_s: int, now_ms: int) -> int:
    return 0 if expiry_interval_s == 0xFFFFFFFF else now_ms + expiry_interval_s * 1000
