"""URLs of Redis: what is read, what is refused, and that no refusal shows a password."""

from __future__ import annotations

import re

import pytest

from embermq.adapters.redis.address import RedisAddress, parse_address, with_slot
from embermq.ports.store_node import Node


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://here", RedisAddress((Node("here", 6379),))),
        ("redis://127.0.0.1:7000/3", RedisAddress((Node("127.0.0.1", 7000),), database=3)),
        ("rediss://[::1]:7000/", RedisAddress((Node("::1", 7000),), tls=True)),
        ("redis://:secret@here", RedisAddress((Node("here", 6379),), password="secret")),
        ("redis://ember:p%40ss%2F:w@a", RedisAddress((Node("a", 6379),), username="ember", password="p@ss/:w")),
        ("redis://a/2?password_file=p%26w", RedisAddress((Node("a", 6379),), database=2, password_file="p&w")),
        ("rediss://a?ca_file=c&cert_file=o", RedisAddress((Node("a", 6379),), tls=True, ca_file="c", cert_file="o")),
        ("redis+cluster://a,b:7001", RedisAddress((Node("a", 6379), Node("b", 7001)), cluster=True)),
        ("rediss+cluster://[::1]:1,[::2]:2", RedisAddress((Node("::1", 1), Node("::2", 2)), tls=True, cluster=True)),
    ],
)  # fmt: skip
def test_what_a_url_means(url: str, address: RedisAddress) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "begins with no known scheme"),
        ("here:6379", "begins with no known scheme"),
        ("http://here", "begins with http, not with one of redis://, rediss://, redis+cluster://, rediss+cluster://"),
        ("redis://", "server 1 is no host:port"),
        ("redis://:secret", "server 1 is no host:port"),
        ("redis://ember:secret", "server 1 has a port that is not a number from 1 to 65535"),
        ("redis://here:0", "server 1 has a port that"),
        ("redis://here:65536", "server 1 has a port that"),
        ("redis://here:99999999999999999999", "server 1 has a port that"),
        ("redis://here:²", "server 1 has a port that"),
        ("redis://::1", "server 1 has several ':'; an IPv6 address is written in brackets, [::1]"),
        ("redis://[secret]", "server 1 is no IPv6 address in brackets"),
        ("redis://[::1]secret", "server 1 has something else than :port behind the brackets"),
        ("redis://he re", "server 1 is no host:port"),
        ("redis+cluster://a,,b", "server 2 is no host:port"),
        ("redis+cluster://a,a:6379", "names a server twice"),
        ("redis://a,b", "names 2 servers; that is for a cluster, redis+cluster://"),
        ("redis+cluster://a/1", "names the database 1; a cluster only has 0"),
        ("redis://here?slot=secret", "has an option slot that is no slot of a cluster"),
        ("redis://here/secret", "has a database behind the last '/' that is not a number from 0 to 65535"),
        ("redis://here?password=secret", "has an option behind the '?' that is none of ca_file, cert_file, "),
        ("redis://:sec?ret@here", "has a '?' before the '@'; in passwords write %3F"),
        ("redis://:sec#ret@here", "has a '#' before the '@'; in passwords write %23"),
        ("redis://here?ca_file=a", "has the option ca_file, which is for rediss:// and rediss+cluster://"),
        ("redis://:sec/ret@here", "has a '/' before the '@'; in passwords write %2F"),
        ("redis://secret@here", "has a user without a password; write user:password@, or :password@"),
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused_without_showing_a_password(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as refused:
        parse_address(url)
    assert str(refused.value).startswith(reason)
    assert "secret" not in str(refused.value) and "ret" not in str(refused.value).replace("write", "")


def test_an_address_shows_neither_user_nor_password() -> None:
    address = parse_address("rediss+cluster://ember:secret@here:7000,[::1]:7001")
    assert str(address) == "rediss+cluster://here:7000,[::1]:7001"
    assert repr(address) == f"RedisAddress({address})"
    assert f"{parse_address('redis://:secret@here/2')}" == "redis://here:6379/2"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://box:6379", "redis://box:6379?slot=3"),
        ("redis+cluster://u:p@box", "redis+cluster://u:p@box?slot=3"),
        ("rediss://:p%40ss@box/2?ca_file=/a/b.pem", "rediss://:p%40ss@box/2?ca_file=/a/b.pem&slot=3"),
    ],
)
def test_a_url_of_a_slot_of_the_cluster(url: str, expected: str) -> None:
    assert with_slot(url, 3) == expected
    before, address = parse_address(url), parse_address(expected)
    assert (before.prefix, address.prefix) == ("", "slot-3:")
    assert str(address) == f"{before}?slot=3"
