"""Which log a job reads, and places in it as people type them."""

import pytest
from msgspec.structs import replace

from embermq.app.config import Settings
from embermq.app.errors import OptionError, UserError
from embermq.cluster.settings import ClusterSettings
from embermq.model.position import OFFSET_END, position_of
from embermq.tools.report_folder import data_of, past_range, place_in_log, told_position


def test_several_slots_are_no_one_log() -> None:
    settings = replace(Settings(), cluster=ClusterSettings(slots=2))
    with pytest.raises(UserError, match=r"cluster\.slots is 2: each slot has a log of its own"):
        data_of(settings)
    with pytest.raises(UserError, match="is not the data directory of a broker"):
        data_of(settings, by_slot=True)


@pytest.mark.parametrize(
    ("text", "position"), [("1200", 1_200), ("0:1200", 1_200), ("3:7", position_of(3, 7))]
)
def test_a_position_is_typed_with_its_partition_or_without(text: str, position: int) -> None:
    assert place_in_log("--from", text) == (position, None)
    assert told_position(position) == (text if ":" in text else f"0:{text}")


@pytest.mark.parametrize("text", ["-1", "0:", ":1", "1:2:3", "200000:1", str(OFFSET_END), "yesterday"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is neither an offset of the log nor a time"):
        place_in_log("--from", text)


def test_a_position_is_of_one_log() -> None:
    with pytest.raises(
        OptionError, match="--to: 0:9 is a position in the log of one slot: name that with --slot"
    ):
        past_range("earliest", "0:9", logs=2)
    assert past_range("2026-11-01", "2026-11-02", logs=2).has_times


def test_a_range_ends_behind_its_beginning() -> None:
    with pytest.raises(OptionError, match="--to: 0:9 is not behind --from, 1:3"):
        past_range("1:3", "0:9")
