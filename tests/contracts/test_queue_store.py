"""What every store of durable queues promises. The model is tests/support/queue_rows.py."""

from __future__ import annotations

from msgspec.structs import replace
from tests.contracts.servers_stores import ServersStores
from tests.contracts.stores import Stores, tick_writes
from tests.support.queue_rows import QueueRows

from embermq.formats.log_record import encode_record
from embermq.model.message import Message
from embermq.model.queue_rows import (
    Attempts,
    DeadLetter,
    DelayedRow,
    EntryRow,
    GroupMark,
    GroupRow,
    MessageState,
    Move,
    QueueSettingsRow,
    QueueWrites,
    StoredQueue,
)

ON_SERVERS = ON_CLUSTER = True
FAR_MS = 2**42
ROW = QueueSettingsRow(3, "tasks/ü", b'{"partitions":10}', 10_001)
GROUP = GroupRow(3, "workers", 0, 0)
ENTRY = EntryRow(3, 7, 9, -1, 0, "key/é", FAR_MS)
LETTER = DeadLetter("tasks/ü", "workers", "max_retries", "3-7", Attempts(11, 11, 1, 10, 5, "broken ü"), 2**41)
DELAYED = DelayedRow(3, 8, -1, 0, None, 2**41, 0)
RETRY = GroupMark(MessageState.RETRY, Attempts(1, 1, 1, 0, 2**41, "no"), 2**41 + 5)


def record(payload: bytes) -> bytes:
    return encode_record(Message("$queue/tasks", payload, 1, False, "p", 5, 1))


def loaded(stores: Stores) -> list[StoredQueue]:
    return [replace(queue, entries=tuple(queue.entries)) for queue in stores.queues.load()]


def queue_writes(*entries: EntryRow, **other: object) -> QueueWrites:
    rows = {(row.queue, row.sequence): row for row in entries}
    return QueueWrites(queues={3: ROW}, entries=rows, **other)  # type: ignore[arg-type]


def test_nothing_is_stored_at_first(stores: Stores) -> None:
    assert loaded(stores) == []
    assert stores.queues.next_generation() == 1


def test_it_is_certain_at_once_that_a_queue_is_ours_where_no_other_broker_can_be(stores: Stores) -> None:
    stores.write(queues=queue_writes())
    told: list[int] = []
    stores.queues.confirm(3, lambda: told.append(3))
    stores.queues.confirm(4, lambda: told.append(4))
    assert told == [3, 4], "of one that nobody knows nothing is handed out"


def test_what_ticks_put_is_read_again(stores: Stores) -> None:
    """Rows of records of their tick get the offset that the receipt tells."""
    model = QueueRows()
    first = queue_writes(
        replace(ENTRY, record=1),
        replace(ENTRY, sequence=9, record=0, key=None),
        groups={(3, "workers"): GROUP, (3, "ü"): replace(GROUP, group="ü", first_sequence=9)},
        delayed={(3, 8): replace(DELAYED, record=2, key="k"), (3, 12): replace(DELAYED, ticket=12, record=0)},
        marks={(3, "workers", 7): RETRY, (3, "ü", 9): GroupMark(MessageState.ACKED)},
        dedup_ids={(3, "once"): FAR_MS, (3, ""): FAR_MS + 1},
    )
    stores.write(records=[record(b"before")])
    model.apply(
        first,
        stores.write(records=[record(b"0"), record(b"1"), record(b"2")], queues=first).base_offset,
    )
    second = QueueWrites(
        queues={
            5: replace(ROW, generation=5, name="dlq/tasks/ü"),
            3: replace(ROW, sequences_reserved=20_001),
        },
        groups={(3, "workers"): replace(GROUP, idle_since_ms=2**41)},
        entries={
            (5, 1): replace(ENTRY, queue=5, sequence=1, offset=2, record=-1, dead_letter=LETTER),
            (5, 2**40): replace(
                ENTRY, queue=5, sequence=2**40, offset=2, record=-1, only_group="workers", origin_id="3-1"
            ),
        },
        marks={(3, "workers", 7): GroupMark(MessageState.DLQ)},
        dedup_ids={(3, "once"): FAR_MS + 2},
    )
    model.apply(second, stores.write(queues=second).base_offset)
    assert loaded(stores) == model.load()
    stores.reopen()
    assert loaded(stores) == model.load()
    assert stores.queues.next_generation() == 6


