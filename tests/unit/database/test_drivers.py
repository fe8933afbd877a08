"""What the drivers of SQL servers are told."""

from __future__ import annotations

from typing import Any

import psycopg
import pymysql
import pytest

from embermq.database.database_url import SqlSettings, parse_url
from embermq.database.drivers import connector


class _Told(Exception):
    """Instead of a connection."""


@pytest.mark.parametrize(("timeout_s", "whole_s"), [(0.5, 2), (2.5, 3), (30.0, 30)])
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_opening_takes_no_longer_than_the_settings_say_whatever_statements_may(
    kind: str, timeout_s: float, whole_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def note(*_: object, **named: object) -> None:
        given.update(named)
        raise _Told

    monkeypatch.setattr(psycopg.Connection, "connect", note)
    monkeypatch.setattr(pymysql, "connect", note)
    url = parse_url(f"{kind}://ann:secret@127.0.0.1/embermq")
    with pytest.raises(_Told):
        connector(url, SqlSettings(timeout_s=timeout_s), 3_600.0)()
    assert given["connect_timeout"] == (whole_s if kind == "postgresql" else timeout_s)
