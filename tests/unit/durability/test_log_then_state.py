"""Records first, then the rest of the tick: what waits for what, and what a failure of either means."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from embermq.durability.log_apart import store as log_apart
from embermq.durability.log_apart.start import behind_records
from embermq.durability.log_apart.store import LogThenState
from embermq.model.client_type import ClientType
from embermq.model.queue_rows import DelayedRow, EntryRow, QueueWrites
from embermq.model.session import SessionRow
from embermq.model.tick_writes import TickWrites
from embermq.ports.errors import StoreError, StoreFull
from embermq.ports.known_log import KnownLog
from embermq.ports.log_appender import Appended, LogAppender
from embermq.ports.log_state import LogState
from embermq.ports.receipt_log import ReceiptLog, ReceiptStatistics
from embermq.ports.sessions import StoredSession, StoredState
from embermq.ports.tick_store import Logged, Receipt
from embermq.sessions.tick import Tick


class HeldLog(LogAppender):
    """Answers when told to."""

    def __init__(self, happened: list[object]) -> None:
        self.happened = happened
        self.trouble = ""
        self.done: Appended

    def append(self, records: list[bytes], done: Appended) -> None:
        self.happened.append(("append", list(records)))
        self.done = done

    def passed(self, floor: int) -> None:
        self.happened.append(("passed", floor))

    @property
    def failing(self) -> str:
        return self.trouble

    def close(self) -> None:
        self.happened.append("log closes")


class HeldState(LogState):
    """Likewise."""

    def __init__(self, happened: list[object]) -> None:
        self.happened = happened
        self.kept: Logged
        self.writes: TickWrites
        self.known_end = 10

    @property
    def log_end(self) -> int:
        return self.known_end

    def keep(self, writes: TickWrites, base: int, count: int, kept: Logged) -> None:
        self.happened.append(("keep", base, count))
        self.kept = kept
        self.writes = writes

    def known_log(self) -> KnownLog:
        raise NotImplementedError

    def open_log(self, identity: str) -> None:
        raise NotImplementedError

    def close_log(self, end: int, *, in_order: bool) -> None:
        self.happened.append(("closed", end, in_order))

    def settle(self) -> None:
        return

    def close(self) -> None:
        self.happened.append("state closes")


class ListedReceipts(ReceiptLog):
    """Takes all."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.is_closed = False

    def take(self, samples: list[bytes]) -> None:
        self.taken += samples

    def statistics(self) -> ReceiptStatistics:
        return ReceiptStatistics(len(self.taken), 0, 0)

    def close(self) -> None:
        self.is_closed = True


class Composed:
    """A store at number 10, and what it did."""

    def __init__(self, receipts: ReceiptLog | None = None) -> None:
        self.happened: list[object] = []
        self.log, self.state = HeldLog(self.happened), HeldState(self.happened)
        self.tick = Tick()
        self.tick.now_ms = 1_000
        self.store = LogThenState(self.log, self.state, 10, self.tick, receipts=receipts)
        self.told: list[str] = []
        self.store.on_waiting = self.told.append

    def submit(self, **writes: object) -> list[Receipt | StoreError]:
        answers: list[Receipt | StoreError] = []
        self.store.submit(TickWrites(**writes), answers.append)  # type: ignore[arg-type]
        return answers

    def news(self) -> list[object]:
        """What happened since the last look."""
        found, self.happened[:] = list(self.happened), []
        return found


def test_the_rest_waits_for_the_records_and_the_answer_for_both() -> None:
    hand = Composed()
    answers = hand.submit(records=[b"a", b"b"], receipts=[b"r"], dispatcher_floor=4)
    assert hand.news() == [("append", [b"a", b"b"])]
    hand.log.done(Receipt(10, 2))
    assert hand.news() == [("keep", 10, 2)]
    assert (hand.state.writes.records, hand.state.writes.receipts) == ([], [b"r"])
    assert (answers, hand.store.busy) == ([], True)
    hand.state.kept(Receipt(10, 2))
    assert (answers, hand.store.busy) == ([Receipt(10, 2)], False)
    assert hand.news() == [("passed", 4)]
    assert hand.store.dispatcher_floor == 4
    hand.submit(records=[b"c"])
    assert hand.news() == [("append", [b"c"])]


