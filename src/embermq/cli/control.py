"""The broker that runs on a data directory, as commands reach it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from embermq.cli.options import configuration

if TYPE_CHECKING:
    from embermq.app.control import ControlClient


def running_broker(data_dir: str | None, config: Path | None, assignments: list[str] | None) -> ControlClient:
    """Of the settings that the options give. Raises UserError when none runs there."""
    from embermq.app.control import ControlClient

    return ControlClient(Path(configuration(config, assignments, data_dir).settings.data_dir))