def test_what_is_removed_goes_with_its_marks(stores: Stores) -> None:
    """Also what was put by the same tick; to remove what is not there is no error."""
    model = QueueRows()
    other = replace(ENTRY, sequence=8)
    marks = {(3, group, sequence): RETRY for group in ("a", "b") for sequence in (7, 8)}
    groups = {(3, name): replace(GROUP, group=name) for name in ("a", "b")}
    delayed = {(3, number): replace(DELAYED, ticket=number) for number in (20, 21)}
    for writes in (
        queue_writes(ENTRY, other, groups=groups, marks=marks, delayed=delayed, removed={(9, 9): 4}),
        QueueWrites(removed={(3, 7): 0}, removed_delayed={(3, 20): 0, (3, 99): 5}),
        queue_writes(replace(ENTRY, sequence=30), removed={(3, 30): 1}, marks={(3, "a", 30): RETRY}),
    ):
        records = [record(b"0")] if writes.entries else []
        model.apply(writes, stores.write(records=records, queues=writes).base_offset)
    stores.reopen()
    assert loaded(stores) == model.load()
    (queue,) = loaded(stores)
    assert [row.sequence for row in queue.entries] == [8]
    assert {key[2] for key in queue.marks} == {8}
    assert [row.ticket for row in queue.delayed] == [21]


def test_a_message_goes_with_the_marks_of_very_many_groups(stores: Stores) -> None:
    names = [f"g{number}" for number in range(9_000)]
    groups = {(3, name): replace(GROUP, group=name) for name in names}
    marks = {(3, name, number): GroupMark(MessageState.ACKED) for name in names for number in (7, 8)}
    other = replace(ENTRY, sequence=8)
    stores.write(records=[record(b"")], queues=queue_writes(ENTRY, other, groups=groups, marks=marks))
    stores.write(queues=QueueWrites(removed={(3, 7): 0}))
    (queue,) = loaded(stores)
    assert {sequence for _, _, sequence in queue.marks} == {8} and len(queue.marks) == len(names)


def test_a_group_ends_before_one_of_the_same_name_begins(stores: Stores) -> None:
    marks = {(3, group, 7): RETRY for group in ("workers", "other")}
    stores.write(
        records=[record(b"")],
        queues=queue_writes(
            ENTRY,
            groups={(3, name): replace(GROUP, group=name) for name in ("workers", "other")},
            marks=marks,
        ),
    )
    again, other = replace(GROUP, first_sequence=8), replace(GROUP, group="other")
    stores.write(queues=QueueWrites(ended_groups={(3, "workers")}, groups={(3, "workers"): again}))
    stores.reopen()
    (queue,) = loaded(stores)
    assert set(queue.groups) == {again, other}
    assert list(queue.marks) == [(3, "other", 7)]
    stores.write(queues=QueueWrites(ended_groups={(3, "workers"), (3, "never")}))
    assert loaded(stores)[0].groups == (other,)


def test_marks_of_a_removed_group_go_bit_by_bit_and_never_to_another_of_its_name(
    stores: Stores | ServersStores,
) -> None:
    count = 7_000
    entries = [replace(ENTRY, sequence=number) for number in range(1, count + 1)]
    groups = {(3, name): replace(GROUP, group=name) for name in ("workers", "other")}
    everything = queue_writes(*entries, groups=groups)
    for group in ("workers", "other"):
        everything.marks |= {(3, group, number): RETRY for number in range(1, count + 1)}
    stores.write(records=[record(b"")], queues=everything)
    stores.write(queues=QueueWrites(ended_groups={(3, "workers")}))
    assert {group for _, group, _ in loaded(stores)[0].marks} == {"other"}
    stores.reopen()
    assert {group for _, group, _ in loaded(stores)[0].marks} == {"other"}
    stores.write(queues=QueueWrites(groups={(3, "workers"): GROUP}, marks={(3, "workers", 6_500): RETRY}))
    for _ in range(5):
        stores.write(records=[record(b"")])
        (queue,) = loaded(stores)
        assert [key for key in queue.marks if key[1] == "workers"] == [(3, "workers", 6_500)]
    assert len(queue.marks) == count + 1


