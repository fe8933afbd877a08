"""3.12 to 3.15, 4.1, wills: PINGREQ, DISCONNECT, AUTH, and what is left when a connection ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.clause import (
    V5,
    V31,
    V311,
    in_3x_and_5,
    in_311_and_5,
    of_5,
    of_31,
    of_311,
    on_every_transport,
    on_tcp_first,
)
from tests.conformance.conftest import Enter
from tests.conformance.wire_client import WireClient
from tests.support.broker_process import BrokerProcess

from embermq.mqtt.wire.packets import Disconnect, Pingreq, Pingresp, Publish, Will
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.version import ProtocolVersion

Opened = Callable[..., WireClient]
WILL = Properties(
    payload_format_indicator=1,
    message_expiry_interval=60,
    content_type="text/plain",
    response_topic="answers",
    correlation_data=b"\0",
    user_properties=(("z", "1"), ("a", "2"), ("z", "1")),
)


@pytest.fixture
def watcher(enter: Enter, name: str) -> WireClient:
    """Sees wills of topics below the test's name."""
    client = enter("w")
    client.subscribe(f"{name}/#", as_published=True)
    return client


@of_5("3.12.4-1")
@of_311("3.12.4-1")
@of_31("3.12 ping")
@in_3x_and_5
@on_every_transport
def test_every_pingreq_is_answered(enter: Enter, version: ProtocolVersion) -> None:
    client = enter(version=version)
    client.send(Pingreq(), Pingreq(), Pingreq())
    for _ in range(3):
        client.expect(Pingresp)
    client.nothing()


@of_5("3.14.1-1")
@of_311("3.14.1-1")
@in_3x_and_5
@on_every_transport
def test_flags_of_disconnect(enter: Enter, name: str, watcher: WireClient, version: ProtocolVersion) -> None:
    client = enter(version=version, will=Will(f"{name}/w", b"will", 0, False))
    client.send_bytes(b"\xe1\0")
    said = client.end()
    assert (said.reason_code if said else None) == (0x81 if version is V5 else None)
    assert watcher.message().payload == b"will"  # it was no good-bye


@of_5("3.14.4-3", "3.1.2-8", "3.1.2-10")
@of_311("3.14.4-3", "3.14.4-1", "3.1.2-8", "3.1.2-10", "3.1.2-12")
@of_31("3.14 disconnect")
@in_3x_and_5
@on_every_transport
def test_disconnect_deletes_the_will(
    enter: Enter, name: str, watcher: WireClient, version: ProtocolVersion
) -> None:
    client = enter(version=version, will=Will(f"{name}/w", b"will", 1, True))
    client.leave()
    enter("x", version).drop()  # and who has none leaves none
    watcher.nothing()


@of_5("3.14.4-1", "3.14.4-2")
@of_311("3.14.4-2")
@in_3x_and_5
@on_every_transport
def test_nothing_counts_after_disconnect(
    enter: Enter, name: str, watcher: WireClient, version: ProtocolVersion
) -> None:
    client = enter(version=version)
    client.send(Disconnect(), Publish(f"{name}/x", b"late", 0, 0), Pingreq())
    assert client.end() is None
    watcher.nothing()


@of_5("3.1.2-7", "3.1.2-8", "3.1.2-10", "3.1.2-14", "3.1.2-15", "3.1.3-10")
@of_311("3.1.2-8", "3.1.2-10", "3.1.2-16", "3.1.2-17")
@of_31("3.1 will")
@in_3x_and_5
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
@on_every_transport
# wide: a case each
def test_a_will_is_published_when_the_connection_breaks(
    enter: Enter, name: str, watcher: WireClient, version: ProtocolVersion, retain: bool, qos: int
) -> None:
    properties = WILL if version is V5 else None
    client = enter(version=version, will=Will(f"{name}/w", b"will", qos, retain, properties))
    client.drop()
    message = watcher.message()
    assert (message.payload, message.qos, message.retain) == (b"will", qos, retain)
    assert message.properties == properties
    watcher.nothing(0.05)
    late = enter("l")
    late.subscribe(f"{name}/#")
    if retain:
        assert late.message().payload == b"will"
    late.nothing(0.05)


@of_5("3.1.2-8", "4.13.1-1")
@of_311("3.1.2-8", "4.8.0-1")
@in_3x_and_5
@on_every_transport
def test_a_protocol_error_publishes_the_will(
    enter: Enter, name: str, watcher: WireClient, version: ProtocolVersion
) -> None:
    client = enter(version=version, will=Will(f"{name}/w", b"will", 0, False))
    client.send_bytes(b"\x36\0")
    client.end()
    assert watcher.message().payload == b"will"


