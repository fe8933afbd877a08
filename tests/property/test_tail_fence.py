"""The tail and the client's own log bring one stream: nothing lost, doubled or reordered by topic, with copies that
come late, twice and in another order, with clients that go and brokers and pipelines that die."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from embermq.delivery.application.positions import Positions
from embermq.delivery.application.tail_fence import HOLES_MAX, Ranges, TailFence, Way
from embermq.model.application_positions import StoredPositions
from embermq.model.message import Message
from embermq.sessions.session import Delivery

TOPICS = 3
TASKS = 2
"""Of the pipeline: topics are shared out among them."""
WINDOW = 5


class Stored:
    """What the store has of a session, whole ticks of it."""

    def __init__(
        self,
        positions: StoredPositions,
        served: Ranges,
        marks: dict[int, tuple[int, bool]],
        acknowledged: Iterable[int],
    ) -> None:
        self.positions = positions
        self.served = served
        self.marks = marks
        """Offset -> source, and whether it is settled."""
        self.acknowledged = frozenset(acknowledged)


class Reader:
    """As that of a connection: what it does with the fence is what is shown to be right."""

    def __init__(self, fence: TailFence, stored: Stored, log_end: int, *, is_new: bool) -> None:
        self.fence = fence
        done = [offset for offset, (_, settled) in stored.marks.items() if settled]
        self.positions = Positions(stored.positions, done, segment_records=2)
        self.read_to = stored.positions.base_offset
        self.resumed_to = max([stored.positions.committed_offset, *(at + 1 for at in stored.marks)])
        self.next_offset = self.resumed_to
        self.waiting: deque[tuple[int, int]] = deque()
        self.pending: deque[Delivery] = deque()
        self.tail: deque[int] = deque()
        self.begin = self.heard_to = log_end
        self.caught_up = log_end if is_new else 0
        self.asked: tuple[int, int] | None = None


def source_of(delivery: Delivery) -> int:
    return int(delivery.message.payload)


class TailAndLog:
    """One session; the log's records are (topic, QoS), their positions the indices."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.done = [0] * TASKS
        self.reported = 0
        self.copies: list[int] = []
        self.stored = Stored(StoredPositions(), (), {}, ())
        self.unstored: deque[Stored] = deque()
        self.fence = TailFence()
        self.reader: Reader | None = None
        self.is_new = True
        self.window: dict[int, Delivery] = {}
        """By source."""
        self.acknowledged: set[int] = set()
        self.sent_since_crash: set[int] = set()
        self.received: list[int] = []
        """First receptions."""
        self.connects()

    # What happens elsewhere

    def publishes(self, topics: list[int], *, is_qos_2: bool, is_handed_on: bool) -> None:
        self.log += [(topic, 1) for topic in topics]
        if is_qos_2:
            self.log[-1] = (topics[-1], 2)
        if is_handed_on and self.reader is not None:
            self.log_end_is_handed_on(1_000)
            self.tail_is_sent()

    def copies_are_written(self, task: int, count: int) -> None:
        while count and self.done[task] < len(self.log):
            source = self.done[task]
            self.done[task] += 1
            if self.log[source][0] % TASKS == task:
                self.copies.append(source)
                count -= 1

    def pipeline_reports(self) -> None:
        self.reported = min(self.done)

    def pipeline_dies(self) -> None:
        self.done = [self.reported] * TASKS

    # The broker

    def send(self, source: int, *, dup: bool = False) -> None:
        topic, _ = self.log[source]
        assert source not in self.stored.acknowledged, "comes again, acknowledged and stored"
        assert dup or source not in self.sent_since_crash, "doubled"
        self.sent_since_crash.add(source)
        if source not in self.received:
            earlier = [one for one in range(source) if self.log[one][0] == topic]
            assert all(one in self.received for one in earlier), "reordered"
            self.received.append(source)

    def delivery(self, source: int, offset: int) -> Delivery:
        message = Message("t", str(source).encode(), 1, False, "", 4, 0)
        self.window[source] = made = Delivery(message, b"", offset, 1, False, (), application=True)
        return made

    def log_end_is_handed_on(self, count: int) -> None:
        if self.reader is None:
            return
        reader = self.reader
        for _ in range(min(count, len(self.log) - reader.heard_to)):
            reader.tail.append(reader.heard_to)
            reader.heard_to += 1

    def tail_has_no_room(self) -> None:
        if self.reader is None:
            return
        reader = self.reader
        self.fence.stop()
        reader.tail.clear()
        reader.begin = reader.heard_to

    def copies_come(self, count: int) -> None:
        if self.reader is None:
            return
        reader = self.reader
        for at in range(reader.read_to, min(reader.read_to + count, len(self.copies))):
            reader.waiting.append((at, self.copies[at]))
            reader.read_to = at + 1

    def log_is_sent(self) -> None:
        if self.reader is None:
            return
        reader, fence = self.reader, self.fence
        while reader.waiting:
            at, source = reader.waiting[0]
            way = fence.judge(source)
            if way is Way.SEND and len(self.window) >= WINDOW:
                break
            reader.waiting.popleft()
            reader.next_offset = max(reader.next_offset, at + 1)
            if way is Way.BIND:
                assert at >= reader.resumed_to
                bound = fence.bind(source)
                bound.offset = at
                reader.pending.append(bound)
            elif way is Way.REPEAT:
                reader.positions.skip(at)
            elif reader.positions.take(at, source) and at >= reader.resumed_to:
                reader.pending.append(self.delivery(source, at))
                self.send(source)
        self.commit_floor()

    def tail_is_sent(self) -> None:
        if self.reader is None:
            return
        reader, fence = self.reader, self.fence
        if not fence.may_serve(reader.begin, reader.caught_up):
            return
        while reader.tail and len(self.window) < WINDOW:
            source = reader.tail.popleft()
            if reader.positions.has(source):
                fence.passed(source + 1)
            elif self.log[source][1] == 2:
                fence.stop()
                reader.begin = source + 1
                return
            else:
                fence.sent(source, self.delivery(source, ~source))
                self.send(source)
        if not reader.tail:
            fence.passed(reader.heard_to)

    def report_is_heard(self) -> None:
        """And the log's end asked for; both are reached later."""
        if self.reader is None:
            return
        reader = self.reader
        if reader.asked is None:
            reader.asked = (self.reported, len(self.copies))
            reader.positions.complete({0: self.reported}, len(self.copies))
        self.commit_floor()

    def commit_floor(self) -> None:
        assert self.reader is not None
        reader = self.reader
        while reader.pending and reader.pending[0].settled:
            reader.pending.popleft()
        floor = reader.pending[0].offset if reader.pending else reader.next_offset
        reader.positions.commit(floor)
        self.fence.forget(reader.positions.is_below_floors)
        if reader.asked is not None and reader.next_offset >= reader.asked[1]:
            reader.caught_up = max(reader.caught_up, reader.asked[0])
            reader.asked = None

    def acknowledges(self, number: int) -> None:
        if not self.window or self.reader is None:
            return
        source = list(self.window)[number % len(self.window)]
        delivery = self.window.pop(source)
        delivery.settled = True
        self.acknowledged.add(source)
        if delivery.offset < 0:
            self.fence.settled(~delivery.offset)
        self.commit_floor()

    # The store

    def tick(self) -> None:
        if self.reader is None:
            return
        reader = self.reader
        marks = {one.offset: (source_of(one), one.settled) for one in reader.pending}
        self.unstored.append(Stored(reader.positions.stored(), self.fence.served(), marks, self.acknowledged))

    def is_stored(self) -> None:
        if not self.unstored:
            return
        self.stored = self.unstored.popleft()

    def disconnects(self) -> None:
        if self.reader is None:
            return
        self.commit_floor()
        self.tick()
        self.fence.stop()
        self.reader = None
        while self.unstored:
            self.is_stored()

    def connects(self) -> None:
        if self.reader is not None:
            return
        fence, stored = self.fence, self.stored
        self.reader = reader = Reader(fence, stored, len(self.log), is_new=self.is_new)
        self.is_new = False
        self.window.clear()
        for offset, (source, settled) in sorted(stored.marks.items()):
            delivery = self.delivery(source, offset)
            delivery.settled = settled
            reader.pending.append(delivery)
            if settled:
                del self.window[source]
        self.window.update(fence.early)
        for source in sorted(self.window):
            self.send(source, dup=True)

    def broker_dies(self) -> None:
        self.unstored.clear()
        self.reader = None
        self.fence = TailFence(self.stored.served)
        self.acknowledged = set(self.stored.acknowledged)
        self.sent_since_crash.clear()
        self.connects()

    # What has to be

    def all_is_quiet(self, acknowledges: bool) -> None:
        """But for the client, perhaps: the tail serves as soon as it may."""
        if self.reader is None:
            return
        self.log_end_is_handed_on(1_000)
        for task in range(TASKS):
            self.copies_are_written(task, 1_000)
        self.report_is_heard()
        self.pipeline_reports()
        for _ in range(2):
            self.copies_come(1_000)
            self.log_is_sent()
            self.tail_is_sent()
            while acknowledges and self.window:
                self.acknowledges(0)
            self.report_is_heard()
        self.tail_is_sent()

    def early_ascends(self) -> None:
        assert list(self.fence.early) == sorted(self.fence.early)
        assert len(self.fence.early) < HOLES_MAX

    def ends(self) -> None:
        """Everything is done at last, and nothing is left of it."""
        if self.reader is None:
            self.connects()
        for _ in range(len(self.log) + 4):
            self.all_is_quiet(True)
        assert self.fence.serves
        assert self.reader is not None
        assert self.acknowledged == set(range(len(self.log))), "lost"
        assert not self.fence.early
        assert not self.reader.waiting
        assert self.reader.positions.committed_offset == len(self.copies)