def test_a_group_that_comes_and_goes_while_marks_of_former_ones_are_there(
    stores: Stores | ServersStores,
) -> None:
    count = 7_000
    entries = [replace(ENTRY, sequence=number) for number in range(1, count + 1)]
    stores.write(records=[record(b"")], queues=queue_writes(*entries))
    for life in range(4):
        group = replace(GROUP, first_sequence=life)
        marks = {(3, "workers", number): RETRY for number in range(1 + life, count - life)}
        stores.write(queues=QueueWrites(ended_groups={(3, "workers")}, groups={(3, "workers"): group}))
        stores.write(queues=QueueWrites(groups={(3, "workers"): replace(group, idle_since_ms=9)}))
        stores.write(queues=QueueWrites(marks=marks))
        if life == 2:
            stores.reopen()
        (queue,) = loaded(stores)
        assert queue.groups == (replace(group, idle_since_ms=9),)
        assert queue.marks.keys() == marks.keys()
    stores.write(queues=QueueWrites(ended_groups={(3, "workers")}))
    for _ in range(16):
        (queue,) = loaded(stores)
        assert not queue.groups and not queue.marks
        stores.write(records=[record(b"")])
    stores.write(queues=QueueWrites(groups={(3, "workers"): GROUP}))
    (queue,) = loaded(stores)
    assert queue.groups == (GROUP,) and not queue.marks


def test_a_deleted_queue_leaves_nothing_to_the_next_of_its_name(stores: Stores) -> None:
    everything = queue_writes(
        *(replace(ENTRY, sequence=number) for number in range(1, 2_500)),
        groups={(3, "workers"): GROUP},
        delayed={(3, 5_000 + i): replace(DELAYED, ticket=5_000 + i) for i in range(5)},
        marks={(3, "workers", number): RETRY for number in range(1, 2_500)},
        dedup_ids={(3, "once"): FAR_MS},
    )
    stores.write(records=[record(b"kept")], queues=everything)
    again = replace(ROW, generation=4)
    stores.write(queues=QueueWrites(ended_queues={3}, queues={4: again}))
    stored = [StoredQueue(again, (), (), (), {}, {})]
    assert loaded(stores) == stored
    stores.reopen()
    assert loaded(stores) == stored
    for _ in range(5):  # what it has goes bit by bit
        stores.write(generation_reserved=5)
    assert loaded(stores) == stored
    if isinstance(stores, ServersStores):
        of_queues = {key for key in stores.all_keys() if key.startswith("q:")}
        assert of_queues == {"q:s:{tasks/ü}", "q:p:{tasks/ü}"}, "and how far the log has nothing of it"
    elif stores.kind != "stand-in":
        for table in (
            "queue_entry",
            "queue_delayed",
            "queue_mark",
            "queue_dedup",
            "queue_group",
            "queue_ended",
        ):
            assert stores.writer.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (0,), table
    assert stores.queues.next_generation() == 5
    stores.write(queues=QueueWrites(ended_queues={4}))
    stores.reopen()
    assert loaded(stores) == []
    assert stores.queues.next_generation() == 5, "an old message id must never mean a new message"


def test_dedup_ids_of_the_past_may_go(stores: Stores) -> None:
    past = {(3, f"old {number}"): 1_000 + number for number in range(20)}
    stores.write(queues=queue_writes(dedup_ids=past))
    stores.write(queues=QueueWrites(dedup_ids={(3, "new"): FAR_MS, (3, "newer"): FAR_MS + 1}))
    stores.reopen()
    (queue,) = loaded(stores)
    assert {"new": FAR_MS, "newer": FAR_MS + 1}.items() <= queue.dedup_ids.items()
    assert queue.dedup_ids.keys() <= {"new", "newer"} | {key[1] for key in past}


