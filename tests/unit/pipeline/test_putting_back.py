"""The loop that asks the broker to put dead letters back: order, pieces, rate, and a broker that goes away."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

import pytest

from embermq.pipeline.errors import BrokerAway
from embermq.pipeline.jobs.putting_back import PIECE, QUEUES_NAMED_MAX, PieceDone, PuttingBack

TAKES_S = 0.02
"""How long an answer of the broker takes."""


class PlayedBroker:
    """A broker, and the clock it lives by. It goes away at its request number `away_at`, for `away_s`; with `does` it
    has done first what it does not answer any more."""

    def __init__(self, letters: int, *, away_at: int = -1, away_s: float = 0.0, does: bool = False) -> None:
        self.now_s = 100.0
        self.letters = {f"7-{number:x}" for number in range(1, letters + 1)}
        self.back: list[tuple[str, float]] = []
        self.pieces: list[int] = []
        self._away_at = away_at
        self._away_s = away_s
        self._does = does
        self._back_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float, /) -> None:
        assert seconds >= 0
        self.now_s += seconds

    def put_back(self, letter_ids: Sequence[str]) -> PieceDone:
        self.now_s += TAKES_S
        if len(self.pieces) == self._away_at:
            self._away_at = -1
            self._back_s = self.now_s + self._away_s
            if self._does:
                self._move(letter_ids)
        if self.now_s < self._back_s:
            raise BrokerAway("no broker answers")
        self.pieces.append(len(letter_ids))
        return self._move(letter_ids)

    def _move(self, letter_ids: Sequence[str]) -> PieceDone:
        found = [one for one in letter_ids if one in self.letters]
        self.letters -= set(found)
        self.back += [(one, self.now_s) for one in found]
        return PieceDone(put_back=len(found), held=0, gone=len(letter_ids) - len(found))


def putting_back(
    broker: PlayedBroker, rate: float | None = None, **more: float
) -> tuple[PuttingBack, list[str]]:
    told: list[tuple[int, int]] = []
    notices: list[str] = []
    found = PuttingBack(
        broker,
        rate=rate,
        patience_s=more.get("patience_s", 60.0),
        progress=lambda done, total: told.append((done, total)),
        notice=notices.append,
        clock=broker,
    )
    return found, notices


def numbers(count: int) -> array[int]:
    return array("q", range(1, count + 1))


@pytest.mark.promise("pipeline-7", "pipeline-12")
def test_all_go_back_in_their_order_in_pieces() -> None:
    broker = PlayedBroker(2 * PIECE + 5)
    job, notices = putting_back(broker)
    job.run(7, numbers(2 * PIECE + 5))
    assert broker.pieces == [PIECE, PIECE, 5] and not notices
    assert [one for one, _ in broker.back] == [f"7-{number:x}" for number in range(1, 2 * PIECE + 6)]
    assert (job.done, job.put_back, job.held, job.gone) == (2 * PIECE + 5, 2 * PIECE + 5, 0, 0)
    job.run(7, numbers(2 * PIECE + 5))
    assert job.put_back == 2 * PIECE + 5 == job.gone, "nothing goes back twice"


@pytest.mark.promise("queues-35")
@pytest.mark.parametrize("rate", [0.5, 7.0, 250.0, 2_500.0])
def test_no_second_has_more_than_the_rate(rate: float) -> None:
    count = int(rate * 4) + 3
    broker = PlayedBroker(count, away_at=1, away_s=2.5)
    job, _ = putting_back(broker, rate)
    began_s = broker.now_s
    job.run(7, numbers(count))
    times = [moment_s for _, moment_s in broker.back]
    lump = max(broker.pieces)
    assert lump <= max(1, rate / 10), "a stream rather than lumps"
    for first, begin_s in enumerate(times):
        within = bisect_left(times, begin_s + 1.0 - 1e-6) - first
        assert within <= rate + lump + 1, "also after the broker was away"
    assert broker.now_s - began_s <= (count / rate + 2.5) * 1.5 + 2.0


@pytest.mark.promise("queues-34", "pipeline-12")
def test_a_piece_without_an_answer_is_asked_for_again() -> None:
    broker = PlayedBroker(3 * PIECE, away_at=1, away_s=30.0, does=True)
    job, notices = putting_back(broker)
    job.run(7, numbers(3 * PIECE))
    assert not broker.letters and len(broker.back) == 3 * PIECE
    assert (job.put_back, job.gone) == (2 * PIECE, PIECE), "what the lost answer would have told"
    assert notices == ["no broker answers; it is asked again for 60 s"]


@pytest.mark.promise("queues-35")
def test_orphaned_ones_are_counted_named_and_cost_no_time() -> None:
    class Broker(PlayedBroker):
        """Odd ones come from queues that are not there any more, each from another."""

        def put_back(self, letter_ids: Sequence[str]) -> PieceDone:
            odd = [one for one in letter_ids if int(one.partition("-")[2], 16) % 2]
            done = super().put_back([one for one in letter_ids if one not in odd])
            return PieceDone(
                put_back=done.put_back,
                held=0,
                gone=done.gone,
                orphaned=len(odd),
                missing_queues=tuple(f"q{one}" for one in odd),
            )

    broker = Broker(400)
    job, _ = putting_back(broker, 100.0)
    job.run(7, numbers(6))
    assert (job.put_back, job.orphaned, job.gone) == (3, 3, 0)
    assert job.missing_queues() == ("q7-1", "q7-3", "q7-5")
    began_s = broker.now_s
    job.run(7, numbers(400))
    assert (job.put_back, job.orphaned, job.gone) == (200, 203, 3)
    assert len(job.missing_queues()) == QUEUES_NAMED_MAX
    assert 1.8 < broker.now_s - began_s < 2.3, "200 went back, at 100 a second"


@pytest.mark.promise("queues-35")
def test_crowded_ones_too() -> None:
    class Broker(PlayedBroker):
        """Each is for a group that has no room."""

        def put_back(self, letter_ids: Sequence[str]) -> PieceDone:
            names = tuple(f"q{one}" for one in letter_ids)
            return PieceDone(put_back=0, held=0, gone=0, crowded=len(letter_ids), full_queues=names)

    broker = Broker(400)
    job, _ = putting_back(broker, 100.0)
    job.run(7, numbers(3))
    assert (job.put_back, job.orphaned, job.crowded) == (0, 0, 3)
    assert job.full_queues() == ("q7-1", "q7-2", "q7-3") and job.missing_queues() == ()
    began_s = broker.now_s
    job.run(7, numbers(400))
    assert job.crowded == 403 and len(job.full_queues()) == QUEUES_NAMED_MAX
    assert broker.now_s - began_s < 0.5, "nothing went back"


def test_a_broker_that_stays_away_ends_it() -> None:
    broker = PlayedBroker(3 * PIECE, away_at=2, away_s=1_000.0)
    job, _ = putting_back(broker, patience_s=5.0)
    with pytest.raises(BrokerAway):
        job.run(7, numbers(3 * PIECE))
    assert 105 < broker.now_s < 107
    assert (job.done, job.put_back) == (2 * PIECE, 2 * PIECE) and len(broker.letters) == PIECE
