"""What a message costs in process, and one commit against another."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import uvloop
from benchmarks.against import Row, show
from benchmarks.in_process import WORKS, measure
from rich.console import Console


@pytest.mark.parametrize("work", sorted(WORKS))
def test_every_work_is_done_to_its_last_message(work: str, tmp_path: Path) -> None:
    found = uvloop.run(measure(work, 0.01, tmp_path))
    assert found.keys() == ({"stored", "drained"} if work == "away" else found.keys())
    assert all(figure > 0 for figures in found.values() for figure in figures)


def test_quotients_are_of_medians() -> None:
    said = io.StringIO()
    show("abc", {"qos1 message": Row([12.0, 10.0, 30.0], [6.0, 5.0, 7.0])}, Console(file=said, width=120))
    assert "12.00  10.00  30.00" in said.getvalue()
    assert "2.00" in said.getvalue()