def test_bodies_are_read_by_offset(stores: Stores) -> None:
    stores.write(records=[record(b"not of a queue")])
    rows = [replace(ENTRY, sequence=number + 1, record=number) for number in range(3)]
    bodies = [record(b"%d" % number) for number in range(3)]
    base = stores.write(records=bodies, queues=queue_writes(*rows)).base_offset
    late = QueueWrites(delayed={(3, 9): replace(DELAYED, ticket=9)})
    last = stores.write(records=[record(b"late")], queues=late).base_offset
    wanted = {base: bodies[0], base + 1: bodies[1], base + 2: bodies[2], last: record(b"late")}
    places = {base: 1, base + 1: 2, base + 2: 3, last: 9}
    assert stores.body(3, places) == wanted
    stores.reopen()
    lost = {last + 5: 99}
    assert stores.body(3, dict(reversed(places.items())) | lost) == {**wanted, last + 5: None}
    assert stores.body(77, lost) == {last + 5: None}


def test_bodies_come_in_bounded_answers(stores: Stores) -> None:
    bodies = [record(bytes([65 + number]) * 500_000) for number in range(6)]
    rows = [replace(ENTRY, sequence=number + 1, record=number) for number in range(6)]
    base = stores.write(records=bodies, queues=queue_writes(*rows)).base_offset
    answers: list[int] = []
    if stores.kind != "stand-in":
        messages = [(base + number, number + 1) for number in range(6)]
        stores.queues.bodies(3, messages, lambda found: answers.append(len(found)))  # type: ignore[arg-type]
        while sum(answers) < 6:
            stores.posted.get(timeout=30)()
        assert max(answers) <= 3
    assert stores.body(3, {base + i: i + 1 for i in range(6)}) == {
        base + i: body for i, body in enumerate(bodies)
    }


def test_bodies_stay_while_an_entry_needs_them_and_no_longer(stores: Stores) -> None:
    """The log lets go of its part; a dead letter takes over from the entry it came from, in one tick."""
    rows = [replace(ENTRY, sequence=number + 1, record=number) for number in range(3)]
    bodies = [record(b"%d" % number) for number in range(4)]
    delayed = {(3, 50): replace(DELAYED, ticket=50, record=3)}
    base = stores.write(records=bodies, queues=queue_writes(*rows, delayed=delayed)).base_offset
    after = stores.write(records=[record(b"after")]).base_offset
    stores.log.trim(after)
    stores.write(records=[record(b"more")])
    assert stores.body(3, {base: 1, base + 3: 50}) == {base: bodies[0], base + 3: bodies[3]}
    stores.reopen()
    letters = {
        (5, number): replace(rows[0], queue=5, sequence=number, offset=base, record=-1, dead_letter=LETTER)
        for number in (1, 2)
    }
    visible = {(3, 60): replace(ENTRY, sequence=60, offset=base + 3, record=-1)}
    stores.write(
        queues=QueueWrites(
            queues={5: replace(ROW, generation=5, name="dlq/tasks/ü")},
            entries=letters | visible,
            removed={(3, 1): base, (3, 2): base + 1},
            removed_delayed={(3, 50): base + 3},
            moves=[Move(3, 1, "workers", 5, 1), Move(3, 1, "other", 5, 2), Move(3, 50, "", 3, 60)],
        )
    )
    assert stores.body(5, {base: 1}) == stores.body(5, {base: 2}) == {base: bodies[0]}
    assert stores.body(3, {base + 2: 3, base + 3: 60}) == {base + 2: bodies[2], base + 3: bodies[3]}
    stores.write(queues=QueueWrites(removed={(5, 1): base}))
    assert stores.body(5, {base: 2}) == {base: bodies[0]}
    stores.write(queues=QueueWrites(removed={(5, 2): base, (3, 60): base + 3}))
    stores.reopen()  # others may see it a moment longer
    assert stores.body(5, {base: 2}) == {base: None}
    assert stores.body(3, {base: 1, base + 1: 2, base + 3: 60}) == {
        base: None,
        base + 1: None,
        base + 3: None,
    }
    assert stores.body(3, {base + 2: 3}) == {base + 2: bodies[2]}
    stores.write(queues=QueueWrites(ended_queues={3}))
    stores.write(generation_reserved=5)
    stores.reopen()
    assert stores.body(3, {base + 2: 3}) == {base + 2: None}


