"""The decoder beyond single packets: limits, versions that we do not speak, memory, caches, the end."""

from __future__ import annotations

import gc

import pytest

from embermq.mqtt.wire import decoder as decoder_module
from embermq.mqtt.wire.data_types import encode_varint
from embermq.mqtt.wire.decoder import PACKET_BYTES_MAX, Decoder
from embermq.mqtt.wire.encoder import encode
from embermq.mqtt.wire.errors import MalformedPacket, PacketTooLarge, UnsupportedVersion
from embermq.mqtt.wire.packet_bodies import FILTERS_MAX
from embermq.mqtt.wire.packets import Auth, Connack, Connect, Disconnect, Packet, Pingreq, Puback, Publish
from embermq.mqtt.wire.properties import Properties
from embermq.mqtt.wire.reason_codes import ReasonCode
from embermq.mqtt.wire.version import ProtocolVersion, Role

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5


def server(version: ProtocolVersion = V311, packet_bytes_max: int = PACKET_BYTES_MAX) -> Decoder:
    return Decoder(Role.SERVER, packet_bytes_max=packet_bytes_max, version=version)


@pytest.mark.parametrize("version", list(ProtocolVersion))
def test_a_connection_in_one_feed(version: ProtocolVersion) -> None:
    connect = Connect("c", version)
    decoder = Decoder(Role.SERVER)
    assert decoder.version is None
    data = encode(connect, version) + encode(Publish("a", b"x", 1, 1), version) + encode(Puback(2), version)
    assert decoder.feed(data) == [connect, Publish("a", b"x", 1, 1), Puback(2)]
    assert decoder.version is version


def test_client_reads_connack_first() -> None:
    decoder = Decoder(Role.CLIENT, version=V5)
    auth = Auth(0x18, Properties(authentication_method="m"))
    data = encode(auth, V5) * 2 + encode(Connack(False, 0), V5) + encode(Publish("a", b""), V5)
    assert decoder.feed(data) == [auth, auth, Connack(False, 0), Publish("a", b"")]


@pytest.mark.parametrize(
    ("head", "level", "guess"),
    [
        (b"\0\x04MQTT", 6, V5),
        (b"\0\x04MQTT", 3, V311),
        (b"\0\x04MQTT", 0x84, V311),
        (b"\0\x06MQIsdp", 4, V31),
        (b"\0\x04AMQP", 5, None),
    ],
)
def test_unsupported_version_can_be_answered(head: bytes, level: int, guess: ProtocolVersion | None) -> None:
    decoder = Decoder(Role.SERVER)
    body = head + bytes((level,)) + b"\x02\0\0\0\0"
    assert decoder.feed(bytes((0x10, len(body))) + body) == []
    error = decoder.error
    assert isinstance(error, UnsupportedVersion)
    assert error.reason_code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    assert error.level == level
    assert decoder.version is guess


def test_version_is_known_when_connect_is_refused_later() -> None:
    decoder = Decoder(Role.SERVER)
    decoder.feed(b"\x10\x0d\0\x04MQTT\x05\x03\0\0\0\0\0")
    assert decoder.error is not None
    assert decoder.version is V5


@pytest.mark.parametrize(
    ("packet_bytes", "header"),
    [
        (16, b"\x30\x0e"),
        (129, b"\x30\x7f"),
        (130, b"\x30\x7f"),
        (1000, b"\x30\xe5\x07"),
        (16_386, b"\x30\xff\x7f"),
        (70_000, b"\x30\xec\xa2\x04"),
    ],
)
def test_oversized_is_refused_by_the_fixed_header(packet_bytes: int, header: bytes) -> None:
    """One byte less than announced is too little; nothing of the body is waited for."""
    announced = 0
    for shift, byte in enumerate(header[1:]):
        announced |= (byte & 0x7F) << 7 * shift
    announced += len(header)
    assert announced <= packet_bytes
    small = server(packet_bytes_max=announced - 1)
    assert small.feed(header) == []
    assert isinstance(small.error, PacketTooLarge)
    assert small.error.reason_code is ReasonCode.PACKET_TOO_LARGE
    assert (small.error.packet_bytes, small.error.packet_bytes_max) == (announced, announced - 1)
    assert small.buffered_bytes == 0
    fitting = server(packet_bytes_max=announced)
    body = b"\0\x01a".ljust(announced - len(header), b"x")
    assert fitting.feed(header + body) == [Publish("a", body[3:])]


def test_oversized_connect_is_refused() -> None:
    decoder = Decoder(Role.SERVER, packet_bytes_max=1024)
    decoder.feed(b"\x10\xff\xff\xff\x7f")
    assert isinstance(decoder.error, PacketTooLarge)


def test_oversized_is_refused_by_a_header_in_pieces() -> None:
    decoder = server(packet_bytes_max=1024)
    for byte in b"\x30\xff\xff":
        assert decoder.feed(bytes((byte,))) == []
        assert decoder.error is None
    decoder.feed(b"\x7f")
    assert isinstance(decoder.error, PacketTooLarge)