def test_records_of_queues_are_kept_beside_their_rows_too() -> None:
    """One of them cannot be asked for in the log; the answer waits for both."""
    hand = Composed()
    entry = EntryRow(1, 5, 0, -1, 2, None, 9)
    dead = replace(entry, sequence=6, offset=3, record=-1)
    delayed = DelayedRow(1, 7, -1, 0, None, 8, 9)
    queues = QueueWrites(entries={(1, 5): entry, (1, 6): dead}, delayed={(1, 7): delayed})
    answers = hand.submit(records=[b"a", b"b", b"c"], queues=queues)
    hand.log.done(Receipt(10, 3))
    assert answers == []
    kept = hand.state.writes
    assert (kept.records, kept.queues.bodies) == ([], {0: b"a", 2: b"c"})
    assert (kept.queues.entries, kept.queues.delayed) == (queues.entries, queues.delayed)
    hand.state.kept(StoreFull("no room"))
    assert answers == [], "records cannot be taken back"
    hand.tick.now_ms += log_apart.RETRY_MS
    hand.store.settle()
    assert hand.state.writes.queues.bodies == {0: b"a", 2: b"c"}
    hand.state.kept(Receipt(10, 3))
    assert answers == [Receipt(10, 3)]


def test_records_alone_need_no_other_store_and_the_rest_alone_no_log() -> None:
    hand = Composed()
    answers = hand.submit(records=[b"a"])
    hand.log.done(Receipt(10, 1))
    assert answers == [Receipt(10, 1)]
    assert hand.news() == [("append", [b"a"])]
    answers = hand.submit(receipts=[b"r"])
    assert hand.news() == [("keep", 11, 0)]
    hand.state.kept(Receipt(11, 0))
    assert answers == [Receipt(11, 0)]


def test_the_store_beside_the_log_hears_of_its_end_now_and_then() -> None:
    hand = Composed()
    for known_end in (0, 11 - log_apart.UNKNOWN_RECORDS_MAX):
        hand.state.known_end = known_end
        base = hand.store.log_end
        answers = hand.submit(records=[b"a"])
        hand.log.done(Receipt(base, 1))
        assert hand.news() == [("append", [b"a"]), ("keep", base, 1)]
        assert answers == []
        hand.state.kept(Receipt(base, 1))
        assert answers == [Receipt(base, 1)]


def test_the_store_beside_the_log_hears_of_its_end_once_a_second() -> None:
    hand = Composed()
    hand.state.known_end = 9
    hand.tick.now_ms += log_apart.UNKNOWN_MS_MAX
    hand.submit(records=[b"a"])
    hand.log.done(Receipt(10, 1))
    assert hand.news() == [("append", [b"a"]), ("keep", 10, 1)]
    hand.state.kept(Receipt(10, 1))
    hand.submit(records=[b"b"])
    hand.log.done(Receipt(11, 1))
    assert hand.news() == [("append", [b"b"])]


def test_the_first_record_after_a_pause_does_not_wait_for_a_store_that_knows_all_before_it() -> None:
    hand = Composed()
    hand.tick.now_ms += log_apart.UNKNOWN_MS_MAX
    answers = hand.submit(records=[b"a"])
    hand.log.done(Receipt(10, 1))
    assert (hand.news(), answers) == ([("append", [b"a"])], [Receipt(10, 1)])
    hand.tick.now_ms += log_apart.UNKNOWN_MS_MAX
    hand.submit(records=[b"b"])
    hand.log.done(Receipt(11, 1))
    assert hand.news() == [("append", [b"b"]), ("keep", 11, 1)]


def test_a_generation_is_reserved_before_a_record_can_carry_it() -> None:
    hand = Composed()
    answers = hand.submit(records=[b"a"], generation_reserved=2_000, receipts=[b"r"])
    assert hand.news() == [("keep", 10, 0)]
    assert hand.state.writes == TickWrites(generation_reserved=2_000)
    hand.state.kept(Receipt(10, 0))
    hand.log.done(Receipt(10, 1))
    hand.state.kept(Receipt(10, 1))
    assert hand.news() == [("append", [b"a"]), ("keep", 10, 1)]
    assert answers == [Receipt(10, 1)]
    failure = StoreFull("no room")
    answers = hand.submit(records=[b"b"], generation_reserved=3_000)
    hand.state.kept(failure)
    assert answers == [failure]
    assert hand.news() == [("keep", 11, 0)]


