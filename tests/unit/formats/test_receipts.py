"""Samples of latency as they go to Kafka."""

import json

import pytest

from embermq.formats.receipts import SAMPLE, encode_receipts, receipts_topic


def test_samples_are_an_array_that_a_person_can_read() -> None:
    one = SAMPLE.pack(1_750_000_000_000, 4_000_000_000, 1, 7) + "plänt;".encode()
    other = SAMPLE.pack(5, 0, 0, 0)
    assert json.loads(encode_receipts([one, other])) == [
        {"t": 1_750_000_000_000, "l": 4_000_000_000, "c": 1, "r": "plänt;"},
        {"t": 5, "l": 0, "c": 0, "r": ""},
    ]
    assert receipts_topic("ember") == "ember.receipts"


@pytest.mark.parametrize("cut", [1, 7, SAMPLE.size])
def test_a_sample_that_is_cut_short_is_refused(cut: int) -> None:
    whole = SAMPLE.pack(5, 6, 0, 5) + b"plant"
    with pytest.raises(ValueError, match="cut short"):
        encode_receipts([whole[:-cut]])
