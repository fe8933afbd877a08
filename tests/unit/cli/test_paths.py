"""Names that commands put into paths of the API."""

from __future__ import annotations

import httpx
import pytest

from embermq.admin.http_api import _part
from embermq.admin.operations import GET_QUEUE, PAUSE_QUEUE, RETRY_DEAD_LETTER
from embermq.app.control import _filled, _path
from embermq.app.errors import UserError


@pytest.mark.parametrize(
    "name", [".", "..", "../..", "a/../b", "tasks/images", "a b%c?d&e", "ü$", "x;y=z", "\x01", "a\nb"]
)
def test_any_name_reaches_its_own_queue(name: str) -> None:
    fields = {"name": name, "id": "1-1"}
    for operation in (GET_QUEUE, RETRY_DEAD_LETTER):
        path = _filled(_path(operation, fields), fields)
        part = httpx.URL(f"http://broker{path}").raw_path.decode().split("/")[2]
        assert _part("name", part) == name


def test_a_name_that_is_no_utf_8_is_asked_for_as_it_is() -> None:
    assert _filled("/queues/{name}", {"name": "a\udcff"}) == "/queues/a%FF"


def test_an_empty_name_is_none() -> None:
    with pytest.raises(UserError, match="is empty"):
        _path(GET_QUEUE, {"name": ""})


def test_the_address_is_the_one_that_says_most() -> None:
    assert _path(PAUSE_QUEUE, {"name": "q", "group": None}) == "/queues/{name}/pause"
    assert _path(PAUSE_QUEUE, {"name": "q", "group": "g"}) == "/queues/{name}/groups/{group}/pause"
