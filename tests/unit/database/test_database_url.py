"""URLs of databases, and what is said about those that are none."""

from __future__ import annotations

import pytest

from embermq.database.database_url import DatabaseUrl, parse_url


def test_everything_is_unquoted() -> None:
    found = parse_url("postgresql://a%40b:p%2F%40%3A%252@db.example.com:6000/my%20data")
    assert found == DatabaseUrl(
        kind="postgresql",
        user="a@b",
        password="p/@:%2",
        host="db.example.com",
        port=6000,
        socket="",
        database="my data",
        shown="postgresql://a%40b:***@db.example.com:6000/my%20data",
    )
    assert parse_url("mysql://u@[fe80::1%25eth0]/d").host == "fe80::1%eth0"
    assert "p/@" not in repr(found)
    assert "%2F" not in repr(found)


@pytest.mark.parametrize(
    ("url", "kind", "port", "local"),
    [
        ("postgresql://h/d", "postgresql", 5432, False),
        ("mysql://u@10.0.0.1/d", "mysql", 3306, False),
        ("mariadb://u@localhost/d", "mysql", 3306, True),
        ("mysql://u@127.0.0.2:1/d", "mysql", 1, True),
        ("postgresql://u@[::1]/d", "postgresql", 5432, True),
        ("postgresql://u@[fe80::1%25eth0]/d", "postgresql", 5432, False),
        ("postgresql://u@/d?socket=/run/postgresql", "postgresql", 5432, True),
        ("mysql://u:p@/d?socket=/run/mysqld/s.sock", "mysql", 3306, True),
    ],
)
def test_what_is_not_said_is_usual(url: str, kind: str, port: int, local: bool) -> None:
    found = parse_url(url)
    assert (found.kind, found.port, found.is_local) == (kind, port, local)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mongodb://u:hidden@h/d", "does not begin with one of postgresql://, mysql://, mariadb://"),
        ("users.db", "does not begin with"),
        ("postgresql:/u:hidden@h/d", "does not name a database"),
        ("u:hidden@h/d", "does not begin with"),
        ("postgresql://u:hidden@h", "does not name a database"),
        ("postgresql://u:hidden@h/a/b", "does not name a database"),
        ("postgresql://u:hid/den@h/d", "is not a URL"),
        ("postgresql://u:hidden@h:99999/d", "is not a URL"),
        ("postgresql://u:hidden@[::1/d", "is not a URL"),
        (
            "postgresql://u:hidden@h/d?sslmode=require",
            "has 'sslmode'; only socket, tls, ca_file, cert_file may follow",
        ),
        ("postgresql://u:hidden@h/d?tls=sometimes", "has a tls= that is none of auto, off, require, verify"),
        (
            "postgresql://u:hidden@h/d?tls=off&ca_file=c",
            "with which ca_file and cert_file would mean nothing",
        ),
        ("postgresql://u:hidden@h/d#x", "has '#'"),
        ("postgresql://u:hidden@/d", "has neither a host nor socket="),
    ],
)
def test_what_is_no_such_url_is_told_without_its_password(url: str, told: str) -> None:
    with pytest.raises(ValueError, match=r"is|has|does") as caught:
        parse_url(url)
    assert told in str(caught.value)
    for secret in ("hid", "den"):
        assert secret not in str(caught.value)
