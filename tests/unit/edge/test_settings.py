"""Addresses of listeners."""

from __future__ import annotations

import pytest

from embermq.edge.settings import Address, ListenerSettings, check_settings, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:1883", "127.0.0.1", 1883),
        (" localhost:0 ", "localhost", 0),
        ("[::1]:1883", "::1", 1883),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65_535),
        ("*:1883", "0.0.0.0", 1883),
        ("broker.example:1", "broker.example", 1),
    ],
)
def test_addresses_that_can_be(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)


@pytest.mark.parametrize("text", ["127.0.0.1:1883", "[::1]:0", "host:7"])
def test_an_address_is_shown_as_it_is_written(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not host:port"),
        ("1883", "is not host:port"),
        (":1883", "is not host:port"),
        ("host:", "the port '' is not a number"),
        ("host:mqtt", "the port 'mqtt' is not a number"),
        ("host:-1", "the port '-1' is not a number"),
        ("host:1_883", "is not a number"),
        ("host:١٨٨٣", "is not a number"),
        ("host:65536", "more than the largest possible 65535"),
        ("host:" + "9" * 5_000, "more than the largest possible 65535"),
        ("::1:1883", "stands in brackets"),
        ("[127.0.0.1]:1883", "not an IPv6 address"),
        ("[]:1883", "not an IPv6 address"),
    ],
)
def test_addresses_that_cannot_be(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert Address(host, 1883).is_loopback is loopback


def test_a_listener_has_one_address_or_several_or_none() -> None:
    settings = ListenerSettings(mqtt=("127.0.0.1:1883", "[::1]:1883"), http="")
    assert settings.addresses("mqtt") == (Address("127.0.0.1", 1883), Address("::1", 1883))
    assert settings.addresses("http") == ()
    assert settings.addresses("ws") == ()
    assert ListenerSettings().addresses("mqtt") == (Address("127.0.0.1", 1883),)
    check_settings(settings)


@pytest.mark.parametrize("listener", ["http", "grpc"])
def test_what_operators_ask_is_on_this_machine_alone_and_over_tcp(listener: str) -> None:
    assert all(address.is_loopback for address in ListenerSettings().tcp_addresses(listener))
    with pytest.raises(ValueError, match=rf"listeners\.{listener}: 'unix:/x': the port"):
        check_settings(ListenerSettings(**{listener: "unix:/x"}))


def test_an_address_stands_once_unless_any_port_will_do() -> None:
    check_settings(ListenerSettings(mqtt=("127.0.0.1:0", "127.0.0.1:0")))
    with pytest.raises(ValueError, match=r"listeners\.mqtt: 127\.0\.0\.1:1883 is named twice"):
        check_settings(ListenerSettings(mqtt=("127.0.0.1:1883", "127.0.0.1:1883")))
