"""Writes of a tick: fields are found by themselves, so that none can be forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from embermq.model.application_positions import StoredPositions
from embermq.model.queue_rows import QueueWrites
from embermq.model.session_writes import SessionWrites
from embermq.model.shared_logs import SharedWrites
from embermq.model.tick_writes import TickWrites
from embermq.model.writes import Writes


@dataclass(frozen=True)
class Row:
    """Looks like any row, and says where it was put."""

    name: str
    generation: int = 1
    record: int = -1
    offset: int = 1


FIELDS = [
    (kind, name)
    for kind in (TickWrites, SessionWrites, SharedWrites, QueueWrites)
    for name in kind.__struct_fields__
]


def filled(kind: type[Writes], name: str, said: str) -> Writes:
    """Something in one field."""
    empty = kind()
    field = getattr(empty, name)
    value: Any
    if isinstance(field, Writes):
        value = filled(type(field), field.__struct_fields__[0], said)
    elif isinstance(field, list):
        value = [Row(said, generation=len(said))]
    elif isinstance(field, set):
        value = {said}
    elif isinstance(field, dict):
        value = {(said, 0): Row(said)}
    elif isinstance(field, bool):
        value = True
    else:
        value = 7 if said == "before" else 3
    setattr(empty, name, value)
    return empty


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_each_field_counts_and_is_kept_unless_it_falls_with_the_records(
    kind: type[Writes], name: str
) -> None:
    assert kind().is_empty()
    assert not filled(kind, name, "here").is_empty()
    here, before = filled(kind, name, "here"), filled(kind, name, "before")
    here.put_before(before)
    found = getattr(here, name)
    if name in kind.FALLS:
        assert "before" not in repr(found)
    elif isinstance(found, int):
        assert found in (True, 7)
    else:
        assert "before" in repr(found) and "here" in repr(found)
    if isinstance(found, list) and name not in kind.FALLS:
        assert [row.name for row in found] == ["before", "here"]


def test_the_later_word_counts() -> None:
    here = SharedWrites(positions={(1, 0): StoredPositions(committed_offset=2)})
    here.put_before(SharedWrites(positions={(1, 0): StoredPositions(committed_offset=1)}))
    assert here.positions[1, 0].committed_offset == 2