def test_large_packet_in_small_pieces_is_looked_at_once() -> None:
    """The cost of many pieces must not grow with what is already there. Whoever looks takes the pieces away."""
    packet = Publish("a", b"x" * 400_000)
    data = encode(packet, V311)
    decoder = server()
    pieces = [data[start : start + 100] for start in range(0, len(data), 100)]
    assert decoder.feed(pieces[0]) == []
    kept = decoder._pieces
    for piece in pieces[1:-1]:
        assert decoder.feed(piece) == []
        assert decoder._pieces is kept
    assert decoder.buffered_bytes == len(data) - len(pieces[-1])
    assert decoder.feed(pieces[-1]) == [packet]
    assert decoder._pieces is not kept


@pytest.mark.parametrize("first", [1, 2, 3, 5, 8, 15, 40, 5_000, 70_000])
@pytest.mark.parametrize("version", [V311, V5])
def test_a_large_publish_is_the_same_however_it_is_cut(version: ProtocolVersion, first: int) -> None:
    """Its payload is joined from the pieces as they came; what follows it in the last one is read too."""
    properties = Properties(content_type="t" * 20, topic_alias=7) if version is V5 else None
    payload = bytes(range(256)) * 400
    packets: list[Packet] = [
        Publish("a/b", payload, 1, 77, True, True, properties),
        Puback(9),
        Publish("", payload[3:], 2, 78, False, False, properties)
        if version is V5
        else Publish("a", payload[3:]),
        Publish("c", b"x"),
    ]
    data = b"".join(encode(packet, version) for packet in packets)
    for piece in (1_000, 4_096, 30_000, 90_000):
        decoder = server(version)
        found = decoder.feed(data[:first])
        for start in range(first, len(data), piece):
            part = memoryview(data)[start : start + piece]
            assert decoder.missing_bytes <= len(data) - start
            found += decoder.feed(part)
        assert decoder.error is None
        assert found == packets
        assert (decoder.buffered_bytes, decoder.missing_bytes) == (0, 0)
        assert all(type(packet.payload) is bytes for packet in found if isinstance(packet, Publish))


@pytest.mark.parametrize(("at", "value"), [(4, 255), (6, 0), (8, 0)])
def test_a_large_publish_is_refused_alike_whole_and_in_pieces(at: int, value: int) -> None:
    """A topic longer than the packet, a null in the topic, packet id 0."""
    data = bytearray(encode(Publish("ab", b"x" * 50_000, 1, 256), V5))
    assert data[4:10] == b"\0\x02ab\x01\0"
    data[at] = value
    whole, cut = server(V5), server(V5)
    whole.feed(bytes(data))
    for start in range(0, len(data), 10_000):
        cut.feed(bytes(data[start : start + 10_000]))
    view = server(V5)
    view.feed(memoryview(bytes(data)))
    assert whole.error is not None
    assert repr(cut.error) == repr(view.error) == repr(whole.error)


def test_a_packet_tells_its_size_before_it_is_there() -> None:
    publish = memoryview(encode(Publish("a", b"x" * 50_000, 1, 1), V5))
    assert server(V5).packet_bytes(publish) == server(V5).packet_bytes(publish[:4]) == len(publish)
    assert server(V5).packet_bytes(publish[:3]) == server(V5).packet_bytes(publish[:0]) == 0
    assert server(V5).packet_bytes(memoryview(b"\x36\xff\xff\x7f")) == 0, "its flags are refused"
    assert Decoder(Role.SERVER).packet_bytes(publish) == 0, "before CONNECT"
    small = Decoder(Role.SERVER, packet_bytes_max=1_000, version=V5)
    assert small.packet_bytes(publish) == 0 and small.error is None
    assert small.feed(publish) == [] and isinstance(small.error, PacketTooLarge)


def test_only_leftover_bytes_are_kept() -> None:
    decoder = server()
    data = encode(Publish("a", b"x" * 50), V311)
    assert len(decoder.feed(data * 100 + data[:7])) == 100
    assert decoder.buffered_bytes == 7
    assert len(decoder.feed(data[7:] + data)) == 2
    assert decoder.buffered_bytes == 0


def test_nothing_is_read_after_disconnect() -> None:
    decoder = server(V5)
    assert decoder.feed(b"\xc0\0\xe0\0\xff\xff\xff") == [Pingreq(), Disconnect()]
    assert decoder.error is None
    assert decoder.buffered_bytes == 0
    assert decoder.feed(b"\xc0\0") == []


def test_nothing_is_read_after_an_error() -> None:
    decoder = server()
    decoder.feed(b"\x00\x00")
    error = decoder.error
    assert error is not None
    assert decoder.feed(b"\xc0\0") == []
    assert decoder.error is error


def test_role_client_needs_a_version() -> None:
    with pytest.raises(ValueError, match="version"):
        Decoder(Role.CLIENT)


