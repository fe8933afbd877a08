"""The audit trail on disk: what is listed, what a crash or a full part leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path

import pytest

from embermq.admin.trail import ChangeBegun, ListChangesRequest
from embermq.app import audit_trail
from embermq.app.audit_trail import FILES, AuditTrail, append, changes, command_recorded, user_name


def begun(operation: str = "PutBan", by: str = "token ops", **about: object) -> ChangeBegun:
    return ChangeBegun(by=by, peer="192.0.2.1", over="http", operation=operation, object=about)


def listed(data_dir: Path, **asked: str | int) -> list[tuple[str, str]]:
    found = changes(data_dir, ListChangesRequest(**asked))  # type: ignore[arg-type]
    return [(str(one.object.get("value", "")), one.outcome) for one in found]


def test_a_change_is_on_disk_before_it_is_done_and_then_its_outcome(tmp_path: Path) -> None:
    async def work() -> None:
        trail = AuditTrail(tmp_path)
        first = await trail.begin(begun(value="a"))
        assert listed(tmp_path) == [("a", "unknown")], "the broker may die now"
        trail.end(first, "done")
        others = await asyncio.gather(*(trail.begin(begun(value=str(number))) for number in range(50)))
        trail.end(others[0], "refused: no")
        await trail.begin(begun("LiftBan", "user ann", value="b"))
        await trail.close()

    asyncio.run(work())
    found = dict(listed(tmp_path))
    assert (
        len(found) == 52 and found["a"] == "done" and found["0"] == "refused: no" and found["1"] == "unknown"
    )
    assert listed(tmp_path, what="LiftBan") == listed(tmp_path, by="user ann") == [("b", "unknown")]
    newest = changes(tmp_path, ListChangesRequest(limit=2))
    rest = changes(tmp_path, ListChangesRequest(after=newest[-1].id))
    assert len(rest) == 50 and rest[-1].object == {"value": "a"} and rest[-1].outcome == "done"
    assert stat.S_IMODE((tmp_path / FILES[0]).stat().st_mode) == 0o600


def test_what_a_loss_of_power_has_torn_hides_nothing_else(tmp_path: Path) -> None:
    with command_recorded(tmp_path, "RevokeToken", {"value": "a"}):
        pass
    with (tmp_path / FILES[0]).open("ab") as file:
        file.write(b'{"id":"x","at":')
    with command_recorded(tmp_path, "RevokeToken", {"value": "b"}):
        pass
    assert listed(tmp_path) == [("b", "done"), ("a", "done")]


def test_full_parts_get_numbers_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_trail, "PART_BYTES_MAX", 1)
    for number in range(len(FILES) + 3):
        with command_recorded(tmp_path, "RevokeToken", {"value": str(number)}):
            pass
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".jsonl") == sorted(FILES)
    # Each line is a part here, so half as many changes as parts are left.
    newest = len(FILES) + 2
    assert listed(tmp_path) == [(str(newest - number), "done") for number in range(len(FILES) // 2)]


def test_a_command_that_fails_says_so_and_a_new_data_directory_is_not_made_for_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), command_recorded(tmp_path, "RevokeToken", {"value": "a"}):
        raise KeyError("gone")
    assert listed(tmp_path) == [("a", "refused: 'gone'")]
    new = tmp_path / "new"
    with command_recorded(new, "AddAccount", {"value": "b"}):
        assert not new.exists()
        new.mkdir()
    assert listed(new) == [("b", "done")]
    assert changes(new, ListChangesRequest())[0].by == f"user {user_name()}"


def test_a_trail_that_cannot_be_written_is_told_of_once_and_holds_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        trail = AuditTrail(tmp_path / "nowhere")
        for _ in range(3):
            trail.end(await trail.begin(begun()), "done")
        await trail.close()
        (tmp_path / "nowhere").mkdir()
        await trail.begin(begun(value="a"))

    with caplog.at_level(logging.ERROR):
        asyncio.run(work())
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "not in the audit trail" in caplog.text
    assert listed(tmp_path / "nowhere") == [("a", "unknown")]


def test_nothing_is_followed_out_of_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / FILES[0]).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        append(tmp_path, [b"{}\n"])


def test_half_a_line_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is nearly full takes the beginning of what it is given."""
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[:10]))
    with (
        pytest.raises(OSError, match="No space left"),
        command_recorded(tmp_path, "RevokeToken", {"value": "a"}),
    ):
        pytest.fail("it is done without a record")
    monkeypatch.undo()
    with command_recorded(tmp_path, "RevokeToken", {"value": "b"}):
        pass
    assert listed(tmp_path) == [("b", "done")]
