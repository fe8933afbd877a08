"""A run on a durable queue: publishers to one queue, consumers of one group that settle what they get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import json
from msgspec.structs import replace

from embermq.mqtt.wire.packets import Packet, Puback, Publish
from embermq.queues.names import queue_name
from embermq_bench.client import REFUSED_FROM, BenchClient
from embermq_bench.cost_meter import CostMeter
from embermq_bench.errors import BenchError, ConnectionLostError, RefusedError
from embermq_bench.process_cost import WatchedProcess
from embermq_bench.publisher import Publisher
from embermq_bench.queue_api import QueueApi
from embermq_bench.queue_consumer import Arrivals, QueueConsumer
from embermq_bench.queue_frames import QueueFrames, keys_of
from embermq_bench.queue_report import QueueReport, broken_promises
from embermq_bench.report import cost_reports, per_cpu_second
from embermq_bench.run import VERSION_NAMES, Run, Stage
from embermq_bench.settings import Limits, Load, QueueLoad, Target

GROUP = "bench"
NO_MATCHING_SUBSCRIBERS = 0x10


async def run_queue(
    target: Target,
    load: Load,
    queue: QueueLoad,
    *,
    watched: Sequence[WatchedProcess] = (),
    children: bool = False,
    on_stage: Callable[[Stage], None] = lambda stage: None,
    limits: Limits | None = None,
) -> QueueReport:
    """Run it to its end. Raises a BenchError when it could not be carried out."""
    load.check()
    queue.check(load, target.version)
    run = QueueRun(target, load, queue, limits or Limits())
    try:
        report = await run.carry_out(watched, children=children, on_stage=on_stage)
    finally:
        run.abort()
        left = await run.clear()
    return replace(report, left=left)


class QueueRun(Run[QueueReport]):
    """Every message is to arrive at one consumer of the group."""

    def __init__(self, target: Target, load: Load, queue: QueueLoad, limits: Limits) -> None:
        super().__init__(target, load, limits)
        self._queue = queue
        self._name = queue_name(queue.queue) or f"bench/{self.run_id}"
        self._api = QueueApi(target.host, queue.http_port, target.token) if queue.http_port else None
        frames = QueueFrames(
            self._name, int(self.run_id, 16), version=target.version, payload_bytes=load.payload_bytes
        )
        ordered = bool(queue.keys) or queue.ordering == "strict"
        self._arrivals = Arrivals(queue.publishers, queue.keys, ordered=ordered)
        self.publishers = [
            Publisher(
                f"bench-{self.run_id}-p{number}",
                target,
                limits,
                frames.outgoing(number, keys_of(number, queue.publishers, queue.keys), load.qos),
                qos=load.qos,
                measurement=self.measurement,
            )
            for number in range(queue.publishers)
        ]
        self._consumers = [
            QueueConsumer(
                f"bench-{self.run_id}-c{number}",
                target,
                limits,
                frames,
                load=queue,
                arrivals=self._arrivals,
                measurement=self.measurement,
            )
            for number in range(queue.consumers)
        ]
        self.receivers = self._consumers

    async def prepare(self) -> None:
        """Say what the queue is to be, when it is to be anything special."""
        wanted: dict[str, object] = {}
        if self._queue.partitions:
            wanted["partitions"] = self._queue.partitions
        if self._queue.ordering:
            wanted["ordering"] = self._queue.ordering
        if not wanted:
            return
        if self._api is not None:
            await self._api.make(self._name, json.encode(wanted))
            return
        client = _Administrator(f"bench-{self.run_id}-a", self.target, self.limits)
        await client.connect(clean_start=True, expiry_s=0)
        try:
            await client.tell(f"$admin/queue/{self._name}/config", json.encode(wanted))
        finally:
            client.close()

    async def clear(self) -> str:
        """Delete a queue of this run's own, which nobody uses any more; returns what is left of it, and why."""
        if self._queue.queue:
            return ""
        if self._api is None:
            return f"the queue {self._name} stays: --http-port has it deleted"
        try:
            await self._api.delete(self._name)
        except BenchError as error:
            return f"the queue {self._name} stays: {error}"
        return ""

    async def subscribe(self, number: int) -> None:
        await self._consumers[number].consume(GROUP)

    def delivered(self) -> int:
        return sum(consumer.delivered for consumer in self._consumers)

    def deliveries_per_message(self) -> int:
        return 1

    def has_ended(self) -> bool:
        if self.delivered() < self.published() or any(consumer.unconfirmed for consumer in self._consumers):
            return False
        return self._lost() == 0

    def _lost(self) -> int:
        pairs = zip(self._arrivals.tallies, self.publishers, strict=True)
        return sum(tally.missing(publisher.taken) for tally, publisher in pairs)

    def report(self, meter: CostMeter, published: int, delivered: int) -> QueueReport:
        load, queue, arrivals = self.load, self._queue, self._arrivals
        costs = meter.costs()
        cpu_s = sum(cost.cpu_s + cost.children_cpu_s for cost in costs)
        lost = self._lost()
        return QueueReport(
            run=self.run_id,
            queue=self._name,
            version=VERSION_NAMES[self.target.version],
            qos=load.qos,
            publishers=queue.publishers,
            consumers=queue.consumers,
            partitions=queue.partitions,
            ordering=queue.ordering,
            keys=queue.keys,
            ack=queue.ack.value,
            ack_batch=queue.ack_batch,
            prefetch=queue.prefetch,
            payload_bytes=load.payload_bytes,
            rate=load.rate,
            window=load.window,
            published=sum(publisher.sent for publisher in self.publishers),
            acknowledged=sum(publisher.acknowledged for publisher in self.publishers),
            refused=sum(publisher.refused for publisher in self.publishers),
            unacknowledged=sum(publisher.outstanding for publisher in self.publishers),
            delivered=self.delivered(),
            distinct=arrivals.distinct,
            settled=sum(consumer.settled for consumer in self._consumers),
            settles_refused=sum(consumer.settles_refused for consumer in self._consumers),
            settles_unconfirmed=sum(consumer.unconfirmed for consumer in self._consumers),
            lost=lost,
            doubled=arrivals.doubled,
            repeats=arrivals.repeats,
            disordered=arrivals.disordered,
            foreign=arrivals.foreign,
            window_s=round(meter.elapsed_s, 3),
            published_per_s=round(published / meter.elapsed_s, 1),
            delivered_per_s=round(delivered / meter.elapsed_s, 1),
            delivery=self.measurement.delivery.summary(),
            settling=self.measurement.settling.summary(),
            acknowledgement=self.measurement.acknowledgement.summary(),
            send_delay=self.measurement.send_delay.summary(),
            processes=cost_reports(costs, delivered),
            messages_per_cpu_s=per_cpu_second(delivered, cpu_s) if costs else None,
            generator_cpu_s=round(meter.generator_cpu_s, 3),
            generator_cores=round(meter.generator_cpu_s / meter.elapsed_s, 3),
            failures=broken_promises(lost, arrivals.disordered),
        )


class _Administrator(BenchClient):
    """Publishes one setting and waits for what the broker says."""

    _told: asyncio.Future[Puback] | None = None

    async def tell(self, topic: str, payload: bytes) -> None:
        """Raises RefusedError, or ConnectionLostError when no answer comes."""
        self._told = asyncio.get_running_loop().create_future()
        self.send(Publish(topic, payload, 1, 1))
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                answer = await self._told
        except TimeoutError as error:
            raise ConnectionLostError(f"no answer to {topic} in {self.limits.connect_timeout_s} s") from error
        if answer.reason_code == NO_MATCHING_SUBSCRIBERS:
            raise RefusedError(f"{topic}: nobody listens there: this broker cannot be told about queues")
        if answer.reason_code >= REFUSED_FROM:
            said = answer.properties.reason_string if answer.properties is not None else None
            raise RefusedError(
                f"{topic}: refused with 0x{answer.reason_code:02x} ({said or 'no reason given'})"
            )

    def take_packet(self, packet: Packet) -> None:
        if isinstance(packet, Puback) and self._told is not None and not self._told.done():
            self._told.set_result(packet)