def test_a_delayed_message_keeps_its_body_whoever_else_goes(stores: Stores) -> None:
    writes = queue_writes(ENTRY, delayed={(3, 8): DELAYED})
    base = stores.write(records=[record(b"both")], queues=writes).base_offset
    after = stores.write(records=[record(b"after")]).base_offset
    stores.log.trim(after)
    stores.write(records=[record(b"more")])
    stores.write(queues=QueueWrites(removed={(3, 7): base}))
    assert stores.body(3, {base: 8}) == {base: record(b"both")}
    stores.write(queues=QueueWrites(removed_delayed={(3, 8): base}))
    stores.reopen()
    assert stores.body(3, {base: 8}) == {base: None}


def test_a_long_part_of_the_log_is_let_go_bit_by_bit(stores: Stores) -> None:
    bodies: dict[int, bytes] = {}
    numbers: dict[int, int] = {}
    sequence = 0
    for _ in range(3):
        texts = [record(b"%d" % number) for number in range(1_500)]
        rows = [replace(ENTRY, sequence=sequence + number + 1, record=number) for number in range(1_500)]
        base = stores.write(records=texts, queues=queue_writes(*rows)).base_offset
        bodies |= {base + number: text for number, text in enumerate(texts)}
        numbers |= {base + number: sequence + number + 1 for number in range(1_500)}
        sequence += len(rows)
    end = stores.write(records=[record(b"end")]).base_offset
    stores.log.trim(end)
    for _ in range(4):
        stores.write(records=[record(b"go on")])
    assert stores.body(3, numbers) == bodies


def test_a_tick_with_nothing_else_is_not_empty() -> None:
    for writes in (
        QueueWrites(ended_queues={1}),
        QueueWrites(ended_groups={(1, "g")}),
        QueueWrites(queues={3: ROW}),
        QueueWrites(groups={(3, "g"): GROUP}),
        QueueWrites(entries={(3, 7): replace(ENTRY, offset=1, record=-1)}),
        QueueWrites(delayed={(3, 8): DELAYED}),
        QueueWrites(marks={(3, "g", 1): RETRY}),
        QueueWrites(dedup_ids={(3, "x"): 1}),
        QueueWrites(removed={(3, 7): 1}),
        QueueWrites(removed_delayed={(3, 7): 1}),
        QueueWrites(bodies_at={1: b"x"}),
    ):
        assert not tick_writes(queues=writes).is_empty(), writes
    assert tick_writes(queues=QueueWrites()).is_empty()


def test_what_could_not_be_stored_comes_before_what_came_since() -> None:
    """Its publishes are withdrawn; of queues that have ended since nothing is put again."""
    dead = replace(ENTRY, queue=5, sequence=1, offset=3, record=-1)
    refused = tick_writes(
        queues=queue_writes(
            ENTRY,
            dead,
            replace(dead, queue=6),
            delayed={(3, 8): DELAYED},
            marks={(6, "g", 1): RETRY, (3, "g", 1): RETRY},
            groups={(6, "g"): replace(GROUP, queue=6)},
            removed={(3, 2): 9},
        )
    )
    since = tick_writes(queues=QueueWrites(ended_queues={6}, removed={(3, 4): 1}))
    since.put_before(refused)
    assert since.queues == QueueWrites(
        ended_queues={6},
        queues={3: ROW},
        entries={(5, 1): dead},
        marks={(3, "g", 1): RETRY},
        removed={(3, 2): 9, (3, 4): 1},
    )
    empty = tick_writes()
    empty.put_before(tick_writes(queues=QueueWrites(removed={(3, 2): 9})))
    assert empty.queues == QueueWrites(removed={(3, 2): 9})
    empty.put_before(tick_writes())
    assert empty.queues == QueueWrites(removed={(3, 2): 9})
