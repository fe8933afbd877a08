"""Names that commands put into paths of the API."""

from __future__ import annotations

import httpx
import pytest

from embermq.admin.http_api import _part
from embermq.app.errors import UserError
from embermq.cli.dead_letters import _path
from embermq.cli.paths import queue_path


@pytest.mark.parametrize(
    "name", [".", "..", "../..", "a/../b", "tasks/images", "a b%c?d&e", "ü$", "x;y=z", "\x01", "a\nb"]
)
def test_any_name_reaches_its_own_queue(name: str) -> None:
    for path in (queue_path(name), _path(name)):
        raw = httpx.URL(f"http://broker{path}/purge").raw_path
        part = raw.decode().removeprefix("/api/v1/queues/").partition("/")[0]
        assert _part("name", part) == name


def test_a_name_that_is_no_utf_8_is_asked_for_as_it_is() -> None:
    assert queue_path("a\udcff") == "/api/v1/queues/a%FF"


def test_an_empty_name_is_none() -> None:
    with pytest.raises(UserError, match="is empty"):
        queue_path("")
