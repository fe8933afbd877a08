"""When the lake is put in order, without Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from tests.support.waiting import wait_until

from embermq.pipeline.jobs.lake_upkeep import EVERY_MS, NEW_FILES, LakeUpkeep, oldest_day
from embermq.pipeline.sinks.delta_table import Merged

START_MS = int(datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000
DONE_S = 20.0


class PlayedTable:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str | date] = []
        self.fails = False

    def delete_before(self, day: date) -> int:
        self.asked.append(day)
        return 0

    def merge(self) -> Merged:
        self.asked.append("merge")
        if self.fails:
            raise RuntimeError("no room")
        return Merged(0, 0)

    def vacuum(self) -> None:
        self.asked.append("vacuum")


class PlayedLake:
    """A lake whose commits the test makes."""

    def __init__(self) -> None:
        self.table = PlayedTable()
        self.commits = 0
        self.noted = 0

    def note_version(self) -> None:
        self.noted += 1


class Kept:
    """A lake that is looked at; `look` returns what was done, when it is done and noted."""

    def __init__(self, retention_days: int = 0) -> None:
        self.lake = PlayedLake()
        self._upkeep = LakeUpkeep(retention_days)

    def look(self, now_ms: int) -> list[str | date]:
        self.lake.table.asked.clear()
        self._upkeep.look(self.lake, now_ms)  # type: ignore[arg-type]
        noted = self.lake.noted
        if thread := self._upkeep._thread:
            thread.join(DONE_S)
            self._upkeep.look(self.lake, now_ms)  # type: ignore[arg-type]
            assert self.lake.noted == noted + 1, "a backup takes the state that was made"
        return list(self.lake.table.asked)


ALL = ["merge", "vacuum"]


@pytest.mark.promise("pipeline-10")
def test_files_are_merged_when_there_are_many_or_after_an_hour_and_the_rest_once_a_day() -> None:
    kept = Kept()
    assert kept.look(START_MS) == []
    kept.lake.commits = NEW_FILES - 1
    assert kept.look(START_MS + 1) == []
    kept.lake.commits += 1
    assert kept.look(START_MS + 2) == ALL
    assert kept.look(START_MS + 3) == []
    kept.lake.commits += NEW_FILES
    assert kept.look(START_MS + 4) == ["merge"]
    kept.lake.commits += 1
    assert kept.look(START_MS + 3 + EVERY_MS) == []
    assert kept.look(START_MS + 4 + EVERY_MS) == ["merge"]
    assert kept.look(START_MS + DAY_MS // 2 - 1) == [], "nothing is new"
    assert kept.look(START_MS + DAY_MS) == ALL, "another day"


@pytest.mark.promise("pipeline-10")
def test_records_are_deleted_after_so_many_days() -> None:
    kept = Kept(retention_days=30)
    kept.look(START_MS)
    assert kept.look(START_MS + EVERY_MS) == [date(2026, 4, 1), *ALL]


def test_more_days_than_there_have_been_keep_all() -> None:
    today = date(2026, 5, 1)
    assert oldest_day(0, today) is oldest_day(10**12, today) is oldest_day(today.toordinal(), today) is None
    assert oldest_day(today.toordinal() - 1, today) == date.min


def test_what_fails_is_tried_again_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    kept.look(START_MS)
    kept.lake.table.fails = True
    kept.lake.commits = NEW_FILES
    assert kept.look(START_MS + 1) == ["merge"]
    wait_until(lambda: "no room" in caplog.text, DONE_S, "it is said")
    kept.lake.table.fails = False
    kept.lake.commits += NEW_FILES
    assert kept.look(START_MS + 2) == ALL, "the round of the day is not done yet"