Step = Callable[[TailAndLog], None]


def steps() -> st.SearchStrategy[Step]:
    """What is likely in a broker that works is likely here, or nothing would ever come by the tail."""
    topics = st.lists(st.integers(0, TOPICS - 1), min_size=1, max_size=4)

    def published(topics: list[int], of_qos_2: int, handed_on: int) -> Step:
        return lambda model: model.publishes(topics, is_qos_2=not of_qos_2, is_handed_on=handed_on > 0)

    def counted(method: Callable[[TailAndLog, int], None], most: int) -> st.SearchStrategy[Step]:
        return st.integers(1, most).map(lambda count: lambda model: method(model, count))

    publishes = st.builds(published, topics, st.integers(0, 15), st.integers(0, 3))
    writes: st.SearchStrategy[Step] = st.builds(
        lambda task, count: lambda model: model.copies_are_written(task, count),
        st.integers(0, TASKS - 1),
        st.integers(1, 4),
    )
    quiet: st.SearchStrategy[Step] = st.booleans().map(lambda acks: lambda model: model.all_is_quiet(acks))
    model = TailAndLog
    often: list[st.SearchStrategy[Step]] = [
        publishes,
        publishes,
        writes,
        counted(model.copies_come, 5),
        counted(model.acknowledges, WINDOW),
        counted(model.log_end_is_handed_on, 5),
        st.sampled_from([model.log_is_sent, model.tail_is_sent]),
        st.sampled_from([model.pipeline_reports, model.report_is_heard]),
        st.sampled_from([model.tick, model.tick, model.is_stored]),
    ]
    rare = st.sampled_from(
        [model.pipeline_dies, model.tail_has_no_room, model.disconnects, model.connects, model.broker_dies]
    )
    return st.one_of(*often, *often, quiet, quiet, rare)


@given(st.lists(steps(), min_size=100, max_size=150))
@settings(max_examples=max(300, settings().max_examples // 4))
def test_nothing_is_lost_doubled_or_reordered(taken: list[Step]) -> None:
    model = TailAndLog()
    for step in taken:
        step(model)
        model.early_ascends()
    model.ends()
