"""Messages whose record a log in a store of its own has, and whose entry was never stored."""

from __future__ import annotations

from msgspec.structs import replace
from tests.support.queue_rows import QueueRows
from tests.support.stand_in_store import StandInLog, StandInStore

from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.queue_rows import QueueWrites
from embermq.model.tick_writes import TickWrites
from embermq.mqtt.wire.properties import Properties
from embermq.queues.mqtt.tail import enqueue_tail
from embermq.queues.queues import Queues
from embermq.queues.settings import GroupSettings
from embermq.sessions.tick import Tick

NOW_MS = 2**41


def record(topic: str, **said: str) -> bytes:
    pairs = tuple((name.replace("_", "-"), value) for name, value in said.items())
    return encode_record(Message(topic, b"x", 2, False, "p", 5, NOW_MS, 0, Properties(user_properties=pairs)))


def test_they_are_enqueued_with_their_bodies_and_once() -> None:
    store = StandInStore()
    records = [
        record("$queue/work", partition_key="before"),
        record("plain/topic"),
        record("$queue/work", partition_key="k", dedup_id="once"),
        record("$queue/work", dedup_id="once"),
        record("$queue/work/$ack"),
        record("$queue/other", delay="1h"),
    ]
    for each in records:
        store.submit(TickWrites(records=[each]), lambda _: None)
        store.commit()
    rows = QueueRows()
    for _ in range(2):  # killed before the first tick, and once more
        tick = Tick()
        core = Queues(GroupSettings(), 1, lambda tick=tick: tick.writes.queues)  # type: ignore[misc]
        core.restore(rows.load(), NOW_MS)
        assert enqueue_tail(core, tick, StandInLog(store), 1) == 2
    assert core.queue("work").depth() == core.queue("other").depth() == 1
    rows.apply(tick.writes.queues, 7)
    work, other = rows.load()
    (entry,) = work.entries
    assert (work.row.name, entry.offset, entry.key, entry.record) == ("work", 2, "k", -1)
    (delayed,) = other.delayed
    assert (other.row.name, delayed.offset, delayed.visible_ms) == ("other", 5, NOW_MS + 3_600_000)
    assert rows.bodies == {2: records[2], 5: records[5]}
    again = Queues(GroupSettings(), 3, QueueWrites)
    again.restore([replace(stored, entries=tuple(stored.entries)) for stored in rows.load()], NOW_MS)
    assert again.queue("work").depth() == 1


def test_they_stay_when_the_first_tick_is_refused() -> None:
    store = StandInStore()
    for each in (record("$queue/work"), record("$queue/other", delay="1h")):
        store.submit(TickWrites(records=[each]), lambda _: None)
        store.commit()
    tick, rows = Tick(), QueueRows()
    core = Queues(GroupSettings(), 1, lambda: tick.writes.queues)
    assert enqueue_tail(core, tick, StandInLog(store), 0) == 2
    tick.give_back(tick.take())
    rows.apply(tick.writes.queues, 2)
    assert [row.offset for row in rows.entries.values()] == [0]
    assert [row.offset for row in rows.delayed.values()] == [1] and len(rows.bodies) == 2
