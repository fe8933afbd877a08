"""The logs of a cluster's other slots, read into this node's broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from embermq.adapters.kafka.peer_log import KafkaPeerLog
from embermq.app.config import Settings
from embermq.app.log_side import Post
from embermq.app.redis_state import RedisState
from embermq.app.slots import reader_name, slot_prefix
from embermq.app.store_addresses import kafka_address
from embermq.cluster.far_member import FarMember
from embermq.cluster.inflow import Inflow
from embermq.cluster.members import Members, sessions_of
from embermq.cluster.slots import ClusterStatistics, PeerStatistics
from embermq.edge.member_links import MemberLinks
from embermq.edge.node_link import Homes
from embermq.edge.node_messages import Far, Moved, NodeSender
from embermq.edge.settings import Address
from embermq.formats.log_record import RecordError, decode_record, slot_in, split_batch
from embermq.intake.broker import Broker
from embermq.ports.message_log import MessageLog
from embermq.ports.peer_logs import PeerLog, PeerRecords
from embermq.sessions.durable_queues import OffsetFound

NOTE_MS = 1_000
"""How often it is noted how far the logs of others have been taken in."""
AGAIN = 10
"""Every so many times also what is the same as before."""
ENDS_KEPT_MS = 20 * 60_000
"""How much older than all that has been taken in a retained message may come: its node's clock is behind, or Kafka did
not take it for a while, which ends that node after 15 minutes."""
READ_RECORDS = 1_000
READ_BYTES = 4 * 1024 * 1024


def other_slots(settings: Settings, slot: int) -> list[int]:
    """The slots of the cluster's other nodes, by number."""
    return [other for other in range(settings.cluster.slots) if other != slot]


