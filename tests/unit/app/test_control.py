"""The commands' end of the control socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from embermq.admin.operations import DELETE_PARKED
from embermq.app.control import FILE_NAME, ControlClient
from embermq.app.errors import OptionError


def test_more_than_a_request_takes_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    numbers = list(range(1_000_000, 1_008_000))
    with ControlClient(tmp_path) as broker, pytest.raises(OptionError, match="name less at a time"):
        broker.ask(DELETE_PARKED, client_id="c", number=numbers)
