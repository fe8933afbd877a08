"""What must not end who keeps the driver alive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from embermq.pipeline.supervisor import session_members


@pytest.mark.promise("pipeline-14")
def test_processes_of_others_that_are_hidden_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc may be mounted so that only one's own can be read (hidepid=1)."""
    read_text = Path.read_text

    def hidden(path: Path, *arguments: Any, **options: Any) -> str:
        if path != Path(f"/proc/{os.getpid()}/stat"):
            raise PermissionError(1, "Operation not permitted", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", hidden)
    assert session_members(os.getsid(0)) == [os.getpid()]