class Peers:
    """Of the node that has `slot`; the settings are those of the whole cluster. Raises StoreError."""

    def __init__(
        self,
        settings: Settings,
        slot: int,
        *,
        broker: Broker,
        redis: RedisState,
        log: MessageLog,
        post: Post,
    ) -> None:
        self.members = Members(broker.state, slot, settings.cluster.slots, self._call, self._confirm)
        self.members_of = partial(sessions_of, broker.state, slots=settings.cluster.slots)
        """Sessions here of a slot's clients."""
        self._system = broker.system
        share = broker.state.share
        share.catch_up, share.members = self._catch_up, self.members
        self._slot = slot
        self._links: MemberLinks | None = None
        self._early: list[FarMember] = []
        """Those who came before the start."""
        self._post = post
        self._redis = redis
        self._state = broker.state
        self._sender: NodeSender | None = None
        slots = other_slots(settings, slot)
        at = redis.notes.peers(slots)
        copied = _copied(log, min(end for _, end in at.values()), broker.state.log_end)
        self.inflow = Inflow(broker.state, broker.publishing, slot, copied, self._note)
        self._kept_from = {other: end for other, (_, end) in at.items()}
        self._logs: dict[int, PeerLog] = {}
        address = kafka_address(settings.stores.log)
        for other in slots:
            kafka = replace(settings.kafka, prefix=slot_prefix(settings.kafka.prefix, other))
            self._logs[other] = KafkaPeerLog(address, kafka, reader_name(slot))
        self._begin = {other: max(position, copied.get(other, 0)) for other, (position, _) in at.items()}
        self._done = {other: (self._begin[other], end) for other, (_, end) in at.items()}
        """By slot the position up to which its log is taken in, and the end of our own then."""
        self._looks = 0
        self._is_forgetting = False
        self._told = dict.fromkeys(slots, (0, 0))

    def start(self, homes: Homes, moved: Moved) -> None:
        """The broker takes ticks from now on. `moved` is told of a slot that is at another node now."""
        links = self._links = MemberLinks(homes, self._slot, tuple(self._logs), self._confirm)

        def left(slot: int, address: Address) -> None:
            moved(slot, address)
            links.leave_node(slot, address)

        sender = self._sender = NodeSender(homes, tuple(self._logs), left)
        self._system.others = sender.figures
        sender.start()
        links.start(self.members)
        for member in self._early:
            links.call(self.members, member)
        self._early.clear()
        self._state.share.relay = sender.send
        for slot, log in self._logs.items():
            log.start(self._begin[slot], partial(self._take, slot))
        self.look()

    @property
    def kept_from(self) -> int:
        """From here on this node's own log tells, after a crash, what it has taken in."""
        return min(self._kept_from.values())

    def statistics(self) -> ClusterStatistics:
        """What this node has sent to others and got from them since its start, and its links of members."""
        return ClusterStatistics(
            copied=self.inflow.copies,
            delivered=self.inflow.delivered,
            refused=self.inflow.refused,
            unsent=self._sender.dropped if self._sender is not None else 0,
            member_links=self.members.links,
            peers=[self._peer(slot) for slot in self._logs],
        )

    def _peer(self, slot: int) -> PeerStatistics:
        far = self._sender.far[slot] if self._sender is not None else Far()
        waiting = far.waiting_bytes
        return PeerStatistics(
            slot=slot,
            is_connected=waiting is not None,
            sent=far.sent,
            sent_bytes=far.sent_bytes,
            waiting_bytes=waiting or 0,
            taken=self.inflow.taken.get(slot, 0),
            round_trips=far.round_trips.snapshot(),
            away=far.away.snapshot(),
            failovers=far.failovers,
            given_up=far.given_up,
        )

    def figures(self) -> Mapping[str, int]:
        """Of this node, for the others."""
        return self._system.figures

    @property
    def failing(self) -> str:
        """Why the log of another slot cannot be read, "" while all can."""
        return next((log.failing for log in self._logs.values() if log.failing), "")

    def _call(self, member: FarMember) -> None:
        if self._links is None:
            self._early.append(member)
        else:
            self._links.call(self.members, member)

    def _confirm(self, then: Callable[[], None]) -> None:
        """Calls back when the Redis has taken a write that it would refuse, had another node this one's slot."""
        slot, (position, log_end) = next(iter(self._done.items()))
        self._redis.writer.note_peer(slot, position, log_end, then)

    def _take(self, slot: int, found: PeerRecords, done: Callable[[], None]) -> None:
        """On the thread of the log's reader."""
        self._post(partial(self.inflow.take, slot, found, done))

    def _catch_up(self, found: OffsetFound) -> None:
        left = set(self._logs)

        def caught_up(slot: int) -> None:
            left.discard(slot)
            if not left:
                self._state.tick.wake()
                found(0)

        def tell(slot: int) -> None:
            self._post(partial(caught_up, slot))

        for slot, log in self._logs.items():
            log.catch_up(partial(tell, slot))

    def _note(self, slot: int, position: int, log_end: int) -> None:
        self._done[slot] = position, log_end

    def look(self) -> None:
        """Note what is done, now and then also what has been noted before: the Redis may have been emptied."""
        self._looks += 1
        for slot in self._logs:
            position, log_end = self._done[slot]
            if slot not in self.inflow.busy:
                # What is copied from now on stands behind that.
                _, log_end = self._done[slot] = position, self._state.log_end
            if self._told[slot] == (position, log_end) and self._looks % AGAIN:
                continue
            self._told[slot] = position, log_end
            noted = partial(self._noted, slot, position, log_end)
            self._redis.writer.note_peer(slot, position, log_end, noted)
        state = self._state
        state.timers.at(state.tick.now_ms + NOTE_MS, self.look)
        if state.retained.ends and not self._is_forgetting and not self._looks % AGAIN:
            self._is_forgetting = True
            self._catch_up(partial(self._caught_up, state.tick.date_ms))

    def _caught_up(self, since_ms: int, _offset: int) -> None:
        """What others have retained up to then has been taken in. Before it is forgotten what was newer than that, the
        Redis knows it, so that a start does not read it again."""
        left = set(self._logs)

        def noted(slot: int) -> None:
            left.discard(slot)
            if not left:
                self._is_forgetting = False
                self._state.tick.wake()
                self._state.retained.forget_ends(since_ms - ENDS_KEPT_MS)

        for slot in self._logs:
            self._redis.writer.note_peer(slot, *self._done[slot], partial(noted, slot))

    def _noted(self, slot: int, position: int, log_end: int) -> None:
        self._kept_from[slot] = max(self._kept_from[slot], log_end)
        self._logs[slot].told(position)

    def close(self) -> None:
        """Take nothing in any more."""
        if self._sender is not None:
            self._sender.close()
        if self._links is not None:
            self._links.close()
        for log in self._logs.values():
            log.close()


def _copied(log: MessageLog, start: int, end: int) -> Mapping[int, int]:
    """By slot the position behind the last record of it that this log has a copy of, from `start` on."""
    found: dict[int, int] = {}
    at = start
    while at < end:
        batches = log.read(at, records_max=READ_RECORDS, bytes_max=READ_BYTES)
        if not batches:
            break
        for batch in batches:
            for frame in split_batch(batch.body, batch.record_count):
                try:
                    source = slot_in(decode_record(frame))
                except RecordError:
                    continue  # recovery counts it
                if source is not None:
                    found[source[0]] = max(found.get(source[0], 0), source[1] + 1)
        at = batches[-1].base_offset + batches[-1].record_count
    return found