@of_5("3.14.2-1", "3.1.2-8")
@pytest.mark.parametrize(
    "code", [0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]
)
@on_tcp_first
def test_a_disconnect_with_another_reason_publishes_the_will(
    enter: Enter, name: str, watcher: WireClient, code: int
) -> None:
    enter(will=Will(f"{name}/w", b"will", 0, False)).leave(code)
    assert watcher.message().payload == b"will"


@of_5("3.1.3-9", "3.1.2-8")
def test_a_delayed_will_waits_and_a_return_cancels_it(enter: Enter, name: str, watcher: WireClient) -> None:
    will = Will(f"{name}/w", b"will", 1, False, Properties(will_delay_interval=1))
    client = enter(will=will, expiry=100)
    client.drop()
    watcher.nothing(0.5)
    client = enter(clean=False, expiry=100)  # back in time, without a will
    watcher.nothing(0.8)
    client.leave()
    client = enter(will=will, clean=False, expiry=100)
    client.drop()
    watcher.nothing(0.5)
    assert watcher.message().payload == b"will"
    watcher.nothing(0.05)


@of_5("3.1.2-8", "3.1.3-9")
def test_a_takeover_within_the_delay_sends_no_will(enter: Enter, name: str, watcher: WireClient) -> None:
    delayed = Will(f"{name}/w", b"delayed", 1, False, Properties(will_delay_interval=60))
    first = enter(will=delayed, expiry=100)
    second = enter(clean=False, expiry=100, will=Will(f"{name}/w", b"at once", 1, False))
    assert first.ended_with() == 0x8E
    watcher.nothing(0.05)
    enter(clean=False, expiry=100)
    assert second.ended_with() == 0x8E
    assert watcher.message().payload == b"at once"  # no delay: the end of the connection is enough


@of_5("3.1.2-8", "4.1.0-2")
@pytest.mark.parametrize("ending", ["expiry 0", "expiry 1", "clean start", "expiry 0 at disconnect"])
def test_a_delayed_will_goes_out_when_the_session_ends(
    enter: Enter, name: str, watcher: WireClient, ending: str
) -> None:
    will = Will(f"{name}/w", b"will", 1, False, Properties(will_delay_interval=60))
    client = enter(will=will, expiry={"expiry 0": 0, "expiry 1": 1}.get(ending, 100))
    if ending == "expiry 0 at disconnect":
        client.leave(0x04, Properties(session_expiry_interval=0))
    else:
        client.drop()
    if ending == "expiry 1":
        watcher.nothing(0.5)
    elif ending == "clean start":
        watcher.nothing(0.05)
        enter()
    assert watcher.message().payload == b"will"


@of_5("3.1.2-23", "4.1.0-2", "3.2.2-3")
def test_a_session_ends_when_it_expires(enter: Enter, opened: Opened, port: int, name: str) -> None:
    client = enter(expiry=1)
    client.subscribe(name)
    client.leave()
    back = opened(port, V5, f"{name}c")
    assert back.connect(clean=False, expiry=1).session_present
    back.drop()
    enter("w").nothing(1.2)
    last = opened(port, V5, f"{name}c")
    assert not last.connect(clean=False, expiry=1).session_present


@of_5("4.1.0-1", "4.1.0-2", "3.2.2-2")
@of_311("4.1.0-2")
def test_a_session_without_expiry_ends_with_its_connection(
    enter: Enter, opened: Opened, port: int, name: str
) -> None:
    client = enter(expiry=0)
    client.subscribe(name)
    client.publish(f"{name}/x")  # while it is connected it stands
    enter("p").publish(name, b"x")
    assert client.message().payload == b"x"
    client.leave()
    back = opened(port, V5, f"{name}c")
    assert not back.connect(clean=False).session_present
    # Also when it was resumed to end with this connection, and another one takes over.
    back.leave()
    kept = opened(port, V5, f"{name}c")
    kept.connect(expiry=100)
    kept.leave()
    resumed = opened(port, V5, f"{name}c")
    assert resumed.connect(clean=False, expiry=0).session_present
    taken = opened(port, V5, f"{name}c")
    assert not taken.connect(clean=False, expiry=0).session_present


@of_5("4.1.0-2")
def test_disconnect_may_change_the_expiry(enter: Enter, opened: Opened, port: int, name: str) -> None:
    for before, asked, present in (
        (100, None, True),
        (100, 0, False),
        (1, 100, True),
        (100, 0xFFFF_FFFF, True),
    ):
        client = enter(expiry=before)
        client.leave(0, Properties(session_expiry_interval=asked) if asked is not None else None)
        back = opened(port, V5, f"{name}c")
        assert back.connect(clean=False).session_present is present
        back.leave()