def test_packet_bytes_max_has_a_floor() -> None:
    with pytest.raises(ValueError, match="packet_bytes_max is 1"):
        Decoder(Role.SERVER, packet_bytes_max=1)


def test_topics_are_cached_and_the_cache_is_bounded() -> None:
    most = decoder_module._CACHED_TOPICS_MAX
    decoder_module._TOPICS.clear()
    decoder = server()
    first, second = decoder.feed(encode(Publish("cached", b""), V311) * 2)
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert first.topic is second.topic
    decoder_module._TOPICS.update((f"u/{index}".encode(), "") for index in range(most - 3))
    for index in range(10):
        decoder.feed(encode(Publish(f"t/{index}", b""), V311))
        assert len(decoder_module._TOPICS) == (most - 1 + index if index < 2 else index - 1)
    long_topic = "x" * 257
    decoder_module._TOPICS.clear()
    decoder.feed(encode(Publish(long_topic, b""), V311))
    assert not decoder_module._TOPICS


def test_property_blocks_are_cached_and_the_cache_is_bounded() -> None:
    most = decoder_module._CACHED_BLOCKS_MAX
    decoder_module._BLOCKS.clear()
    decoder_module._BLOCKS.update((b"u%d" % index, Properties()) for index in range(most - 3))
    decoder = server(V5)
    for index in range(1, 11):
        packet = Publish("", b"", properties=Properties(topic_alias=index))
        assert decoder.feed(encode(packet, V5) * 2) == [packet, packet]
        assert len(decoder_module._BLOCKS) == (most - 3 + index if index <= 3 else index - 3)
    decoder_module._BLOCKS.clear()


def test_a_cached_block_is_still_refused_for_a_server() -> None:
    data = encode(Publish("a", b"", properties=Properties(subscription_identifiers=(77,))), V5)
    client = Decoder(Role.CLIENT, version=V5)
    assert len(client.feed(encode(Connack(False, 0), V5) + data)) == 2
    decoder = server(V5)
    assert decoder.feed(data) == []
    assert decoder.error is not None


def test_a_cached_block_does_not_hide_a_truncated_packet() -> None:
    decoder = server(V5)
    assert len(decoder.feed(b"\x30\x07\0\x01a\x03\x23\0\x09")) == 1
    # The same block, but the packet ends inside it and another begins with its rest.
    assert decoder.feed(b"\x30\x05\0\x01a\x03\x23\0\x09") == []
    assert decoder.error is not None


def test_a_refused_connection_leaves_nothing_to_the_collector() -> None:
    """An error that kept its frames would keep its decoder in a cycle."""
    wrong = [b"\x30\xff\xff\xff\xff\x01", b"\x30\x04\0\x02\xc3\x28", b"\x82\x02\0\x01"]
    gc.collect()
    gc.disable()
    try:
        for data in wrong:
            decoder = server(V311)
            decoder.feed(data)
            assert decoder.error is not None
        del decoder
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(("first", "last"), [(b"\x82", b"\0"), (b"\xa2", b"")])
def test_a_packet_may_have_so_many_filters_and_not_one_more(first: bytes, last: bytes) -> None:
    one = b"\0\x01a" + last
    for count, reason in ((FILTERS_MAX, None), (FILTERS_MAX + 1, ReasonCode.QUOTA_EXCEEDED)):
        decoder = server(V5)
        body = b"\0\x01\0" + one * count
        found = decoder.feed(first + encode_varint(len(body)) + body)
        assert len(found) == (reason is None)
        assert (decoder.error.reason_code if decoder.error is not None else None) == reason


@pytest.mark.parametrize(
    "properties",
    [
        None,
        Properties(session_expiry_interval=3600),
        Properties(session_expiry_interval=7200, receive_maximum=5),
        Properties(user_properties=(("key", "value"),)),
        Properties(authentication_method="m", authentication_data=b"secret"),
        Properties(user_properties=(("key", "v" * 60),), session_expiry_interval=1),
    ],
)
def test_properties_of_connect_are_the_same_when_they_are_remembered(properties: Properties | None) -> None:
    connect = Connect("c", ProtocolVersion.V5, properties=properties)
    for _ in range(2):
        decoder = Decoder(Role.SERVER)
        assert decoder.feed(encode(connect, ProtocolVersion.V5)) == [connect]


def test_connect_that_ends_within_its_properties_is_refused_each_time() -> None:
    whole = encode(
        Connect("", ProtocolVersion.V5, properties=Properties(session_expiry_interval=3600)),
        ProtocolVersion.V5,
    )
    for size in (11, 12, 15):  # inside the length, the identifier, the value
        for _ in range(2):
            decoder = Decoder(Role.SERVER)
            assert decoder.feed(whole[:1] + bytes((size - 2,)) + whole[2:size]) == []
            assert isinstance(decoder.error, MalformedPacket)
