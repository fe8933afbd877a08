"""Killed between any two steps of the store: each tick of durable queues has happened, or has not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.contracts.stores import Stores
from tests.faults.queue_ticks import Life
from tests.support.child_module import command
from tests.support.queue_rows import QueueRows
from tests.support.seeds import ROUNDS, VARIABLE

DEADLINE_S = 800.0
"""Some 370 processes one after another, seven seconds of work: a machine that does much else takes many times that."""
EVERY = 1 if ROUNDS > 1 else 4
"""`make test` kills at every so manieth step, in each run at others."""


@pytest.mark.parametrize("durability", [pytest.param("os", marks=pytest.mark.in_faults), "fsync"])
def test_a_killed_store_holds_whole_ticks_and_every_body(durability: str, tmp_path: Path) -> None:
    """Each tick of durable queues has happened or has not, at whichever step of files and tables the process dies."""
    steps = str(1 + int(os.environ[VARIABLE]) % EVERY), str(EVERY)
    lives = command("tests.faults.queue_ticks", tmp_path, durability, *steps)
    subprocess.run(lives, check=True, timeout=DEADLINE_S)
    life = Life()
    kept = [life.rows_after(ticks) for ticks in range(len(life.steps) + 1)]
    assert any(rows.marks for rows in kept) and any(rows.delayed for rows in kept)
    assert any(row.dead_letter for rows in kept for row in rows.entries.values())
    folders = sorted(filter(Path.is_dir, tmp_path.iterdir()), key=lambda folder: int(folder.name))
    assert len(folders) > 5 * len(life.steps) // EVERY, "a tick has several steps"
    for folder in folders:
        told = (folder / "receipts").read_bytes() if (folder / "receipts").exists() else b""
        is_whole = told.endswith(b"!")
        assert is_whole == (folder == folders[-1])
        _judge(folder, kept[told.count(b".") :][:2], life.bodies)


def _judge(folder: Path, expected: list[QueueRows], bodies: list[bytes]) -> None:
    """What was answered for is there, and at most the tick that was under way."""
    stores = Stores("os", folder)
    try:
        found = [replace(queue, entries=tuple(queue.entries)) for queue in stores.queues.load()]
        rows = next((rows for rows in expected if rows.load() == found), None)
        assert rows is not None, folder.name
        assert stores.queues.next_generation() == rows.next_generation
        offsets = sorted(rows.offsets())
        assert stores.body(0, dict.fromkeys(offsets, 0)) == {offset: bodies[offset] for offset in offsets}
    finally:
        stores.close()
