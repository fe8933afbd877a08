"""Files of a lake in a folder: synced with their commit, or taken back with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from embermq.pipeline.sinks.held_table import boot, sync_commits, take_back

OWN = "this run"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Four commits with a file each."""
    folder = tmp_path / "lake"
    (folder / "_delta_log").mkdir(parents=True)
    for number in range(4):
        (folder / f"part {number}.parquet").write_bytes(b"rows")
        about = {"operation": "WRITE", "userMetadata": OWN if number else "the run before"}
        actions = [{"commitInfo": about}, {"add": {"path": f"part%20{number}.parquet"}}]
        text = "\n".join(map(json.dumps, actions))
        (folder / f"_delta_log/{number:020}.json").write_text(text)
    for name in (f"{2:020}.checkpoint.parquet", f"{3:020}.crc", f".{3:020}.json.crc", "_last_checkpoint"):
        (folder / "_delta_log" / name).write_bytes(b"")
    return folder


@pytest.mark.promise("pipeline-2")
def test_what_commits_have_added_is_synced_with_them(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    sync_commits(lake, 1, 2)
    names = [Path(path).name for path in synced]
    assert set(names) == {
        *("part 1.parquet", "part 2.parquet", "_last_checkpoint", "_delta_log", lake.name, lake.parent.name),
        *(f"{1:020}.json", f"{2:020}.json", f"{2:020}.checkpoint.parquet"),
    }
    assert names.index("part 2.parquet") < names.index("_delta_log")


@pytest.mark.promise("pipeline-2")
def test_later_commits_are_taken_back(lake: Path) -> None:
    assert take_back(lake, 3, OWN) == 0 and (lake / "_delta_log/_last_checkpoint").exists()
    assert take_back(lake, 1, OWN) == 5
    assert sorted(path.name for path in (lake / "_delta_log").iterdir()) == [f"{0:020}.json", f"{1:020}.json"]
    assert take_back(lake.parent, 1, OWN) == 0, "no lake"


@pytest.mark.promise("pipeline-2")
@pytest.mark.parametrize("gone", [0, 1])
def test_nothing_is_taken_back_when_no_table_would_be_left(lake: Path, gone: int) -> None:
    """Delta cleans its log up below a checkpoint, here that of commit 2."""
    (lake / f"_delta_log/{gone:020}.json").unlink()
    assert take_back(lake, 1, OWN) == 0
    assert (lake / f"_delta_log/{3:020}.json").exists()
    assert take_back(lake, 2, OWN) == 3, "what a checkpoint says needs no earlier commits"


@pytest.mark.promise("pipeline-2")
@pytest.mark.parametrize(
    "about",
    [{"userMetadata": "another node's run"}, {}, {"userMetadata": {"by": "a program of others"}}],
    ids=["other", "foreign", "unlike ours"],
)
def test_nothing_is_taken_back_beside_what_another_one_has_committed(
    lake: Path, about: dict[str, object]
) -> None:
    """A folder that brokers share: another node has taken over, while this one was away."""
    commit = lake / f"_delta_log/{3:020}.json"
    commit.write_text(json.dumps({"commitInfo": about}))
    files = sorted((lake / "_delta_log").iterdir())
    assert take_back(lake, 1, OWN) == 0
    assert sorted((lake / "_delta_log").iterdir()) == files


@pytest.mark.promise("pipeline-2")
@pytest.mark.parametrize(
    "left",
    [b"", bytes(40), b'{"commitInfo": {"userMeta', b'{"add": {"path": "part\xff"}}'],
    ids=["empty", "zeros", "cut", "no text"],
)
def test_a_commit_that_is_torn_is_taken_back(lake: Path, left: bytes) -> None:
    """Nobody has synced it, so nobody goes by it; and nobody can read the table as long as it is there."""
    (lake / f"_delta_log/{3:020}.json").write_bytes(left)
    assert take_back(lake, 2, OWN) == 3


def test_a_boot_is_told_from_another() -> None:
    assert boot() == boot() != ""
