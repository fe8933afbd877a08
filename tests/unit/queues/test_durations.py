"""Durations and delays as people write them."""

import pytest

from embermq.queues.durations import Duration, parse_delay, parse_duration


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("5s", 5_000),
        ("1.5s", 1_500),
        ("5m", 300_000),
        ("168h", 604_800_000),
        ("7d", 604_800_000),
        ("0s", 0),
    ],
)
def test_a_duration(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "5S", "1e3s", "5s ", "٥s", "4000d", "1m30s"])
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration|longer than ten years"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "ms"), [("30", 30_000), ("0", 0), ("0.25", 250), ("30s", 30_000), ("2m", 120_000)]
)
def test_a_delay_is_seconds_or_a_duration(text: str, ms: int) -> None:
    assert parse_delay(text) == ms


@pytest.mark.parametrize("text", ["5s", "90s", "5m", "168h", "0ms", "1500ms", "250ms"])
def test_it_is_shown_in_the_largest_unit_that_fits(text: str) -> None:
    assert str(parse_duration(text)) == text
    assert str(Duration(60_000)) == "1m"
