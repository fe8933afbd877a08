"""What each application log gets when some are left out for a while: everything, in order, and little twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from embermq.pipeline.jobs.kafka_watch import Carried, Carrying, Leaders, told_of

LOGS = ("a", "b", "c")
Steps = list[tuple[str, int, frozenset[str]]]


def wants(carried: Carried | None, log: str, partition: int, offset: int) -> bool:
    """As the transform has it."""
    if carried is None:
        return True
    if log in carried.left_out:
        return False
    return offset >= carried.lagging.get(log, carried.most).get(partition, 0)


class Play:
    """A message log of two partitions whose records are for every log, and runs of dispatch."""

    def __init__(self) -> None:
        self.carrying = Carrying()
        self.ends = {0: 0, 1: 0}
        self.published = {0: 0, 1: 0}
        self.got: dict[str, list[tuple[int, int]]] = {log: [] for log in LOGS}
        self.start()

    def start(self) -> None:
        self.at = self.carrying.begin(dict(self.published))
        self.carried = self.carrying.carried()
        self.publish(self.at)

    def publish(self, ends: dict[int, int]) -> None:
        self.carrying.reached(ends)
        told = self.carrying.complete()
        assert all(told[partition] >= at for partition, at in self.published.items()), "it only grows"
        self.published = told
        for log in LOGS:
            for partition, end in told.items():
                assert {(partition, offset) for offset in range(end)} <= set(self.got[log])

    def batch(self, records: int, *, is_known: bool) -> None:
        """Of each partition so many more; whether anybody hears of its end."""
        for partition in self.ends:
            end = min(self.ends[partition], self.at[partition] + records)
            for offset in range(self.at[partition], end):
                for log in LOGS:
                    if wants(self.carried, log, partition, offset):
                        self.got[log].append((partition, offset))
            self.at[partition] = end
        if is_known:
            self.publish(dict(self.at))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["come", "batch", "lost batch", "leave out", "restart", "crash"]),
            st.integers(1, 4),
            st.frozensets(st.sampled_from(LOGS)),
        )
    )
)
def test_each_log_gets_everything_in_order(steps: Steps) -> None:
    play = Play()
    for what, count, logs in steps:
        if what == "come":
            play.ends = {partition: end + count for partition, end in play.ends.items()}
        elif what.endswith("batch"):
            play.batch(count, is_known=what == "batch")
            if what == "lost batch":
                play.start()
        elif what == "leave out":
            play.carrying.leave_out(logs)
            play.start()
        elif what == "restart":
            play.start()
        else:
            play.carrying = Carrying()
            play.start()
    play.carrying.leave_out(())
    play.start()
    play.batch(1_000, is_known=True)
    assert play.published == play.ends
    assert play.carrying.carried() is None
    for log in LOGS:
        firsts = list(dict.fromkeys(play.got[log]))
        for partition, end in play.ends.items():
            assert [offset for at, offset in firsts if at == partition] == list(range(end))


def test_who_was_served_all_the_time_gets_nothing_twice() -> None:
    play = Play()
    play.ends = {0: 5, 1: 3}
    play.batch(2, is_known=True)
    play.carrying.leave_out(["b"])
    play.start()
    play.batch(10, is_known=True)
    assert play.published == {0: 2, 1: 2}
    play.ends = {0: 9, 1: 9}
    play.start()
    play.batch(3, is_known=True)
    play.carrying.leave_out([])
    play.start()
    play.batch(10, is_known=True)
    assert play.published == play.ends
    assert all(len(play.got[log]) == len(set(play.got[log])) == 18 for log in LOGS)


def test_what_is_known_of_another_message_log_means_nothing() -> None:
    carrying = Carrying()
    carrying.begin({0: 7})
    carrying.leave_out(["b"])
    carrying.reached({0: 9})
    assert carrying.begin({0: 0}) == {0: 0}
    assert carrying.carried() is None and not carrying.left_out


def test_another_message_log_is_known_also_when_nothing_of_the_one_before_was_complete() -> None:
    carrying = Carrying()
    carrying.begin({0: 0}, "one")
    carrying.leave_out(["b"])
    carrying.reached({0: 9})
    assert carrying.begin({0: 0}, "one") == {0: 9}
    assert carrying.begin({0: 0}, "another") == {0: 0}
    assert carrying.carried() is None and not carrying.left_out


def test_a_log_is_left_out_when_it_has_had_no_leader_for_long_and_nothing_gets_done() -> None:
    leaders = Leaders()
    behind = {0: 7}
    assert leaders.to_leave_out(0, {"a": 0}, behind, 5) == []
    assert leaders.to_leave_out(10, {"a": 0, "b": 1}, behind, 5) == []
    assert leaders.to_leave_out(15, {"a": 0, "b": 1}, {0: 9}, 5) == [], "something gets done"
    assert leaders.to_leave_out(18, {"b": 1}, {0: 9}, 5) == [], "a has a leader again"
    assert leaders.to_leave_out(31, {"a": 0, "b": 1}, {0: 9}, 5) == ["b"]
    assert leaders.to_leave_out(60, {"b": 1}, {}, 5) == [], "there is nothing to do"


def test_many_are_told_of_in_short() -> None:
    assert told_of({"b": 1, "a": 0}) == "a (partition 0), b (partition 1)"
    assert told_of(dict.fromkeys("abcde", 0)).endswith("c (partition 0) and 2 more")
