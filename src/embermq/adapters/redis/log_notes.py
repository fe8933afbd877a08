"""Which message log the data in a Redis belongs to, and what is remembered of that log. For the start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from embermq.adapters.redis.blocking import BlockingRedis
from embermq.adapters.redis.floor_marks import INCOMPLETE, mark_keys
from embermq.adapters.redis.handshake import EPOCH, end_older, epoch_keys
from embermq.formats.redis_applications import GROUP_PREFIX
from embermq.formats.redis_layout import (
    IMPORT_KEY,
    LOG_KEY,
    RETAINED_PREFIX,
    SCHEMA_KEY,
    SCHEMA_VERSION,
    SESSION_PREFIX,
    WILL_PREFIX,
    LayoutError,
    decode_schema,
    encode_schema,
)
from embermq.formats.redis_queues import QUEUE_PREFIX
from embermq.ports.errors import StoreError
from embermq.ports.known_log import KnownLog

CLUSTER = "cluster"
"""The field of `LOG_KEY` with the cluster that the data belongs to, "" or missing for none."""
SLOTS = "slot-"
"""How all keys begin of slots that are not the first one; see `key_prefix`."""
PEER = "slot-"
"""How fields of `LOG_KEY` begin that say how far the log of another slot has been taken in."""
OUR_KEYS = (SESSION_PREFIX, WILL_PREFIX, RETAINED_PREFIX, GROUP_PREFIX, QUEUE_PREFIX)
"""How keys begin without which there is nothing of ours: what else belongs to a client stands beside its session."""


class RedisLogNotes:
    """See the module. `place` names the Redis to people. Raises StoreError."""

    def __init__(self, redis: BlockingRedis, place: str) -> None:
        self._redis = redis
        self._place = place
        self._schema, self._log = redis.prefix + SCHEMA_KEY, redis.prefix + LOG_KEY
        self.former_ended = 0
        """Connections of brokers before this one that it has ended."""
        self._import = redis.prefix + IMPORT_KEY
        self._marks = mark_keys(redis.prefix, cluster=redis.is_cluster)

    def known(self) -> KnownLog:
        """What is remembered. Of a Redis that nobody has used nothing is; raises StoreError for one that holds what
        this version cannot read, or what EmberMQ has not written."""
        value = self._redis.command(self._schema, "GET", self._schema)
        if value is None:
            self._check_empty()
            return KnownLog(is_any=False, identity="", end=0, ended_in_order=False)
        identity = self._identity(value)
        names = ("end", "closed", "generations", "time")
        found = self._redis.command(self._log, "HMGET", self._log, *names, CLUSTER)
        assert isinstance(found, list)
        cluster = found.pop()
        try:
            end, closed, generations, time_ms = (
                int(text) if isinstance(text, bytes) else 0 for text in found
            )
        except ValueError as error:
            raise self._unfit(f"key {self._log!r}: {error}") from error
        return KnownLog(
            is_any=bool(identity),
            identity=identity,
            end=end,
            ended_in_order=bool(closed),
            generations=max(1, generations),
            time_ms=time_ms,
            cluster=cluster.decode(errors="replace") if isinstance(cluster, bytes) else "",
        )

    def peers(self, slots: Sequence[int]) -> dict[int, tuple[int, int]]:
        """By slot how far its log has been taken in here, and the end of this log then; see `note_peer`. 0 for both of
        what nothing is known of."""
        found = self._redis.command(self._log, "HMGET", self._log, *(f"{PEER}{slot}" for slot in slots))
        assert isinstance(found, list)
        peers: dict[int, tuple[int, int]] = {}
        for slot, value in zip(slots, found, strict=True):
            text = value.decode(errors="replace") if isinstance(value, bytes) else "0:0"
            position, _, end = text.partition(":")
            try:
                peers[slot] = int(position), int(end)
            except ValueError as error:
                raise self._unfit(f"key {self._log!r}, field {PEER}{slot}: {error}") from error
        return peers

    def begin(self, end: int) -> None:
        """Of a log that nothing was known of, what is below `end` is owed to nobody, and that stays so: without marks
        the next start would read the log from its beginning. Before `open`, which says that it is known."""
        for key in self._marks:
            self._redis.command(key, "SET", key, end)
        self._redis.command(self._log, "HSET", self._log, "end", end)

    def open(self, identity: str, cluster: str = "") -> None:
        """The data belongs to this log and this cluster from now on, and this run counts as one that did not end in
        order."""
        self._redis.command(self._schema, "SET", self._schema, encode_schema(identity))
        self._redis.command(self._log, "HSET", self._log, "closed", 0, CLUSTER, cluster)

    def check_cluster(self, known: KnownLog, cluster: str) -> None:
        """A broker that is not in the cluster ("" for none) of those that were here before knows nothing of their
        leases. Raises StoreError for it."""
        if known.cluster in ("", cluster):
            return
        raise self._unfit(
            f"belongs to cluster {known.cluster!r}, whose brokers serve one at a time by its etcd, and this broker is "
            f"{f'of cluster {cluster!r}' if cluster else 'in no cluster'}. Set cluster.etcd to that etcd, with "
            f"/{known.cluster} behind it; or, when none of its brokers runs any more, take the data out of the "
            f"cluster: redis-cli HDEL {self._log} {CLUSTER}"
        )

    def epoch(self) -> int:
        """The highest that any master knows."""
        return max(self._raise_epochs(0))

    def take_over(self) -> int:
        """Be the one who may write; returns the new epoch. Nothing that another broker has asked for takes effect from
        now on, nor what it asks for on connections to come."""
        highest, epoch = self.epoch(), self._count_epochs(1)
        if epoch <= highest:  # the count was lost
            epoch = self._count_epochs(highest + 1 - epoch)
        if max(self._raise_epochs(epoch)) > epoch:
            raise self._unfit("another broker takes it over at this moment")
        for master in self._redis.masters:
            (listed,) = self._redis.many(master, [("CLIENT", "LIST")])
            older = end_older(listed, self._redis.address, epoch) if isinstance(listed, bytes) else []
            self.former_ended += len(older)
            for answer in (listed, *self._redis.many(master, older)):
                if isinstance(answer, Exception):
                    raise self._unfit(
                        f"a broker of a cluster may have to use CLIENT LIST and CLIENT KILL: {answer}"
                    )
        return epoch

    def _count_epochs(self, more: int) -> int:
        """In one step: of two who take over at a time one is the later."""
        found = self._redis.command(self._log, "HINCRBY", self._log, "epoch", more)
        assert isinstance(found, int)
        return found

    def _raise_epochs(self, epoch: int) -> Iterator[int]:
        for key in epoch_keys(self._redis.address):
            held = self._redis.run(key, EPOCH, (key,), (epoch,))
            assert isinstance(held, int)
            yield held

    def begin_import(self, of: bytes) -> bytes:
        """Nobody takes what comes for the data of a broker before `end_import`. Returns what an import is of that has
        begun already, else the same; raises StoreError for a Redis that is in use."""
        found = self.importing()
        if found is None:
            if self._redis.command(self._schema, "EXISTS", self._schema):
                raise self._unfit("belongs to a broker already: an import needs an empty one")
            self._check_empty()
            self._redis.command(self._import, "SET", self._import, of, "NX")
            found = self.importing()
        return found or b""

    def importing(self) -> bytes | None:
        """What an import is of that has begun and not ended."""
        if self._redis.command(self._schema, "EXISTS", self._schema):
            return None  # all is there
        found = self._redis.command(self._import, "GET", self._import)
        return found if isinstance(found, bytes) else None

    def end_import(self) -> None:
        """Note that everything has been imported."""
        self._redis.command(self._import, "DEL", self._import)

    def _check_empty(self) -> None:
        if self.importing() is not None:
            raise self._unfit(
                "an import of an embedded broker into it has not ended: run embermq import-embedded once more, or "
                "give it up: delete its keys (FLUSHDB, unless others are there)"
            )
        for master in self._redis.masters:
            for prefix in OUR_KEYS:
                for keys in self._redis.keys(master, prefix + "*"):
                    raise self._unfit(
                        f"has key {keys[0].decode(errors='replace')!r} but no {self._schema}: it holds data that "
                        "EmberMQ cannot place, or has lost what says whose it is. Put a copy back, or name another "
                        f"one; or begin without it: {self._how_to_empty()} and set kafka.adopt_log"
                    )

    def _how_to_empty(self) -> str:
        """Without a word that would cost other slots their keys."""
        if self._redis.prefix:
            return f"delete all keys {self._redis.prefix}*"
        if any(found for master in self._redis.masters for found in self._redis.keys(master, SLOTS + "*")):
            return f"delete all keys that do not begin with {SLOTS} (those are of other slots: no FLUSHDB)"
        return "empty it (FLUSHDB on each master)"

    def check_whole(self, *, accept_loss: bool) -> None:
        """Of a Redis that knows a log: all marks are there from the first start on, so a master without its own was
        emptied meanwhile, with the sessions and queues of its slots. Raises StoreError then, unless the operator will
        `accept_loss`."""
        values = {key: self._redis.command(key, "GET", key) for key in self._marks}
        missing = [key for key, value in values.items() if value is None or value == INCOMPLETE]
        if not missing:
            return
        if not accept_loss:
            raise self._unfit(
                f"has no position in key {missing[0]!r}: the server that has it was emptied, with the sessions and "
                "queues of its hash slots. Put a copy back, or set kafka.adopt_log to go on without what it had"
            )
        newest = max(
            (int(value) for value in values.values() if isinstance(value, bytes) and value.isdigit()),
            default=0,
        )
        for key in missing:  # what comes there now is complete as far as anybody knows
            self._redis.command(key, "SET", key, newest)

    def _identity(self, value: object) -> str:
        try:
            schema = decode_schema(value if isinstance(value, bytes) else b"")
        except LayoutError as error:
            raise self._unfit(str(error)) from error
        if schema.version != SCHEMA_VERSION:
            raise self._unfit(
                f"its layout has version {schema.version}, this version of EmberMQ knows {SCHEMA_VERSION}: start it "
                "with the EmberMQ that wrote it"
            )
        return schema.log

    def _unfit(self, why: str) -> StoreError:
        return StoreError(f"stores.session: {self._place}: {why}")
