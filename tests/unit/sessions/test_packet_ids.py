"""Which packet id of a session was given later."""

import pytest

from embermq.sessions.packet_ids import later_id


@pytest.mark.parametrize(
    ("one", "other", "later"),
    [
        pytest.param(0, 7, 7, id="none is known"),
        pytest.param(7, 0, 7, id="no other is known"),
        pytest.param(7, 8, 8, id="the other follows"),
        pytest.param(8, 7, 8, id="the other came before"),
        pytest.param(65_535, 1, 1, id="the sequence has begun again"),
        pytest.param(1, 65_535, 1, id="the first of a new sequence"),
        pytest.param(5, 5, 5, id="the same"),
    ],
)
def test_the_later_of_two(one: int, other: int, later: int) -> None:
    assert later_id(one, other) == later
