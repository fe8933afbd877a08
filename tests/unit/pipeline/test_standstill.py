"""How long a query may stand still before it is begun anew."""

from embermq.pipeline.jobs.kafka_watch import Standstill

BATCH_S, PATIENCE_S = 5.0, 60.0
BEHIND = {0: 7, 1: 3}


def too_long_s(standstill: Standstill, now_s: float, behind: dict[int, int] = BEHIND) -> float:
    return standstill.too_long_s(now_s, behind, BATCH_S, PATIENCE_S)


def test_a_batch_and_the_patience_are_granted() -> None:
    standstill = Standstill()
    assert too_long_s(standstill, 100) == 0
    assert too_long_s(standstill, 165) == 0
    assert too_long_s(standstill, 166) == 66


def test_what_moves_or_has_nothing_to_do_does_not_stand_still() -> None:
    standstill = Standstill()
    too_long_s(standstill, 100)
    assert too_long_s(standstill, 160, {0: 7, 1: 4}) == 0
    assert too_long_s(standstill, 220, {0: 7, 1: 4}) == 0, "60 s since partition 1 moved"
    assert too_long_s(standstill, 300, {}) == 0
    assert too_long_s(standstill, 900, {}) == 0


def test_a_new_run_has_its_own_time() -> None:
    standstill = Standstill()
    too_long_s(standstill, 100)
    standstill.begin()
    assert too_long_s(standstill, 900) == 0
    assert too_long_s(standstill, 966) == 66


def test_patience_doubles_until_something_gets_done() -> None:
    """A machine that is too slow for one batch would begin it anew for ever."""
    standstill = Standstill()
    granted = []
    now_s = 0.0
    for _ in range(7):
        standstill.begin()
        began_s = now_s
        while not too_long_s(standstill, now_s):
            now_s += 1
        granted.append(now_s - began_s - 1 - BATCH_S)
    assert granted == [60, 120, 240, 480, 960, 960, 960]
    standstill.went_on()
    standstill.begin()
    too_long_s(standstill, now_s)
    assert too_long_s(standstill, now_s + 66) == 66
