"""Listeners with the settings that hold for each."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from embermq.edge.listener_settings import Listener, compose_listeners
from embermq.edge.settings import Address, ListenerSettings, TlsSettings, UnixAddress, WebSocketSettings

TLS = TlsSettings(cert="server.pem")


def composed(
    listeners: Mapping[str, object],
    tables: Mapping[str, Mapping[str, object]] | None = None,
    tls: TlsSettings = TLS,
) -> list[Listener]:
    settings = ListenerSettings(**{"mqtt": (), "http": (), "grpc": (), **listeners})  # type: ignore[arg-type]
    return compose_listeners(settings, tables or {}, tls, WebSocketSettings())


def refusal(
    listeners: Mapping[str, object],
    tables: Mapping[str, Mapping[str, object]] | None = None,
    tls: TlsSettings = TLS,
) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the caller looks at the text
        composed(listeners, tables, tls)
    return str(caught.value)


def test_each_speaks_what_its_kind_says() -> None:
    found = composed({"mqtt": "h:1", "mqtts": "h:2", "ws": "h:3", "wss": ("h:4", "unix:/s")})
    assert [(one.kind, one.tls is not None, one.websocket is not None) for one in found] == [
        ("mqtt", False, False),
        ("mqtts", True, False),
        ("ws", False, True),
        ("wss", True, True),
        ("wss", True, True),
    ]
    assert [one.address for one in found][-2:] == [Address("h", 4), UnixAddress("/s")]


def test_the_api_is_on_loopback_or_over_tls_unless_told_otherwise() -> None:
    listeners = {"http": ("localhost:1", "*:2"), "https": "h:3", "grpc": "[::1]:4", "grpcs": "h:5"}
    found = composed(listeners, {"*:2": {"plaintext": True}, "h:3": {"min_version": "1.3"}})
    assert [(one.kind, one.tls and one.tls.min_version) for one in found] == [
        ("http", None),
        ("http", None),
        ("https", "1.3"),
        ("grpc", None),
        ("grpcs", "1.2"),
    ]


def test_a_table_counts_for_its_listener_alone() -> None:
    tables: dict[str, dict[str, object]] = {
        "[::1]:2": {"min_version": "1.3", "allow_anonymous": False},
        "*:3": {"path": "/own"},
    }
    one, two, three = composed({"mqtts": ("127.0.0.1:2", "[::1]:2"), "ws": "0.0.0.0:3"}, tables)
    assert one.tls is not None and one.tls.min_version == "1.2" and one.own.allow_anonymous is None
    assert two.tls is not None and two.tls.min_version == "1.3" and two.own.allow_anonymous is False
    assert two.tls.cert == "server.pem"
    assert three.websocket is not None and three.websocket.path == "/own"
    assert two.key("min_version") == 'listener."[::1]:2".min_version'
    assert two.key("cert") == one.key("cert") == "tls.cert"


@pytest.mark.parametrize(
    ("listeners", "tables", "tls", "told"),
    [
        ({"mqtts": "h:1"}, {}, TlsSettings(), "listeners.mqtts: needs tls.cert"),
        (
            {"mqtt": "h:1"},
            {"h:2": {}},
            TLS,
            'listener."h:2": no listener has this address; there is h:1',
        ),
        ({}, {"h:2": {}}, TLS, 'listener."h:2": no listener has this address; there is none'),
        ({"mqtt": "h:1"}, {"h": {}}, TLS, "listener.\"h\": 'h' is not host:port"),
        (
            {"mqtt": "0.0.0.0:1"},
            {"*:1": {}, "0.0.0.0:1": {}},
            TLS,
            'listener."0.0.0.0:1": listener."*:1" is the same',
        ),
        (
            {"mqtt": "h:1"},
            {"h:1": {"cert": "x"}},
            TLS,
            'listener."h:1".cert: has no effect, listeners.mqtt is without',
        ),
        (
            {"mqtts": "h:1"},
            {"h:1": {"path": "/"}},
            TLS,
            'listener."h:1".path: has no effect, listeners.mqtts is',
        ),
        (
            {"mqtt": "h:1"},
            {"h:1": {"unix_mode": "660"}},
            TLS,
            'listener."h:1".unix_mode: has no effect, h:1 is not a',
        ),
        ({"mqtt": "unix:/s"}, {"unix:/s": {"unix_mode": "888"}}, TLS, "'888' is not three octal digits"),
        ({"ws": "h:1"}, {"h:1": {"path": "mqtt"}}, TLS, "'mqtt' is not the path of an address"),
        ({"ws": "h:1"}, {"h:1": {"path": "/a?b"}}, TLS, "'/a?b' is not the path of an address"),
        (
            {"wss": "h:1"},
            {"h:1": {"client_certificates": "optional"}},
            TLS,
            "listener.\"h:1\".client_certificates: 'optional' needs tls.ca",
        ),
        ({"http": "h:1"}, {}, TLS, "listeners.http: h:1 is not on loopback"),
        ({"grpc": "*:1"}, {}, TLS, 'set listener."0.0.0.0:1".plaintext'),
        ({"https": "h:1"}, {}, TlsSettings(), "listeners.https: needs tls.cert"),
        ({"grpcs": "unix:/s"}, {}, TLS, "'unix:/s': the port '/s' is not a number"),
        ({"https": "h:1"}, {"h:1": {"plaintext": True}}, TLS, 'listener."h:1".plaintext: has no effect'),
        ({"mqtt": "h:1"}, {"h:1": {"plaintext": True}}, TLS, 'listener."h:1".plaintext: has no effect'),
        ({"grpcs": "h:1"}, {"h:1": {"max_qos": 1}}, TLS, 'listener."h:1".max_qos: has no effect'),
        (
            {"wss": "h:1"},
            {"h:1": {"crl": "x"}},
            TLS,
            'listener."h:1".crl: has no effect while tls.client_certificates',
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    listeners: dict[str, object], tables: dict[str, dict[str, object]], tls: TlsSettings, told: str
) -> None:
    assert told in refusal(listeners, tables, tls)