def test_disconnect_may_not_begin_to_keep_a_session(enter: Enter, name: str, watcher: WireClient) -> None:
    client = enter(will=Will(f"{name}/w", b"will", 0, False))
    client.send(Disconnect(0, Properties(session_expiry_interval=10)))
    assert client.ended_with() == 0x82
    assert watcher.message().payload == b"will"


@of_5("3.14.2-2", "3.14.2-3", "3.14.2-4", "3.14.0-1")
@on_every_transport
def test_disconnects_of_the_broker(enter: Enter, name: str) -> None:
    """No Session Expiry Interval; the reason is left out for a client of small packets."""
    for limit, explained in ((None, True), (24, False)):
        client = enter(properties=Properties(maximum_packet_size=limit))
        client.send_bytes(b"\x30\x04\0\1t\0\0\0\x30\x04\0\2t+\0")
        while not isinstance(packet := client.next(), Disconnect):
            pass
        assert packet.reason_code == 0x90 or packet.reason_code == 0x81
        assert (packet.properties is not None) is explained
        assert packet.properties is None or packet.properties.session_expiry_interval is None


@of_5("3.15.1-1", "3.15.2-1")
def test_auth_flags_and_codes(enter: Enter) -> None:
    for data, code in ((b"\xf1\0", 0x81), (b"\xf0\1\1", 0x82), (b"\xf0\0", 0x82)):
        client = enter()
        client.send_bytes(data)
        assert client.ended_with() == code


@of_31("2.1 reserved types")
@of_311("2.2.2-2", "4.8.0-1")
@in_311_and_5
@on_every_transport
def test_reserved_packet_types(enter: Enter, version: ProtocolVersion) -> None:
    for data in (b"\0\0", b"\xf0\0") if version is V311 else (b"\0\0",):
        client = enter(version=version)
        client.send_bytes(data)
        said = client.end()
        assert (said.reason_code if said else None) == (0x81 if version is V5 else None)
    old = enter("o", V31)
    old.send_bytes(b"\xf0\0")
    assert old.end() is None


@of_5("4.2.0-1")
@of_311("7.1.1-1")
@on_every_transport
@in_3x_and_5
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_any_size_cross_every_transport_in_order(
    enter: Enter, name: str, version: ProtocolVersion, qos: int
) -> None:
    client = enter(version=version)
    client.subscribe(name)
    sizes = [0, 1, 100, 120, 130, 16_000, 17_000, 65_500, 66_000, 500_000]
    publisher = enter("p", version)
    for size in sizes:
        publisher.publish(name, bytes(size), qos=qos)
    assert [len(message.payload) for message in client.messages(len(sizes))] == sizes


@of_311("7.0.0-1")
@pytest.mark.one_broker
def test_the_broker_opens_no_connections(enter: Enter, name: str, broker: BrokerProcess) -> None:
    """Whoever is connected to it has come to one of its listeners."""
    client = enter()
    client.subscribe(name, qos=0)
    client.publish(name, qos=0)
    client.message()
    own = {os.readlink(entry) for entry in Path(f"/proc/{broker.pid}/fd").iterdir()}
    rows = [line.split() for line in Path(f"/proc/{broker.pid}/net/tcp").read_text().splitlines()[1:]]
    sockets = [row for row in rows if f"socket:[{row[9]}]" in own]
    listening = {row[1] for row in sockets if row[3] == "0A"}
    assert len(listening) >= 4
    assert {row[1] for row in sockets} == listening


@of_311("4.8.0-1")
@in_3x_and_5
@on_every_transport
def test_an_error_of_one_client_is_no_other_ones(
    enter: Enter, name: str, watcher: WireClient, version: ProtocolVersion
) -> None:
    other = enter("o", version)
    client = enter(version=version)
    client.send_bytes(b"\x32\xff\xff\xff\xff\xff")
    client.end()
    other.publish(f"{name}/x", b"well")
    assert watcher.message().payload == b"well"


@of_5("3.14.0-1", "3.14.2-1")
@pytest.mark.parametrize("elsewhere", ["", "other.example:1883"])
def test_a_broker_that_stops_says_so_and_where_to_go(
    tmp_path: Path, opened: Opened, name: str, elsewhere: str
) -> None:
    settings = {"mqtt.server_reference": elsewhere} if elsewhere else {}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        client, old = opened(broker.port, V5, name), opened(broker.port, V311, name + "o")
        client.connect()
        old.connect()
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        said = client.end()
        assert old.end() is None
        client.close()
        old.close()
        stopping.join()
    assert said is not None and said.reason_code == (0x9C if elsewhere else 0x8B)
    assert (said.properties.server_reference if said.properties else None) == (elsewhere or None)
