"""The commands' end of the control socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from embermq.admin.operations import DELETE_PARKED, LIST_QUEUES
from embermq.app.control import FILE_NAME, ControlClient, RemoteClient
from embermq.app.errors import OptionError


def test_more_than_a_request_takes_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    numbers = list(range(1_000_000, 1_008_000))
    with ControlClient(tmp_path) as broker, pytest.raises(OptionError, match="name less at a time"):
        broker.ask(DELETE_PARKED, client_id="c", number=numbers)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://broker.example:8080", "others on the way read the token: use https"),
        ("http://me:secret@127.0.0.1:8080", "has a user or a password in it"),
    ],
)
def test_a_token_goes_nowhere_where_it_can_be_read(url: str, why: str) -> None:
    client = RemoteClient(url, token="emq_token", ca_file=None)
    with client, pytest.raises(OptionError, match=why) as refused:
        client.ask(LIST_QUEUES)
    assert "secret" not in str(refused.value)
