"""Positions of an application log as text beside a committed offset."""

from __future__ import annotations

import pytest

from embermq.model.application_positions import StoredPositions, decode_metadata, encode_metadata


def test_they_come_back() -> None:
    for positions in (StoredPositions(), StoredPositions(7, 9, ((0, 4), (12, 2**40))), StoredPositions(3, 3)):
        text = encode_metadata(positions)
        assert decode_metadata(positions.committed_offset, text) == positions
    assert encode_metadata(StoredPositions(17, 20, ((0, 4), (1, 9)))) == "1;17;0:4,1:9"


def test_an_offset_that_was_moved_by_hand_is_a_new_beginning() -> None:
    assert decode_metadata(5, "") == decode_metadata(5, None) == StoredPositions(5, 5)
    assert decode_metadata(5, "1;9;") == StoredPositions(5, 5)


@pytest.mark.parametrize("text", ["2;0;", "1;a;", "1;0", "1;0;4", "1;0;a:b", "something else"])
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="format 1"):
        decode_metadata(5, text)
