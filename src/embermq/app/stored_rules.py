"""Rules of the pipeline that were written over the API: a file in the data directory, read with the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from embermq.app.durable_file import replace_durably
from embermq.pipeline.rules.settings import RuleSettings

FILE_NAME = "pipeline-rules.json"
ORIGIN = "API"
BYTES_MAX = 4 * 1024 * 1024


def stored_rules(data_dir: Path) -> dict[str, RuleSettings]:
    """By name; none before the first. Raises ValueError for a file that says something else, OSError."""
    path = data_dir / FILE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        return msgspec.json.decode(data, type=dict[str, RuleSettings])
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from None


def store_rules(data_dir: Path, rules: Mapping[str, RuleSettings]) -> None:
    """Durable when it returns. Raises OSError."""
    replace_durably(data_dir / FILE_NAME, msgspec.json.encode(rules))