def test_records_that_are_stored_are_not_refused_because_the_rest_is_not() -> None:
    hand = Composed()
    answers = hand.submit(records=[b"a"], receipts=[b"r"])
    hand.log.done(Receipt(10, 1))
    hand.news()
    for _ in range(2):
        hand.state.kept(StoreFull("no room on the disk"))
        assert (answers, hand.store.busy, hand.store.failing) == ([], True, "no room on the disk")
        hand.store.settle()
        assert hand.news() == []
        hand.tick.now_ms += log_apart.RETRY_MS
        hand.store.settle()
        hand.store.settle()
        assert hand.news() == [("keep", 10, 1)]
    hand.state.kept(Receipt(10, 1))
    assert (answers, hand.store.busy, hand.store.failing) == ([Receipt(10, 1)], False, "")
    assert hand.told == ["no room on the disk", ""]


def test_what_fails_before_a_record_is_stored_is_an_answer() -> None:
    hand = Composed()
    failure = StoreError("too large")
    answers = hand.submit(records=[b"a"], receipts=[b"r"])
    hand.log.done(failure)
    assert (answers, hand.store.busy) == ([failure], False)
    answers = hand.submit(receipts=[b"r"])
    hand.state.kept(failure)
    assert (answers, hand.store.busy) == ([failure], False)
    assert hand.store.log_end == 10
    assert hand.told == []


def test_one_tick_at_a_time() -> None:
    hand = Composed()
    hand.submit(records=[b"a"])
    with pytest.raises(RuntimeError):
        hand.submit(records=[b"b"])


def test_the_logs_trouble_is_shown_when_a_tick_waits_for_it_and_waits_for_long() -> None:
    hand = Composed()
    hand.log.trouble = "nobody there"  # a server of several, perhaps
    assert hand.store.failing == ""
    hand.submit(records=[b"a"], receipts=[b"r"])
    hand.tick.now_ms += log_apart.PATIENCE_MS - 1
    assert hand.store.failing == ""
    hand.tick.now_ms += 1
    assert hand.store.failing == "nobody there"
    hand.log.done(Receipt(10, 1))
    hand.tick.now_ms += log_apart.PATIENCE_MS
    assert hand.store.failing == ""


def test_an_end_is_clean_when_nothing_is_under_way() -> None:
    hand = Composed()
    hand.store.close()
    assert hand.news() == ["log closes", ("closed", 10, True), "state closes"]
    hand = Composed()
    hand.submit(records=[b"a"])
    hand.news()
    hand.store.close()
    assert hand.news() == ["log closes", ("closed", 10, False), "state closes"]


def test_sessions_are_complete_up_to_the_end_that_their_store_knew() -> None:
    row = SessionRow("c", 7, 1, ClientType.DEVICE, "", 5, 60, True, 0, 1)
    session = StoredSession(row, (), (), 0, 0, 0)
    stored = StoredState(sessions=[session], log_end=40)
    found = behind_records(stored, 44)
    (completed,) = found.sessions
    assert (found.log_end, completed.receiving_upto) == (44, 40)
    assert behind_records(stored, 3).log_end == 40
    assert msgspec.structs.replace(completed, receiving_upto=-1) == session


def test_samples_with_a_place_of_their_own_go_there_once_the_tick_is_stored() -> None:
    receipts = ListedReceipts()
    hand = Composed(receipts)
    hand.submit(records=[b"a"], receipts=[b"r"], dispatcher_floor=4)
    hand.log.done(Receipt(10, 1))
    hand.state.kept(StoreFull("no room"))
    assert (hand.state.writes.receipts, receipts.taken) == ([], [])
    hand.tick.now_ms += log_apart.RETRY_MS
    hand.store.settle()
    hand.state.kept(Receipt(10, 1))
    assert receipts.taken == [b"r"]
    hand.submit(receipts=[b"s"])
    assert hand.state.writes.is_empty()
    hand.state.kept(StoreFull("no room"))
    assert receipts.taken == [b"r"], "a tick that is refused has not happened"
    hand.submit(records=[b"b"], receipts=[b"t"])
    hand.log.done(Receipt(11, 1))
    assert receipts.taken == [b"r", b"t"]
    assert ("keep", 11, 1) not in hand.news(), "for samples alone broker.db need not write"
    hand.store.close()
    assert receipts.is_closed
